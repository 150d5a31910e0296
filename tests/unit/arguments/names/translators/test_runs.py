"""Stages and groups of processes."""

from __future__ import annotations

import pytest

from hftune.arguments.names.translators import runs
from hftune.errors import ArgumentError
from tests.unit.arguments.names.translators.questions import ask, translated


def test_stages_and_tensor_parallelism() -> None:
    assert runs.stage(ask("stage=SFT")).given == []
    with pytest.raises(ArgumentError, match=r"that is run_dpo\.py"):
        runs.stage(ask("stage=DPO"))
    with pytest.raises(ArgumentError, match="the scripts are"):
        runs.stage(ask("stage=VL-SFT"))
    assert runs.any_language_model(ask("task_type=causal_lm", stage="dpo")).given == []
    assert "no effect" in runs.degree(ask("sequence_parallel=True tensor_parallel_degree=1")).notices[0]
    for command in ("sequence_parallel=True", "tensor_model_parallel_size=2 sequence_parallel=True"):
        with pytest.raises(ArgumentError, match="ZeRO-3"):
            runs.degree(ask(command))
    for name in runs.TENSOR_NAMES:
        assert translated(runs.degree, ask(f"{name}=4")) == {"tensor_parallel_size": "4"}
        assert translated(runs.degree, ask(f"{name}=-1")) == {}
    assert translated(runs.experts, ask("expert_model_parallel_size=8")) == {"expert_parallel_size": "8"}
    assert translated(runs.experts, ask("expert_model_parallel_size=0")) == {}


@pytest.mark.parametrize(
    ("command", "stage", "expected"),
    [
        ("stage=rm", "rm", {}),
        ("stage=kto", "dpo", {"loss_type": "kto"}),
        ("stage=ppo", "rl", {"rl_algorithm": "ppo"}),
        ("stage=sft", "sft", {}),
    ],
)
def test_stages_of_llama_factory(command: str, stage: str, expected: dict[str, str]) -> None:
    assert translated(runs.stage, ask(command, stage=stage)) == expected
    with pytest.raises(ArgumentError, match="that is run_"):
        runs.stage(ask(command, stage="distill"))


@pytest.mark.parametrize(
    ("command", "stage", "expected"),
    [
        ("rl=dpo", "dpo", {}),
        ("rl=kto", "dpo", {"loss_type": "kto"}),
        ("rl=simpo", "dpo", {"loss_type": "simpo"}),
        ("rl=grpo", "rl", {}),
        ("rlhf_type=dpo", "dpo", {}),
        ("rlhf_type=cpo", "dpo", {"loss_type": "cpo"}),
        ("rlhf_type=ppo", "rl", {"rl_algorithm": "ppo"}),
    ],
)
def test_kinds_of_preferences_and_rl(command: str, stage: str, expected: dict[str, str]) -> None:
    assert translated(runs.rlhf_type, ask(command, stage=stage)) == expected
