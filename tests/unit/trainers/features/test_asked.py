"""What few runs ask for: dropout that grows, MLPs in pieces, experts on several processes, a profile."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from hftune.models.kernels.dropout import Probabilities
from hftune.trainers.features import asked as asked_module
from hftune.trainers.features.asked import FOLDER, DropoutWarmup, shard_experts_once
from tests.unit.trainers.features import made_up

NOTHING = {"asks_for_dropout": False, "tiled_mlp": False, "profile": False, "profiler_rank0_only": True}


def asked(**given: Any) -> Any:
    names = {"hidden_dropout_prob": None, "attention_probs_dropout_prob": None}
    return SimpleNamespace(**(names | {"dropout_warmup_steps": 0, "layerwise_dropout": False} | given))


class Places:
    """Of one layer: what was set."""

    def set(self, found: Probabilities) -> None:
        self.hidden = found.hidden


@pytest.mark.parametrize(
    ("step", "layerwise", "expected"),
    [(0, False, [0.0, 0.0]), (5, False, [0.2, 0.2]), (30, False, [0.4, 0.4]), (5, True, [0.0, 0.1])],
)
def test_growth(step: int, layerwise: bool, expected: list[float]) -> None:
    layers: Any = [Places(), Places()]
    args = asked(dropout_warmup_steps=10, layerwise_dropout=layerwise)
    warmup = DropoutWarmup(layers, Probabilities(0.4, None), args)
    warmup.on_step_begin(None, SimpleNamespace(global_step=step), None)  # type: ignore[arg-type]  # made up
    assert [layer.hidden for layer in layers] == pytest.approx(expected)


def test_without_growth_all_of_it_at_once() -> None:
    layers: Any = [Places()]
    DropoutWarmup(layers, Probabilities(0.4, None), asked()).set(0)
    assert layers[0].hidden == 0.4


@pytest.mark.parametrize(("flags", "callbacks"), [({}, 0), ({"dropout_warmup_steps": 4}, 1)])
def test_what_the_config_says_needs_no_callback(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, int], callbacks: int
) -> None:
    monkeypatch.setattr(asked_module, "find_dropouts", lambda model, left: [])
    args = NOTHING | vars(asked(asks_for_dropout=True, attention_probs_dropout_prob=0.1, **flags))
    run = made_up.run(model=SimpleNamespace(config=LlamaConfig()), args=args)
    asked_module.set_up(run)
    assert len(run.callbacks) == callbacks


def test_as_many_pieces_as_the_longest_batch_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, said = list[object](), list[str]()
    monkeypatch.setattr(asked_module, "row_length", lambda args: 100)
    monkeypatch.setattr(asked_module, "longest_batch", lambda args, longest: 2 * longest + 1)
    monkeypatch.setattr(asked_module, "tiles_for", lambda tokens, hidden: tokens // hidden)
    monkeypatch.setattr(asked_module, "tile_mlps", lambda model, tiles: asked.append((model, tiles)) or 3)
    monkeypatch.setattr(asked_module, "notice", said.append)
    model = SimpleNamespace(config=LlamaConfig(hidden_size=64))
    run = made_up.run(model=model, args=NOTHING | {"tiled_mlp": True})
    asked_module.set_up(run)
    assert asked == [(run.model, 3)]
    assert said == ["--tiled_mlp: 3 MLPs are computed in 3 piece(s) of at most 67 tokens"]


class Accelerator:
    """Gathers as accelerate does."""

    def get_state_dict(self, model: Any) -> str:
        return "without experts"


@pytest.mark.parametrize(("cpu", "bf16", "grouped"), [(False, True, True), (True, True, False), (False, False, False)])
def test_sharded_once_and_gathered_by_us(monkeypatch: pytest.MonkeyPatch, cpu: bool, bf16: bool, grouped: bool) -> None:
    asked: list[Any] = []
    model = SimpleNamespace(layers=[])

    def shard(model: Any, size: int, *, grouped: bool) -> None:
        asked.append((size, grouped))
        model.layers.append(("mlp", SimpleNamespace(num_local_experts=2, num_experts=4)))

    monkeypatch.setattr(asked_module, "shard_experts", shard)
    monkeypatch.setattr(asked_module, "expert_layers", lambda model: iter(model.layers))
    monkeypatch.setattr(asked_module, "gathered_weights", lambda model: ("gathered", model))
    args = {"expert_parallel_size": 2, "use_cpu": cpu, "bf16": bf16}
    run = made_up.run(model=model, accelerator=Accelerator(), args=args)
    shard_experts_once(run)
    shard_experts_once(run)
    assert asked == [(2, grouped)]
    assert run.accelerator.get_state_dict(model) == ("gathered", model)


def steps(folder: Path, first: int, last: int, taken: int) -> Any:
    """The callback after this many steps, each one product of matrices, and the end of training."""
    asked_for = {"profile": True, "profile_step_start": first, "profile_step_end": last}
    run = made_up.run(args=NOTHING | asked_for)
    asked_module.set_up(run)
    (callback,), args = run.callbacks, SimpleNamespace(output_dir=str(folder))
    for _ in range(taken):
        callback.on_step_begin()
        torch.ones(4, 4) @ torch.ones(4, 4)
        callback.on_step_end(args, None, None)
    callback.on_train_end(args, None, None)
    return callback


def test_a_trace_and_a_table(tmp_path: Path) -> None:
    assert steps(tmp_path, 2, 3, taken=5).profiler is None
    table = (tmp_path / FOLDER / "operators-rank0.txt").read_text()
    assert "aten::mm" in table and "[4, 4]" in table and "By shape" in table
    assert b"traceEvents" in gzip.decompress((tmp_path / FOLDER / "trace-rank0.json.gz").read_bytes())


def test_a_run_that_ends_sooner_has_what_there_was(tmp_path: Path) -> None:
    steps(tmp_path, 1, 9, taken=2)
    assert (tmp_path / FOLDER / "operators-rank0.txt").is_file()


def test_nothing_profiled_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(asked_module, "notice", said.append)
    steps(tmp_path, 4, 5, taken=3)
    assert "--profile_step_start is 4, and 3 steps were taken" in said[0] and not (tmp_path / FOLDER).exists()


@pytest.mark.parametrize(("main", "first_only", "profiles"), [(True, True, 1), (False, True, 0), (False, False, 1)])
def test_a_profile_is_the_first_rank_s_alone_unless_asked(
    main: bool, first_only: bool, profiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked_module.ranks, "is_main", lambda: main)
    given = {"profile": True, "profiler_rank0_only": first_only, "profile_step_start": 1, "profile_step_end": 2}
    asked_module.set_up(run := made_up.run(args=NOTHING | given))
    assert len(run.callbacks) == profiles
