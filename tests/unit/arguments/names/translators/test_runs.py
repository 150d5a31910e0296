"""Stages and groups of processes."""

from __future__ import annotations

import pytest
import torch
from trl.experimental.gkd import GKDTrainer

from hftune.arguments.names.translators import runs
from hftune.errors import ArgumentError
from hftune.models.kernels.divergences import Divergence
from tests.unit.arguments.names.translators.questions import ask, translated
from tests.unit.models.kernels.test_divergences import expected


def test_stages() -> None:
    assert runs.stage(ask("stage=SFT")).given == []
    with pytest.raises(ArgumentError, match=r"that is run_dpo\.py"):
        runs.stage(ask("stage=DPO"))
    with pytest.raises(ArgumentError, match="the scripts are"):
        runs.stage(ask("stage=VL-SFT"))
    assert runs.any_language_model(ask("task_type=causal_lm", stage="dpo")).given == []


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


@pytest.mark.parametrize(
    ("share", "given"),
    [
        ("0", {"distill_mode": "offline"}),
        ("1.0", {"distill_mode": "on_policy"}),
        ("0.25", {"distill_mode": "mixed", "on_policy_share": "0.25"}),
    ],
)
def test_the_share_of_own_answers(share: str, given: dict[str, str]) -> None:
    for name in ("lmbda", "opd_lambda"):
        assert translated(runs.own_answers, ask(f"{name}={share}", stage="distill")) == given
    with pytest.raises(ArgumentError, match="is not a number"):
        runs.own_answers(ask("lmbda=half"))


def test_a_weight_of_the_plain_loss_is_a_share() -> None:
    """divergence + 0.25 * plain is 1.25 times (0.8 * divergence + 0.2 * plain)."""
    answer = runs.hard_label(ask("sft_alpha=0.25"))
    assert answer.given == [("hard_label_share", ["0.2"])] and "divided by 1.25" in answer.notices[0]
    assert runs.hard_label(ask("sft_alpha=0")) == runs.Translated([("hard_label_share", ["0"])])
    with pytest.raises(ArgumentError, match="weight of 0 or more"):
        runs.hard_label(ask("sft_alpha=-1"))


def test_teachers_and_adapters() -> None:
    assert translated(runs.teachers, ask("teacher_model=m")) == {"teacher_model_name_or_path": "m"}
    both = runs.teachers(ask("teacher_model=m teacher_adapters=a"))
    assert both.given == [("teacher_model_name_or_path", ["a"])] and "on the base" in both.notices[0]
    with pytest.raises(ArgumentError, match="merge them first"):
        runs.teachers(ask("teacher_adapters=a,b"))


def test_prompts_and_answers_are_one_length() -> None:
    assert translated(runs.prompt_length, ask("max_prompt_length=100", stage="rl")) == {"max_prompt_length": "100"}
    for others, total in (("", 612), ("max_completion_length=28", 128), ("defaults=medicalgpt", 228)):
        question = ask("max_prompt_length=100", others, stage="distill")
        assert translated(runs.prompt_length, question) == {"max_length": str(total)}


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_beta_is_that_of_gkd(beta: float) -> None:
    """MedicalGPT's trainer is TRL's GKD: the same number is the same divergence, so that it is passed on as it is."""
    torch.manual_seed(0)
    student, teacher, ids = torch.randn(5, 11), 3 * torch.randn(5, 11), torch.arange(5)
    theirs = GKDTrainer.generalized_jsd_loss(student, teacher, ids, beta=beta, temperature=0.9)
    ours = expected(student, ids, teacher, Divergence(beta, temperature=0.9))
    torch.testing.assert_close(ours.mean(), theirs)
