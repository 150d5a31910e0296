"""Names of optimizers and schedules: transformers', Megatron's and ERNIEKit's mean the same run."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError


def training(*flags: str, stage: str = "sft") -> Any:
    """The training arguments of a command line."""
    return parse_arguments(stage, ["--model_name_or_path", "m", "--output_dir", "o", *flags])[3]


@pytest.mark.parametrize(
    "flags, expected",
    [
        ([], {"optim": OptimizerNames.ADAMW_TORCH_FUSED, "lr_scheduler_type": SchedulerType.COSINE}),
        (["--optim", "adam"], {"optim": OptimizerNames.ADAMW_TORCH_FUSED}),
        (["--optim", "lion_8bit"], {"optim": OptimizerNames.LION_8BIT}),
        (["--optim", "muon"], {"optim": "muon", "optim_name": "muon"}),
        (["--optim", "dist_muon"], {"optim": "muon"}),
        (["--lr_scheduler_type", "WSD"], {"lr_scheduler_type": SchedulerType.WARMUP_STABLE_DECAY}),
        (["--lr_scheduler_type", "inverse-square-root"], {"schedule": "inverse_sqrt"}),
        (["--lr_wsd_decay_style", "minus_sqrt"], {"lr_wsd_decay_style": "1-sqrt"}),
        (["--lr_scheduler_type", "constant", "--warmup_steps", "3"], {"schedule": "constant_with_warmup"}),
        (["--optim", "sgd", "--sgd_momentum", "0.9"], {"optim_args": "momentum=0.9"}),
        (
            ["--optim", "sgd", "--optim_args", "nesterov=true,momentum=0.5", "--sgd_momentum", "0.9"],
            {"optim_args": "nesterov=true,momentum=0.9"},
        ),
        (["--lora_plus_scale", "1.0"], {"loraplus_lr_ratio": None}),
    ],
)
def test_names(flags: list[str], expected: dict[str, Any]) -> None:
    args = training(*flags)
    for name, value in expected.items():
        assert getattr(args, name) == value, name


@pytest.mark.parametrize("stage", ["pt", "rl"])
def test_every_stage_takes_them(stage: str) -> None:
    args = training("--optim", "muon", "--lr_scheduler_type", "cosine", "--min_lr", "1e-7", stage=stage)
    assert (args.optim, args.schedule, args.min_lr) == ("muon", "cosine", 1e-7)
    assert args.to_dict()["optim"] == "muon"


@pytest.mark.parametrize(
    "flags, part",
    [
        (["--optim", "adamw_torhc"], "did you mean --optim adamw_torch?"),
        (["--optim", "sophia"], "--optim cannot be 'sophia'"),
        (["--lr_scheduler_type", "cosin"], "did you mean --lr_scheduler_type cosine?"),
        (["--muon_num_ns_steps", "7"], "five steps"),
        (["--muon_use_nesterov", "false"], "Nesterov"),
    ],
)
def test_unknown_names(flags: list[str], part: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        training(*flags)
    assert part in str(caught.value)


def test_the_scheduler_of_deepspeed_gets_no_say() -> None:
    with pytest.raises(ArgumentError, match=r"--deepspeed: scheduler"):
        training("--deepspeed", '{"scheduler": {"type": "WarmupLR"}}')
