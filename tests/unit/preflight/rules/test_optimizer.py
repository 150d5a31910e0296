"""One case a rule: what an optimizer or schedule would ignore or change is refused, with the way out."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from typing import Any

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.errors import UserError, raise_together
from hftune.preflight.check_run import check_run
from hftune.preflight.facts import resolve
from hftune.preflight.rules import optimizer
from hftune.preflight.rules.optimizer import NOT_UNDER_ZERO, PACKAGES, check_optimizer, check_schedule

ZERO = '{"zero_optimization": {"stage": %d}}'
OFFLOAD = '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}'


@pytest.fixture
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.machinery.ModuleSpec("any", None)
    monkeypatch.setattr(optimizer.importlib.util, "find_spec", lambda name: spec)


def problems(*flags: str) -> str:
    """What the rules say to the arguments of run_sft.py; empty for nothing."""
    argv = ["--model_name_or_path", "m", "--output_dir", "o", "--learning_rate", "1e-4", *flags]
    facts = resolve("sft", parse_arguments("sft", argv))
    try:
        raise_together([*check_optimizer(facts), *check_schedule(facts)])
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--optim", "muon"],
        ["--optim", "muon", "--deepspeed", ZERO % 3, "--max_grad_norm", "0"],
        ["--optim", "adamw_8bit", "--deepspeed", ZERO % 2],
        ["--optim", "adafactor"],
        ["--optim", "adafactor", "--deepspeed", ZERO % 0],
        ["--deepspeed", '{"bf16": {"enabled": "auto"}}'],
        ["--deepspeed", '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 1}}', "--bf16"],
        ["--optim", "sgd", "--deepspeed", OFFLOAD, "--optim_args", "momentum=0.9, nesterov=true"],
        ["--use_peft", "--loraplus_lr_ratio", "16", "--loraplus_lr_embedding", "1e-5"],
        ["--layerwise_lr_decay_bound", "0.5"],
    ],
)
def test_nothing_to_say(flags: list[str]) -> None:
    assert problems(*flags) == ""


@pytest.mark.parametrize(
    "flags, part",
    [
        (["--optim", "lomo"], "updates each weight inside the backward pass"),
        (["--optim", "galore_adamw_layerwise"], "no accumulation"),
        (["--optim", "paged_adamw_8bit"], "use adamw_8bit"),
        (["--optim", "galore_adamw"], "add --optim_target_modules all-linear"),
        (["--optim", "apollo_adamw", "--use_peft", "--optim_target_modules", "all-linear"], "an adapter has none"),
        (["--optim", "galore_adamw_8bit", "--optim_target_modules", "all-linear"], "runs on a GPU only"),
        (["--optim", "muon", "--deepspeed", ZERO % 2], "add --max_grad_norm 0"),
        (["--optim", "muon", "--deepspeed", OFFLOAD, "--max_grad_norm", "0"], "its matrices must be whole"),
        (["--deepspeed", '{"bf16": {"enabled": true}}', "--bf16"], "an empty first step in bf16"),
        (["--deepspeed", '{"bf16": {"enabled": "auto"}}', "--bf16"], "use stage 1, 2 or 3"),
        (["--optim_args", "momentum=0.9"], "adamw_torch_fused does not take momentum"),
        (["--optim", "sgd", "--optim_args", "momentun=0.9"], "it takes momentum, dampening, nesterov"),
        (["--optim", "sgd", "--optim_args", "weight_decay=0.1"], "use --weight_decay"),
        (["--optim", "sgd", "--optim_args", "momentum"], "has no value"),
    ],
)
def test_a_rule_each(all_installed: None, flags: list[str], part: str) -> None:
    assert part in problems(*flags)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("optim", NOT_UNDER_ZERO)
def test_optimizers_that_need_whole_tensors(all_installed: None, optim: str, stage: int) -> None:
    name = {"galore": "galore_adamw", "apollo": "apollo_adamw", "schedule_free": "schedule_free_sgd"}.get(optim, optim)
    said = problems("--optim", name, "--optim_target_modules", "all-linear", "--deepspeed", ZERO % stage)
    assert f"--optim {name} does not go with ZeRO-{stage}" in said and NOT_UNDER_ZERO[optim] in said


@pytest.mark.parametrize("start", PACKAGES)
def test_the_package_is_named(monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    monkeypatch.setattr(optimizer.importlib.util, "find_spec", lambda name: None)
    name = {"galore": "galore_adamw", "apollo": "apollo_adamw", "schedule_free": "schedule_free_sgd"}.get(start, start)
    assert f"pip install {PACKAGES[start][1]}" in problems("--optim", name)


def test_check_run_asks(tiny_model: Any) -> None:
    flags = ["--train_file_dir", ".", "--optim", "lomo", "--lr_scheduler_type", "linear", "--num_cycles", "3"]
    argv = ["--model_name_or_path", str(tiny_model), "--output_dir", "out-that-is-not-there", *flags]
    with pytest.raises(UserError, match="2 problems"):
        check_run(resolve("sft", parse_arguments("sft", argv)))
