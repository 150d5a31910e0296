"""`--tiled_mlp` where it can be had."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.arguments.recomputation import MLP
from hftune.preflight.rules import model as tiling
from hftune.preflight.rules.model import check_tiling


def said(stage: str = "sft", *, parts: tuple[str, ...] | None = None, **args: Any) -> list[str]:
    recomputation = None if parts is None else SimpleNamespace(parts=parts)
    given = {"tiled_mlp": True, "max_length": 128, "recomputation": recomputation, **args}
    facts: Any = SimpleNamespace(stage=stage, training_args=SimpleNamespace(**given), skeleton=None)
    return [str(problem) for problem in check_tiling(facts)]


@pytest.fixture(autouse=True)
def lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "row_length", lambda args: args.max_length)


def test_where_it_is() -> None:
    assert said() == said("pt") == said("distill", parts=("attention",)) == said("rl", tiled_mlp=False) == []


def test_where_it_is_not() -> None:
    (problem,) = said("dpo", max_length=None)
    assert "pre-training and fine-tuning only" in problem, "the rest would only repeat it"
    length, twice = said(max_length=None, parts=(MLP,))
    assert "give --max_length" in length and "recomputes the MLPs already" in twice


def test_a_model_without_such_mlps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    training_args = SimpleNamespace(tiled_mlp=True, max_length=8, recomputation=None)
    facts: Any = SimpleNamespace(stage="sft", training_args=training_args, skeleton=tmp_path)
    for found, count in ((["mlp"], 0), ([], 1)):
        monkeypatch.setattr(tiling, "tileable", lambda model, found=found: found)
        assert len([*check_tiling(facts)]) == count
