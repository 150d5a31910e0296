"""Bases that the tests of merging and of export share; no test leaves another a launcher's variables or its notices."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hftune import logging
from tests.architectures import make_model

LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def without_launcher() -> Iterator[None]:
    """Take away the variables by which arguments with `--deepspeed` make this process a world of one, and the config.

    The config lives as long as the arguments: until they are collected, models would be loaded under ZeRO-3.
    """
    yield
    for name in LAUNCHED:
        os.environ.pop(name, None)
    if integration := sys.modules.get("transformers.integrations.deepspeed"):
        integration.unset_hf_deepspeed_config()


@pytest.fixture(autouse=True)
def without_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notice is said once in a process: what an earlier test has said would be missing, or counted, in this one."""
    monkeypatch.setattr(logging, "_notices", [])


@pytest.fixture(scope="session")
def tiny_adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that changes what the tiny model says."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("adapter") / "adapter"
    torch.manual_seed(5)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_rewards(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An outcome ("score") and a process reward model ("steps"), whose scores have mean 0.25 and deviation 0.5."""
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

    from hftune.checkpoints.reward_scale import RewardScale

    found = {}
    kinds: dict[str, Any] = {"score": AutoModelForSequenceClassification, "steps": AutoModelForTokenClassification}
    for labels, (kind, auto) in enumerate(kinds.items(), start=1):
        torch.manual_seed(3)
        model = auto.from_pretrained(tiny_model, num_labels=labels)
        model.score.weight.data.normal_()
        model.config.reward_scale = RewardScale(0.25, 0.5, 10, "held-out records").to_dict()
        found[kind] = tmp_path_factory.mktemp("rewards") / kind
        model.save_pretrained(found[kind])
        AutoTokenizer.from_pretrained(tiny_model).save_pretrained(found[kind])
    return found


@pytest.fixture(scope="session")
def make_base(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`make_base("qwen2", tie_word_embeddings=True, shard="60KB", dtype=torch.bfloat16)`, made once."""
    made: dict[str, Path] = {}

    def once(name: str = "llama", **changes: Any) -> Path:
        key = f"{name}-{sorted(changes.items())}"
        if key not in made:
            made[key] = _make(name, tmp_path_factory.mktemp("base"), dict(changes))
        return made[key]

    return once


def _make(name: str, folder: Path, changes: dict[str, Any]) -> Path:
    shard, dtype = changes.pop("shard", None), changes.pop("dtype", None)
    if name == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        config = GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=320, initializer_range=0.1)
        GPT2LMHeadModel(config).save_pretrained(folder)
    else:
        make_model(name, folder, **changes)
    if shard or dtype:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype or torch.float32)
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder, max_shard_size=shard or "5GB")
    return folder
