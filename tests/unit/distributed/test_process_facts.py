"""What a process says of itself: libraries, code, machine."""

from __future__ import annotations

import torch

from hftune.distributed import process_facts
from hftune.distributed.nodes import host


def test_what_a_process_says_of_itself() -> None:
    facts = process_facts.process_facts()
    assert facts["host"] == host() and facts["versions"]["torch"] == torch.__version__
    assert len(facts["code"]["hftune's files"]) == 16 and process_facts.collective_seconds(torch.device("cpu")) == 0.0
