"""What a process says of itself: libraries, code, machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hftune.distributed import process_facts
from hftune.distributed.nodes import host


def test_what_a_process_says_of_itself() -> None:
    facts = process_facts.process_facts()
    assert facts["host"] == host() and facts["versions"]["torch"] == torch.__version__
    assert len(facts["code"]["hftune's files"]) == 16 and process_facts.collective_seconds(torch.device("cpu")) == 0.0


def test_the_commit_is_git_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, git = tmp_path / "hftune", tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    monkeypatch.setattr(process_facts.hftune, "__file__", str(package / "__init__.py"))
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert process_facts._commit() is None
    (git / "packed-refs").write_text("# pack-refs\n0123456789abcdef refs/heads/main\n")
    assert process_facts._commit() == "0123456789ab"
    (git / "refs" / "heads" / "main").write_text("fedcba9876543210\n")
    assert process_facts._commit() == "fedcba987654", "what is loose is newer"
    (git / "HEAD").write_text("aaaabbbbccccdddd\n")
    assert process_facts._commit() == "aaaabbbbcccc", "no branch"
