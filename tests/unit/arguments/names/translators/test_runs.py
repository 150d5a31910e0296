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
    ("kind", "others", "stage", "found"),
    [
        ("dpo", "", "dpo", {}),
        ("kto", "", "dpo", {"loss_type": "kto"}),
        ("kto", "loss_type=apo_zero_unpaired", "dpo", {}),
        ("orpo", "beta=0.2", "dpo", {"loss_type": "orpo"}),
        ("cpo", "", "dpo", {"loss_type": "cpo"}),
        ("simpo", "", "dpo", {"loss_type": "cpo_simpo", "beta": "2.0", "simpo_gamma": "1.0"}),
        ("simpo", "cpo_alpha=0 beta=3", "dpo", {"loss_type": "simpo", "simpo_gamma": "1.0"}),
        ("grpo", "", "rl", {"beta": "0.04"}),
        ("grpo", "beta=0", "rl", {}),
        ("ppo", "", "rl", {"rl_algorithm": "ppo"}),
        ("gkd", "", "distill", {}),
    ],
)
def test_kinds_of_rlhf_are_a_script_a_loss_and_defaults(
    kind: str, others: str, stage: str, found: dict[str, str]
) -> None:
    answer = runs.rlhf_type(ask(f"rlhf_type={kind}", others, stage))
    assert {name: " ".join(values) for name, values in answer.given} == found
    assert bool(answer.notices) == bool({"beta", "simpo_gamma"} & {*found})


def test_lengths_of_gkd_are_said_to_differ() -> None:
    (said,) = runs.rlhf_type(ask("rlhf_type=gkd", "max_length=2048", "distill")).notices
    assert "prompt and answer here" in said
    assert not runs.rlhf_type(ask("rlhf_type=dpo", "max_length=2048", "dpo")).notices


def test_a_kind_of_rlhf_and_another_loss_do_not_go_together() -> None:
    with pytest.raises(ArgumentError, match="the loss is sigmoid; kto is --loss_type kto"):
        runs.rlhf_type(ask("rlhf_type=kto", "loss_type=sigmoid", "dpo"))
    with pytest.raises(ArgumentError, match=r"that is run_dpo\.py"):
        runs.rlhf_type(ask("rlhf_type=simpo", stage="sft"))
