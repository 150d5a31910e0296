"""Attention over shared rows, model by model: logits and gradients of slices are those of the whole row."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from hftune.data.collators import FlatCollator, sliced
from hftune.distributed import sequence_parallel
from hftune.distributed.ranks import Mesh
from hftune.models.attention.segments import SEGMENTS
from hftune.models.attention.ulysses import ULYSSES
from tests.architectures import make_config
from tests.forks import fork_and_wait

PROCESSES = 3
"""For 4 heads on 2 or 1 heads of keys, and 31 tokens: nothing divides."""
LENGTHS = (3, 17, 11)

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "mistral": {"sliding_window": 4},
    "gemma2": {},  # soft caps, and windows in every other layer
    "gemma3_text": {},
    "phi": {},  # all heads have keys of their own
    "deepseek_v3": {},  # latent attention: keys and values of unlike sizes
    "gpt_oss": {"num_local_experts": 4, "head_dim": 8, "sliding_window": 4},  # sinks
    "llama, one head of keys": {"num_key_value_heads": 1},
}


def made(name: str, attention: str) -> Any:
    torch.manual_seed(0)
    config = make_config(name.split(",")[0], **MODELS[name]) if name != "gpt_oss" else _gpt_oss()
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32).train()


def _gpt_oss() -> Any:
    from transformers import GptOssConfig

    return GptOssConfig(
        vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=4,
    )  # fmt: skip


def row() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(3, 250, (length,), generator=generator).tolist() for length in LENGTHS]
    return FlatCollator()([{"input_ids": document, "labels": document} for document in ids])


def of_the_whole(name: str, weights: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits, and gradients of their weighted sum."""
    model, batch = made(name, SEGMENTS), row()
    del batch["labels"]
    logits = model(**batch).logits
    (logits * weights).sum().backward()
    return logits.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def compare(name: str) -> None:
    """In every process: its slice of the logits, and the sum of all gradients."""
    group = sequence_parallel.active_group()
    weights = torch.randn(1, sum(LENGTHS), 320, generator=torch.Generator().manual_seed(1))
    whole, gradients = of_the_whole(name, weights[..., : made(name, SEGMENTS).config.vocab_size])
    model, batch = made(name, ULYSSES), sliced(row(), group.slice_of, group.size)
    del batch["labels"], batch["shift_labels"]
    part = group.slice_of(sum(LENGTHS))
    logits = model(**batch).logits
    torch.testing.assert_close(logits, whole[:, part], rtol=1e-4, atol=1e-5)
    (logits * weights[:, part, : logits.shape[-1]]).sum().backward()
    for key, parameter in model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.all_reduce(gradient)
        expected = gradients.get(key, torch.zeros_like(gradient))
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}")


def work(names: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sequence_parallel.join_group(Mesh(world=PROCESSES, sequence=PROCESSES))
    for name in names:
        compare(name)
        os.write(1, f"same: {name}\n".encode())
    dist.destroy_process_group()


def in_processes(what: Callable[[], None], tmp_path: Path) -> str:
    log = tmp_path / "log"
    if dist.is_initialized():
        dist.destroy_process_group()  # a world of one, of an earlier test
    code = fork_and_wait(what, log, PROCESSES, limit=120)
    said = log.read_text()
    assert code == 0, said[-4000:]
    return said


def test_every_kind_of_attention(tmp_path: Path) -> None:
    said = in_processes(partial(work, tuple(MODELS)), tmp_path)
    assert all(said.count(f"same: {name}\n") == PROCESSES for name in MODELS)
