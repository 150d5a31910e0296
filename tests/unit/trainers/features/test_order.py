"""Which features a run has, and in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig, MixtralConfig

from hftune.distributed.ranks import Mesh
from hftune.trainers.features import order

ALWAYS = [
    *("EvaluationFigures", "RecordOrder", "BatchDigests", "Totals", "Stopping", "Speed", "Phases", "NanGuard"),
    *("Checkpoints", "PortableWeights", "RepeatedRows", "Optimizers", "NoPickledArguments"),
]
PLAIN: dict[str, Any] = {
    "flat_batches": False,
    "dataloader_num_workers": 0,
    "expert_parallel_size": 1,
    "router_aux_loss_coef": None,
    "moe_z_loss_coef": 0.0,
    "asks_for_dropout": False,
    "ds_resolved": None,
    "zero_stage": 0,
    "mesh": Mesh(world=2),
    "tiled_mlp": False,
    "profile": False,
    "profiler_rank0_only": True,
}


def names(model: Any = None, **args: Any) -> list[str]:
    """Classes of the features of a run with these arguments."""
    model = model or SimpleNamespace(config=LlamaConfig())
    found = order.common_features(SimpleNamespace(**(PLAIN | args)), model)  # type: ignore[arg-type]  # made up
    return [type(feature).__name__ for feature in found]


def test_a_plain_run_has_what_all_have() -> None:
    assert names() == ALWAYS


@pytest.mark.parametrize(
    ("asked", "name", "behind"),
    [
        ({"flat_batches": True}, "IsolationProof", "EvaluationFigures"),
        ({"dataloader_num_workers": 2}, "LoaderWorkers", "Stopping"),
        ({"expert_parallel_size": 2}, "ExpertParallel", "PortableWeights"),
        ({"router_aux_loss_coef": 0.1}, "RouterLoss", "Optimizers"),
        ({"moe_z_loss_coef": 0.1}, "RouterLoss", "Optimizers"),
        ({"model": SimpleNamespace(config=MixtralConfig())}, "RouterLoss", "Optimizers"),
        ({"asks_for_dropout": True}, "DropoutSettings", "Optimizers"),
        ({"model": SimpleNamespace(config=LlamaConfig(), is_loaded_in_4bit=True)}, "AdapterPrecision", "Optimizers"),
        ({"model": SimpleNamespace(config=LlamaConfig(), is_loaded_in_8bit=True)}, "AdapterPrecision", "Optimizers"),
        ({"ds_resolved": {"zero_optimization": {"stage": 0}}}, "GradientNorms", "Optimizers"),
        ({"mesh": Mesh(world=2, sequence=2)}, "SequenceParallel", "Optimizers"),
        ({"tiled_mlp": True}, "Tiling", "Optimizers"),
        ({"profile": True}, "Profiling", "Optimizers"),
    ],
    ids=lambda one: one if isinstance(one, str) else None,
)
def test_what_is_asked_for_comes_in_its_place(asked: dict[str, Any], name: str, behind: str) -> None:
    place = ALWAYS.index(behind) + 1
    assert names(**asked) == [*ALWAYS[:place], name, *ALWAYS[place:]]


def test_all_together_stand_as_their_reasons_say() -> None:
    model = SimpleNamespace(config=MixtralConfig(), is_loaded_in_4bit=True)
    args = {"flat_batches": True, "expert_parallel_size": 2, "mesh": Mesh(world=2, sequence=2), "ds_resolved": {}}
    found = names(model, **args, dataloader_num_workers=1, asks_for_dropout=True, tiled_mlp=True)
    for first, second in (
        ("IsolationProof", "Speed"),
        ("LoaderWorkers", "Phases"),
        ("Checkpoints", "PortableWeights"),
        ("ExpertParallel", "Optimizers"),
        ("ExpertParallel", "RouterLoss"),
        ("RepeatedRows", "SequenceParallel"),
        ("RouterLoss", "GradientNorms"),
        ("SequenceParallel", "NoPickledArguments"),
    ):
        assert found.index(first) < found.index(second), (first, second)


def test_deepspeed_that_partitions_needs_no_norms_of_ours() -> None:
    assert names(ds_resolved={"zero_optimization": {"stage": 2}}, zero_stage=2) == ALWAYS


def test_a_profile_is_the_first_rank_s_alone_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order.ranks, "is_main", lambda: False)
    assert "Profiling" not in names(profile=True)
    assert "Profiling" in names(profile=True, profiler_rank0_only=False)


def test_resuming_brings_one_more() -> None:
    assert [type(feature).__name__ for feature in order.resuming_features()] == ["Resume"]
