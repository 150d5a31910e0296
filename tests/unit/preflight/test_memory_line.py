"""The line of memory before a run: arithmetic, by hand; and a word where it will probably not fit."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig

from hftune.arguments.entry import parse_arguments
from hftune.preflight import memory_line, run_memory
from hftune.preflight.activations import activation_bytes, layer_bytes
from hftune.preflight.facts import resolve
from hftune.preflight.memory import GIB, Free, ModelSize, Setup
from hftune.preflight.memory_line import say_memory
from hftune.preflight.rules import model as model_rules
from hftune.preflight.rules.model import check_model

CONFIG = LlamaConfig(
    vocab_size=100, hidden_size=8, intermediate_size=32, num_hidden_layers=6, num_attention_heads=2, head_dim=4
)
LAYER = 8 * 34 * (1 + 19 / 34 * 0.5)
"""Bytes a token in 16 bit: the MLP has 4 hidden sizes, and 3 matrices for 2."""


def arguments(stage: str, tmp_path: Path, *flags: str) -> Any:
    given = ["--model_name_or_path", str(tmp_path), "--output_dir", "o", "--use_cpu", "True", "--bf16", "False"]
    if stage == "rl":
        given += ["--reward_funcs", "length", "--num_generations", "2"]
    return parse_arguments(stage, [*given, *flags])[3]


def test_what_a_layer_keeps() -> None:
    assert layer_bytes(CONFIG, 10, 5, 2, keeps_scores=False) == pytest.approx(10 * LAYER)
    assert layer_bytes(CONFIG, 10, 5, 4, keeps_scores=False) == pytest.approx(20 * LAYER)
    with_scores = layer_bytes(CONFIG, 10, 5, 4, keeps_scores=True) - layer_bytes(CONFIG, 10, 5, 4, keeps_scores=False)
    assert with_scores == pytest.approx(5 * 2 * 10 * 5 * 2)


@pytest.mark.parametrize(
    "stage, flags, tokens",
    [
        ("sft", ("--max_length", "64", "--per_device_train_batch_size", "3"), 3 * 64),
        ("sft", ("--max_length", "64", "--per_device_train_batch_size", "1"), 64),
        ("pt", ("--block_size", "32", "--per_device_train_batch_size", "2"), 2 * 32),
        ("rm", ("--max_length", "64", "--per_device_train_batch_size", "3"), 2 * 3 * 64),
        ("dpo", ("--max_length", "64", "--per_device_train_batch_size", "3"), 2 * 3 * 64),
        ("rl", ("--max_completion_length", "16", "--per_device_train_batch_size", "2"), 2 * (512 + 16)),
    ],
)
def test_what_a_step_keeps(stage: str, flags: tuple[str, ...], tokens: int, tmp_path: Path) -> None:
    plain = arguments(stage, tmp_path, *flags, "--gradient_checkpointing", "False")
    assert activation_bytes(CONFIG, plain, 2) == pytest.approx(6 * tokens * LAYER)
    again = arguments(stage, tmp_path, *flags, "--activation_checkpointing", "full")
    assert activation_bytes(CONFIG, again, 2) == pytest.approx(tokens * (LAYER + 6 * 8 * 2))


def test_some_layers_are_recomputed_and_logits_are_kept_where_the_loss_needs_all(tmp_path: Path) -> None:
    flags = ("--max_length", "64", "--per_device_train_batch_size", "1", "--activation_checkpointing")
    third = arguments("sft", tmp_path, *flags, "full", "--activation_checkpointing_layers", "0-1")
    assert activation_bytes(CONFIG, third, 2) == pytest.approx(64 * (5 * LAYER + 2 * 8 * 2))
    parts = arguments("sft", tmp_path, *flags, "attention")
    assert activation_bytes(CONFIG, parts, 2) == pytest.approx(64 * 6 * LAYER)
    smoothed = arguments("sft", tmp_path, *flags, "none", "--label_smoothing_factor", "0.1")
    assert activation_bytes(CONFIG, smoothed, 2) == pytest.approx(64 * (6 * LAYER + 14 * 100))


SIZE = ModelSize(weights=GIB, trained=GIB, packed=GIB // 2)
ON_GPU = Setup(weight_bytes=2.0)
"""2 GiB of weights, 2 of gradients, 8 of Adam's states."""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(memory_line, "notice", found.append)
    logger = SimpleNamespace(info=lambda text, *values: found.append(text % values))
    monkeypatch.setattr(memory_line, "get_logger", lambda: logger)
    return found


def test_the_line(said: list[str]) -> None:
    say_memory(SIZE, ON_GPU, 1.5 * GIB, Free(14 * GIB, 99 * GIB), lambda: GIB // 100)
    assert said == [
        "memory: about 13.50 GiB a process (weights 2.00, gradients 2.00, optimizer 8.00, activations 1.50), "
        "2.0 in the machine's memory; 14.0 GiB free"
    ]


def test_a_way_out_that_fits_with_its_activations(said: list[str]) -> None:
    say_memory(SIZE, ON_GPU, 2.5 * GIB, Free(14 * GIB, 99 * GIB), lambda: GIB // 100)
    assert said[1].startswith("this will probably run out of memory at its peak. To fix it, add --deepspeed ds_conf")
    assert said[1].endswith("zero3_offload.json; `hftune plan` shows more ways")
    said.clear()
    say_memory(SIZE, ON_GPU, 20 * GIB, Free(14 * GIB, 99 * GIB), lambda: GIB // 100)
    assert "Smaller micro batches, shorter rows or more processes may fix it" in said[1]


def test_processes_of_a_cpu_share_one_memory(said: list[str]) -> None:
    setup = Setup(weight_bytes=2.0, on_cpu=True, local_processes=2)
    say_memory(SIZE, setup, GIB, Free(27 * GIB, 27 * GIB), lambda: GIB // 100)
    assert said == [
        "memory: about 13.00 GiB a process (weights 2.00, gradients 2.00, optimizer 8.00, activations 1.00); "
        "27.0 GiB free"
    ]
    said.clear()
    say_memory(SIZE, setup, GIB, Free(25 * GIB, 25 * GIB), lambda: GIB // 100)
    assert len(said) == 2


def test_a_model_that_takes_no_adapter(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 1}')
    given = parse_arguments(
        "sft", ["--model_name_or_path", str(tmp_path), "--output_dir", "o", "--use_cpu", "True", "--bf16", "False"]
    )
    assert list(check_model(resolve("sft", given))) == [] and len(said) == 1
    monkeypatch.setattr(run_memory, "free_memory", lambda **_: Free(device=1e3, host=1e3))
    (problem,) = check_model(resolve("sft", given))
    assert "the model does not fit" in str(problem) and "--use_peft" in str(problem)

    def takes_none(*_: Any) -> int:
        raise NotImplementedError

    monkeypatch.setattr(model_rules, "adapter_parameters", takes_none)
    (problem,) = check_model(resolve("sft", given))
    assert "the model does not fit" in str(problem) and "--use_peft" not in str(problem)


def test_split_matrices() -> None:
    assert ModelSize(8, 6, 4, 2, 2).shared(2) == ModelSize(4, 3, 2, 1, 1)


def test_before_a_run(
    tiny_model: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said; what certainly does not fit is refused, what probably does not is a notice with a way out."""
    logging.getLogger("hftune").propagate = True
    flags = ["--model_name_or_path", str(tiny_model), "--output_dir", "o", "--use_cpu", "True"]
    given = parse_arguments("sft", [*flags, "--max_length", "512", "--bf16", "False"])
    assert list(check_model(resolve("sft", given))) == []
    assert len(said) == 1 and said[0].startswith("memory: about 0.0")
    # 100k weights take 2 MB, and the activations of 4 rows of 512 tokens some 20.
    small = Free(device=8e6, host=8e6)
    monkeypatch.setattr(run_memory, "free_memory", lambda **_: small)
    said.clear()
    assert list(check_model(resolve("sft", given))) == []
    assert len(said) == 2 and said[1].startswith("this will probably run out of memory at its peak.")
