"""What a command line trains, by its arguments alone."""

from __future__ import annotations

import pytest

from hftune.arguments.defaults.table import run_kind_of


@pytest.mark.parametrize(
    "given, trained",
    [({}, "full"), ({"use_peft": ""}, "lora"), ({"use_peft": "False"}, "full"), ({"from_config": "true"}, "scratch")],
)
def test_what_is_trained(given: dict[str, str], trained: str) -> None:
    assert run_kind_of("sft", given).trained == trained
