"""What is said after two logs were compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hftune.tools.reproducing import run
from hftune.tools.reproducing.run import _say_what_is_different, reproduced


@pytest.mark.parametrize(
    ("found", "same", "rounding", "expected"),
    [
        ([], True, False, ""),
        ([], False, False, "nothing that a manifest records is different"),
        ([], False, True, "a GPU adds up in any order, so that last bits differ: --tolerance 0.01"),
        (["versions torch: was 1, is 2"], False, True, "different now:\n  versions"),
        (["versions torch: was 1, is 2"], True, False, "different now, without an effect"),
    ],
)
def test_why_the_same_run_is_another(
    capsys: pytest.CaptureFixture[str], found: list[str], same: bool, rounding: bool, expected: str
) -> None:
    _say_what_is_different(found, same=same, rounding=rounding)
    said = "".join(capsys.readouterr())
    assert said.startswith(expected) if expected else not said


@pytest.mark.parametrize(
    ("machine", "loss", "batch", "tolerance", "rounding"),
    [
        ({"gpu": "NVIDIA H200"}, 2.001, 7, 0.0, True),
        ({"gpu": "NVIDIA H200"}, 2.0, 7, 0.0, False),  # the same
        ({"gpu": "NVIDIA H200"}, 2.5, 7, 0.0, False),  # no rounding is that large
        ({"gpu": "NVIDIA H200"}, 2.5, 7, 0.01, False),
        ({"gpu": "NVIDIA H200"}, 2.0, 8, 0.0, False),  # other records
        ({"processor": "x"}, 2.001, 7, 0.0, False),
        (None, 2.001, 7, 0.0, False),
    ],
)
def test_what_a_gpu_may_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Any, loss: float, batch: int, tolerance: float,
    rounding: bool,
) -> None:  # fmt: skip
    manifest = {"machine": machine}
    lines = {"old": [{"step": 1, "loss": 2.0, "batch": 7}], "new": [{"step": 1, "loss": loss, "batch": batch}]}
    asked: list[bool] = []
    for name, value in {
        "read_manifest": lambda folder: manifest, "stage_of_run": lambda *_: "sft", "words_again": lambda *_: [],
        "changed_inputs": lambda *_: [], "untrusted": lambda *_: [], "start": lambda *_: None,
        "read_progress": lambda folder: lines[folder.name],
        "_say_what_is_different": lambda found, *, same, rounding: asked.append(rounding),
    }.items():  # fmt: skip
        monkeypatch.setattr(run, name, value)
    same = reproduced(tmp_path / "old", tmp_path / "new", None, tolerance, [])
    assert asked == [rounding] and same == (loss == 2.0 and batch == 7)
