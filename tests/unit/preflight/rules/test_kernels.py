"""Kernels and formats: refused where they cannot run; Liger's are kept from what hftune computes itself."""

from __future__ import annotations

import importlib.util

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.preflight.facts import LIGER_LOSSES, LIGER_MLPS, keep_own_layers
from hftune.preflight.rules import kernels
from hftune.preflight.rules.kernels import check_device, check_liger


def checked(*flags: str, stage: str = "sft", gpu: bool = True) -> tuple[str, dict[str, bool] | None]:
    given = ["--model_name_or_path", "m", "--output_dir", "o", "--use_liger_kernel", "True", *flags]
    model_args, _, adapter_args, args = parse_arguments(stage, given)
    args.use_cpu = not gpu
    keep_own_layers(adapter_args, args)
    found = [*check_device(model_args, args), *check_liger(adapter_args, args)]
    return "\n".join(map(str, found)), args.liger_kernel_config


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


@pytest.mark.parametrize("stage", ["pt", "sft", "rm", "dpo"])
def test_the_loss_stays_ours(liger: None, stage: str) -> None:
    problem, config = checked(stage=stage)
    assert not problem and config == dict.fromkeys(LIGER_LOSSES, False)
    assert checked("--fp8", "tensorwise", stage=stage)[1] == dict.fromkeys((*LIGER_LOSSES, *LIGER_MLPS), False)


@pytest.mark.parametrize("flags", [("--use_peft",), ("--tiled_mlp", "True"), ("--activation_checkpointing", "mlp")])
def test_mlps_that_are_ours_stay(liger: None, flags: tuple[str, ...]) -> None:
    problem, config = checked(*flags)
    assert not problem and config == dict.fromkeys([*LIGER_LOSSES, *LIGER_MLPS], False)


@pytest.mark.parametrize(("kind", "says"), [("offloaded", "offloaded from a GPU"), ("static", "")])
def test_a_cache_that_cannot_be_made(kind: str, says: str) -> None:
    given = ["--model_name_or_path", "m", "--output_dir", "o", "--cache_implementation", kind, "--use_cpu", "True"]
    arguments = parse_arguments("rl", given)
    said = list(check_device(arguments.model, arguments.training))
    assert len(said) == bool(says) and all(says in str(one) and kind in str(one.place) for one in said)


def test_what_is_given_is_kept_or_refused(liger: None) -> None:
    problem, config = checked("--liger_kernel_config", '{"rope": false}')
    assert not problem and config == {"rope": False, **dict.fromkeys(LIGER_LOSSES, False)}
    problem, _ = checked("--liger_kernel_config", '{"fused_linear_cross_entropy": true}')
    assert "fused_linear_cross_entropy would undo" in problem and "--liger_kernel_config" in problem


@pytest.mark.parametrize("has_it", [True, False])
def test_what_a_cpu_does_not_compute(monkeypatch: pytest.MonkeyPatch, has_it: bool) -> None:
    monkeypatch.setattr(kernels, "_deepspeed_has_fp16", lambda: has_it)
    given = ["--model_name_or_path", "m", "--output_dir", "o", "--use_cpu", "True", "--attn_implementation"]
    model_args, _, _, args = parse_arguments(
        "sft", [*given, "flex_attention", "--fp16", "True", "--deepspeed", "zero2"]
    )
    said = "\n".join(map(str, check_device(model_args, args)))
    assert "no backward pass on a CPU" in said and ("does not train in fp16" in said) == (not has_it)
    args.use_cpu = False
    assert not list(check_device(model_args, args))
