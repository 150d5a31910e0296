"""What is recomputed, from the names that say it: layers counted by hand, contradictions refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.arguments.recomputation import Recomputation
from hftune.errors import ArgumentError


def settled(tmp_path: Path, *flags: str, stage: str = "sft") -> Any:
    given = ("--model_name_or_path", "m", "--output_dir", str(tmp_path), "--use_cpu", "--report_to", "none")
    return parse_arguments(stage, [*given, *flags])[-1]


@pytest.mark.parametrize("stage", ["pt", "sft", "rm", "dpo", "rl"])
def test_every_stage_has_them(tmp_path: Path, stage: str) -> None:
    assert settled(tmp_path, stage=stage).recomputation == Recomputation()
    training = settled(tmp_path, "--activation_checkpointing", "attention,mlp", stage=stage)
    assert training.recomputation == Recomputation(("attention", "mlp"))
    assert training.gradient_checkpointing is True and training.activation_checkpointing == "attention,mlp"


@pytest.mark.parametrize(
    "flags, plan",
    [
        (("--gradient_checkpointing", "False"), None),
        (("--gradient_checkpointing", "True"), Recomputation()),
        (("--activation_checkpointing", "none"), None),
        (("--activation_checkpointing", "False"), None),
        (("--activation_checkpointing", "True"), Recomputation()),
        (("--activation_checkpointing_every", "3"), Recomputation(every=3)),
        (("--activation_checkpointing_layers", "1/3"), Recomputation(which="1/3")),
        (("--activation_checkpointing_offload", "True"), Recomputation(offload=True)),
        # transformers' own words for the same, under its older and its newer name
        (
            ("--gradient_checkpointing_kwargs", '{"every_n_layers": 2, "offload": true}'),
            Recomputation(every=2, offload=True),
        ),
        (
            ("--gradient_checkpointing_kwargs", '{"use_reentrant": true}'),
            Recomputation(options={"use_reentrant": True}),
        ),
    ],
)
def test_what_flags_mean(tmp_path: Path, flags: tuple[str, ...], plan: Recomputation | None) -> None:
    training = settled(tmp_path, *flags)
    assert training.recomputation == plan
    assert training.gradient_checkpointing is (plan is not None)
    assert bool(training.activation_checkpointing) is (plan is not None)
    # What TRL hands to torch's checkpoint again and again holds nothing that it does not know.
    assert set(training.gradient_checkpointing_kwargs or {}) <= {"use_reentrant"}
    twin = type(training)(**{**training.to_dict(), "report_to": "none", "pad_token": None})
    assert twin.recomputation == plan, "arguments made of arguments say the same"


@pytest.mark.parametrize(
    "share, plan", [("0", None), ("3/8", Recomputation(which="3/8", offload=True)), ("1", Recomputation(offload=True))]
)
def test_the_plan_chooses_the_layers(tmp_path: Path, share: str, plan: Recomputation | None) -> None:
    flags = ("--activation_checkpointing", "auto", "--activation_checkpointing_offload", "True")
    training = settled(tmp_path, *flags)
    assert training.recomputes_least and training.recomputation == Recomputation(offload=True), "until it has"
    training.recompute_share(Fraction(share))
    assert training.recomputation == plan and not training.recomputes_least
    assert training.gradient_checkpointing is (plan is not None)
    assert training.activation_checkpointing_layers == (plan.which if plan else None)


@pytest.mark.parametrize(
    "flags, says",
    [
        (("--activation_checkpointing", "auto", "--activation_checkpointing_every", "2"), "auto chooses the layers"),
        (("--activation_checkpointing", "half"), "'half' cannot be recomputed by itself"),
        (("--activation_checkpointing", "full,mlp"), "one lies within another"),
        (("--activation_checkpointing", "full", "--gradient_checkpointing", "False"), "contradict each other"),
        (("--activation_checkpointing", "none", "--activation_checkpointing_every", "2"), "nothing is recomputed"),
        (("--activation_checkpointing_layers", "first"), "names no layers"),
        (("--activation_checkpointing_layers", "\N{SUPERSCRIPT TWO}"), "names no layers"),
        (("--activation_checkpointing_layers", "0-99999999999"), "names no layers"),
        (("--activation_checkpointing_layers", "3/2"), "no share"),
        (("--gradient_checkpointing_kwargs", '{"reentrant": true}'), "takes no reentrant"),
        (("--gradient_checkpointing_kwargs", "reentrant"), "not valid JSON"),
    ],
)
def test_what_is_refused(tmp_path: Path, flags: tuple[str, ...], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        settled(tmp_path, *flags)


@pytest.mark.parametrize(
    "plan, count, layers",
    [
        (Recomputation(), 3, [0, 1, 2]),
        (Recomputation(every=2), 5, [0, 2, 4]),
        (Recomputation(which="0-2,5"), 8, [0, 1, 2, 5]),
        (Recomputation(which="not 0-2,5"), 8, [3, 4, 6, 7]),
        # fms-fsdp numbers from 1 and takes i where i/3 first reaches 1/2, 3/2, 5/2: 2, 5, 8
        (Recomputation(which="1/3"), 9, [1, 4, 7]),
        # 1 * 2/3 >= 1/2; 3 * 2/3 = 2 >= 3/2; 4 * 2/3 = 8/3 >= 5/2; 6 * 2/3 = 4 >= 7/2
        (Recomputation(which="2/3"), 6, [0, 2, 3, 5]),
        (Recomputation(which="0.5"), 4, [0, 2]),
        (Recomputation(which="1/1"), 4, [0, 1, 2, 3]),
    ],
)
def test_which_layers(plan: Recomputation, count: int, layers: list[int]) -> None:
    assert plan.layers(count) == layers


def test_layers_that_there_are_not() -> None:
    with pytest.raises(ArgumentError, match="no layer 8: the model has 8"):
        Recomputation(which="6-8").layers(8)
