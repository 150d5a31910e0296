"""The runs of `gpu_suite.py`: which, in which order, and which of them hftune must refuse on which machine."""

from __future__ import annotations

import os
import shutil
from functools import cache
from typing import Any, NamedTuple

METHODS: dict[str, list[str]] = {
    "full": ["--learning_rate", "1e-4"],
    "lora": ["--use_peft", "--lora_rank", "8", "--target_modules", "all"],
    "qlora4": ["--qlora", "--lora_rank", "8", "--target_modules", "all"],
    "qlora8": ["--use_peft", "--load_in_8bit", "--lora_rank", "8", "--target_modules", "all"],
}
CONFIGS = (
    *("zero1", "zero2_offload", "zero3_offload", "zero2_bf16_states", "zero3_bf16_states", "zero3_hpz"),
    *("zero3_superoffload", "zero3_zeropp", "zero3_deepcompile", "zero3_nvme", "zero3_nvme_optimizer"),
)
ENGINES: dict[str, list[str]] = {
    "plain": [],
    # Without ZeRO hftune refuses bf16, which is the default on a GPU.
    "zero0": ["--deepspeed", "ds_configs/zero0.json", "--bf16", "False"],
    **{name: ["--deepspeed", f"ds_configs/{name}.json"] for name in ("zero2", "zero3", *CONFIGS)},
}
STAGES: dict[str, list[str]] = {
    "pt": ["--block_size", "1024"],
    "sft": ["--max_length", "1024"],
    "rm": ["--max_length", "1024"],
    "dpo": ["--max_length", "1024"],
    "rl": [
        *("--reward_funcs", "benchmarks/gpu_runs.py:brevity"),
        *("--max_completion_length", "32", "--num_generations", "4"),
    ],
    "distill": ["--max_length", "1024"],
}
SOME = ("plain", "zero2", "zero3")


class Run(NamedTuple):
    """One run of a script.

    Args:
        stage: A key of `STAGES`.
        method: A key of `METHODS`.
        engine: A key of `ENGINES`.
        extra: Further arguments.
    """

    stage: str
    method: str
    engine: str
    extra: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Unique, and fit for a folder."""
        words = (flag.strip("-").replace("/", "_") for flag in self.extra)
        return "-".join([self.stage, self.method, self.engine, *words])

    @property
    def zero3(self) -> bool:
        """Whether weights are partitioned."""
        return self.engine.startswith("zero3")

    def flags(self, folder: str, model: str) -> list[str]:
        """The arguments that make it this run of a model; `folder` takes what is offloaded to a disk."""
        given = ["--model_name_or_path", model, *STAGES[self.stage], *METHODS[self.method], *ENGINES[self.engine]]
        # A student that is its own teacher costs what any pair of one size costs.
        given += ["--teacher_model_name_or_path", model] if self.stage == "distill" else []
        given += self.extra
        given += ["--nvme_path", folder] if "nvme" in self.engine else []
        return given if "--activation_checkpointing" in self.extra else [*given, "--activation_checkpointing", "none"]


EXTRA = [
    Run("sft", "lora", "plain", ("--packing",)),
    Run("sft", "full", "zero2", ("--packing",)),
    Run("sft", "full", "plain", ("--fp8", "tensorwise")),
    Run("sft", "full", "zero2", ("--fp8", "rowwise", "--packing", "--torch_compile", "True")),
    Run("sft", "full", "plain", ("--optim", "muon")),
    Run("sft", "full", "zero3", ("--optim", "muon", "--max_grad_norm", "0")),
    Run("sft", "full", "plain", ("--optim", "paged_adamw_8bit")),
    Run("sft", "full", "zero2", ("--optim", "adamw_8bit")),
    Run("sft", "full", "zero2", ("--fp16", "True", "--bf16", "False")),
    Run("sft", "qlora4", "plain", ("--use_dora",)),
    Run("sft", "lora", "plain", ("--use_dora",)),
    Run("sft", "lora", "plain", ("--padding_free",)),
    Run("sft", "lora", "plain", ("--attn_implementation", "sdpa", "--packing")),
    Run("sft", "lora", "plain", ("--attn_implementation", "flex_attention", "--packing")),
    Run("sft", "full", "plain", ("--optim", "adamw_torch_fused")),
    Run("distill", "lora", "plain", ("--distill_mode", "on_policy", "--max_completion_length", "32")),
]
RECOMPUTING = [
    Run("sft", method, engine, ("--activation_checkpointing", *parts))
    for method, engine, ways in (
        ("full", "plain", (["full"], ["attention"], ["full", "--activation_checkpointing_offload", "True"])),
        ("full", "zero3", (["full"], ["attention"], ["full", "--activation_checkpointing_offload", "True"])),
        ("lora", "zero3", (["full", "--activation_checkpointing_offload", "True"],)),
    )
    for parts in ways
]
QUICK = [
    Run("sft", "lora", "plain", ("--packing",)),
    Run("dpo", "full", "zero2"),
    Run("sft", "qlora8", "zero3"),
]


BUILT = ("zero3_zeropp", "zero3_deepcompile", "zero3_nvme", "zero3_nvme_optimizer")
"""They build operators for CUDA as the run starts."""


def plan(*, quick: bool = False, compiler: bool = True) -> list[Run]:
    """The runs, the most telling first: a limit on time cuts the end off. Without a compiler, those that need none."""
    others = [stage for stage in STAGES if stage != "sft"]
    runs = [
        *(Run("sft", method, engine) for engine in SOME for method in METHODS),
        *EXTRA,
        *(Run(stage, method, "plain") for method in ("full", "lora", "qlora4") for stage in others),
        *(Run(stage, "lora", engine) for engine in ("zero2", "zero3") for stage in others),
        *(Run("sft", "full", engine) for engine in ENGINES if engine not in SOME),
        *RECOMPUTING,
    ]
    assert len({run.name for run in runs}) == len(runs), "two runs of one name would share a folder"
    return QUICK if quick else [run for run in runs if compiler or run.engine not in BUILT]


class Machine(NamedTuple):
    """What a machine has, as far as a run may need it.

    Args:
        gpu: A CUDA device.
        float8: One that multiplies in FP8, and torchao.
        cuda_compiler: What builds DeepSpeed's operators for it.
        async_files: What DeepSpeed's asynchronous files need.
    """

    gpu: bool
    float8: bool = True
    cuda_compiler: bool = True
    async_files: bool = True


@cache
def machine_here() -> Machine:
    """This one. Imports DeepSpeed."""
    import torch
    from torch.utils.cpp_extension import CUDA_HOME

    from hftune.models.kernels.float8 import has_float8, has_torchao

    return Machine(
        gpu=torch.cuda.is_available(),
        float8=has_torchao() and all(has_float8(recipe) for recipe in ("tensorwise", "rowwise")),
        cuda_compiler=CUDA_HOME is not None and _builds_operators(),
        async_files=_has_async_files(),
    )


def _builds_operators() -> bool:
    from children import search_path  # not above: hftune loads this file for its reward alone

    return all(shutil.which(name, path=search_path()) for name in (os.environ.get("CXX", "g++"), "ninja"))


def _has_async_files() -> bool:
    from hftune.distributed.launch import has_async_io

    try:
        return has_async_io()
    except ImportError:  # DeepSpeed is not here, or not whole: each run of its own will say so
        return False


def refusal(run: Run, machine: Machine) -> str | None:
    """A word of the reason for which hftune must refuse a run with exit code 2; None where the run must train."""
    if run.method == "qlora8" and run.zero3:
        return "8-bit weights under ZeRO-3"
    if "nvme" in run.engine and not machine.async_files:
        return "asynchronous files"
    if "--fp8" in run.extra and not machine.float8:
        return "FP8"
    if not machine.gpu:
        return _without_gpu(run)
    return None


def _without_gpu(run: Run) -> str | None:
    """What runs on a GPU alone."""
    configs = {
        "zero3_zeropp": "CUDA kernel",
        "zero3_superoffload": "SuperOffload",
        "zero3_deepcompile": "DeepCompile",
        "zero2_bf16_states": "not in bf16",
        "zero3_bf16_states": "not in bf16",
    }
    extra = {
        "paged_adamw_8bit": "there is no GPU",
        "flex_attention": "flex_attention has no backward pass",
        "--fp16": "does not train in fp16 on this CPU",
    }
    return next((extra[flag] for flag in run.extra if flag in extra), configs.get(run.engine))


def brevity(completions: list[Any], **_: Any) -> list[float]:
    """A reward for RL that costs nothing: short answers."""
    return [-float(len(str(completion))) for completion in completions]
