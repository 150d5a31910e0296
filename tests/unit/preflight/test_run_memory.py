"""The memory of a run is counted for its rule, and for `--activation_checkpointing auto`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.errors import UserError
from hftune.preflight import run_memory
from hftune.preflight.facts import resolve
from hftune.preflight.memory import Free
from hftune.preflight.run_memory import choose_recomputed_layers, memory_of
from hftune.tools.planning import least_recomputation


def facts_of(model: Path, *flags: str) -> Any:
    given = ["--model_name_or_path", str(model), "--output_dir", "o", "--use_cpu", "True", *flags]
    return resolve("sft", parse_arguments("sft", given))


def test_what_is_counted(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_memory, "free_memory", lambda **_: Free(1e15, 1e15))
    facts = facts_of(tiny_model)
    memory = memory_of(facts)
    assert memory is not None and memory.missing is None
    assert memory.size.weights == memory.size.trained == sum(one.numel() for one in facts.skeleton.parameters())
    assert memory.setup.on_cpu and memory.setup.weight_bytes == 4.0
    monkeypatch.setattr(run_memory, "free_memory", lambda **_: Free(1e3, 1e3))
    small = memory_of(facts)
    assert small is not None and small.missing


def test_what_cannot_be_counted_is_said(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(run_memory, "notice", said.append)

    def failing(*_: Any) -> None:
        raise UserError("no such module\nmore")

    monkeypatch.setattr(run_memory, "model_size", failing)
    assert memory_of(facts_of(tiny_model)) is None and said == ["memory is not checked: no such module"]
    assert memory_of(SimpleNamespace(skeleton=None)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("free", "planned"), [(1e15, True), (1e3, False)])
def test_the_planner_is_asked_where_the_weights_fit(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, free: float, planned: bool
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(run_memory, "free_memory", lambda **_: Free(free, free))
    monkeypatch.setattr(least_recomputation, "choose_layers", lambda *given: asked.append(given))
    choose_recomputed_layers(facts_of(tiny_model))
    assert bool(asked) == planned
