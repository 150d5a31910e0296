"""What is said after two logs were compared."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.tools.reproducing.run import _say_what_is_different


@pytest.mark.parametrize(
    ("found", "now", "same", "expected"),
    [
        ([], {"machine": {"processor": "x"}}, True, ""),
        ([], {"machine": {"gpu": "NVIDIA H200"}}, True, ""),
        ([], {"machine": {"processor": "x"}}, False, "nothing that a manifest records is different"),
        ([], {}, False, "nothing that a manifest records is different"),
        ([], {"machine": {"gpu": "NVIDIA H200"}}, False, "a GPU adds up in any order"),
        (["versions torch: was 1, is 2"], {"machine": {"gpu": "NVIDIA H200"}}, False, "different now:\n  versions"),
        (["versions torch: was 1, is 2"], {}, True, "different now, without an effect"),
    ],
)
def test_why_the_same_run_is_another(
    capsys: pytest.CaptureFixture[str], found: list[str], now: dict[str, Any], same: bool, expected: str
) -> None:
    _say_what_is_different(found, now, same=same)
    said = "".join(capsys.readouterr())
    assert said.startswith(expected) if expected else not said
