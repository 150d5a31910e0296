"""Experts leave a process before its optimizer is made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hftune.trainers.features import expert_parallel
from hftune.trainers.features.expert_parallel import ExpertParallel
from tests.unit.trainers.features import made_up


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

    monkeypatch.setattr(expert_parallel, "shard_experts", shard)
    monkeypatch.setattr(expert_parallel, "expert_layers", lambda model: iter(model.layers))
    monkeypatch.setattr(expert_parallel, "gathered_weights", lambda model: ("gathered", model))
    args = {"expert_parallel_size": 2, "use_cpu": cpu, "bf16": bf16}
    run = made_up.run(model=model, accelerator=Accelerator(), args=args)
    feature = ExpertParallel()
    feature.before_optimizer(run)
    feature.before_optimizer(run)
    assert asked == [(2, grouped)]
    assert run.accelerator.get_state_dict(model) == ("gathered", model)
