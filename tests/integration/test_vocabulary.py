"""New tokens through the stages, two processes under ZeRO-3: only what should move moves, and all reloads strictly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hftune.checkpoints.manifest import read_manifest
from hftune.models.vocabulary import grow, recorded_growth

from .conftest import LAUNCHERS

ADD = ("--add_tokens", "plus 3,is 1", "--add_special_tokens", "<tool>", "--pad_vocab_to_multiple_of", "64")
BASE, TOKENS, ROWS = 281, 284, 320
NEW = [281, 282, 283]


@pytest.fixture(scope="session")
def untied(tiny_model: Path, workspace: Path) -> Path:
    """The tiny model with a head of its own."""
    folder = workspace / "tiny-untied"
    model = AutoModelForCausalLM.from_pretrained(tiny_model, tie_word_embeddings=False)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.lm_head.weight, std=0.2)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return folder


@pytest.fixture
def train(run: Callable, tiny_data: Path) -> Callable[..., list[float]]:
    """Train a stage for ten steps; returns its losses."""

    def once(stage: str, mode: str, model: Path, output: Path, *flags: str) -> list[float]:
        launcher, mode_flags, processes = LAUNCHERS[mode]
        run(
            f"run_{stage}.py",
            *mode_flags,
            *("--model_name_or_path", str(model), "--output_dir", str(output)),
            *("--train_file_dir", str(tiny_data / stage), "--validation_file_dir", str(tiny_data / f"{stage}_eval")),
            *("--per_device_train_batch_size", str(4 // processes), "--max_steps", "10", "--logging_steps", "1"),
            *("--lr_scheduler_type", "constant", "--gradient_checkpointing", "False", "--save_strategy", "no"),
            *(("--block_size", "32") if stage == "pt" else ()),
            *flags,
            launcher=launcher,
            warm=True,
        ).check()
        history = json.loads((output / "trainer_state.json").read_text())["log_history"]
        return [entry["loss"] for entry in history if "loss" in entry]

    return once


@pytest.fixture
def merge(run: Callable) -> Callable[[Path, Path], Path]:
    def once(adapter: Path, output: Path) -> Path:
        paths = ("--peft_model_path", str(adapter), "--output_dir", str(output))
        run("merge_peft_adapter.py", *paths, warm=True).check()
        return output

    return once


def reload_strictly(folder: Path) -> Any:
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size == model.get_input_embeddings().weight.shape[0] == ROWS
    assert len(tokenizer) == TOKENS and tokenizer.encode("2 plus 3<tool>")[-2:] == [281, 283]
    return model


def moved_rows(model: Any, begun: Any) -> list[list[int]]:
    """Rows of embeddings and head that are not those that training began with, bit for bit."""
    found = []
    for table in ("get_input_embeddings", "get_output_embeddings"):
        before = getattr(begun, table)().weight
        found.append((getattr(model, table)().weight != before).any(1).nonzero().flatten().tolist())
    return found


@pytest.mark.slow
def test_pt_with_lora_then_merge_then_sft(train: Callable, merge: Callable, tiny_model: Path, tmp_path: Path) -> None:
    lora = ("--use_peft", "--lora_rank", "4", "--learning_rate", "1e-2")
    losses = train("pt", "zero3", tiny_model, tmp_path / "pt", *ADD, *lora)
    assert losses[-1] < losses[0]
    model = reload_strictly(merge(tmp_path / "pt", tmp_path / "merged"))
    # The rows that ZeRO-3 trained with are those that the record makes here, but for the new ones.
    growth = recorded_growth(read_manifest(tmp_path / "pt"))
    begun = AutoModelForCausalLM.from_pretrained(tiny_model)
    assert growth is not None and growth.base_rows == BASE and growth.ids == NEW
    grow(begun, growth)
    embeddings, head = moved_rows(model, begun)
    assert embeddings == head and 281 in head and set(head) <= set(NEW)
    losses = train("sft", "zero3", tmp_path / "merged", tmp_path / "sft", "--learning_rate", "1e-3")
    assert losses[-1] < losses[0]
    reload_strictly(tmp_path / "sft")
    about = json.loads((tmp_path / "sft" / "hftune.json").read_text())["vocabulary"]
    assert about == {"rows": ROWS, "tied": True, "new_tokens": [[281, 283]], "growth": None}


@pytest.mark.slow
def test_pt_in_full_then_only_the_new_rows(train: Callable, merge: Callable, untied: Path, tmp_path: Path) -> None:
    full = train("pt", "zero3", untied, tmp_path / "pt", *ADD, "--learning_rate", "1e-3")
    alone = train("pt", "single", untied, tmp_path / "pt1", *ADD, "--learning_rate", "1e-3")
    assert full == pytest.approx(alone, abs=1e-3)  # the same weights, and the same steps, as without ZeRO
    begun = reload_strictly(tmp_path / "pt")
    rows = ("--train_new_tokens_only", "--learning_rate", "1e-2")
    sharded = train("sft", "zero3", tmp_path / "pt", tmp_path / "sft", *rows)
    whole = train("sft", "single", tmp_path / "pt", tmp_path / "sft1", *rows)
    assert sharded == pytest.approx(whole, abs=1e-3) and sum(sharded[5:]) < sum(sharded[:5])
    for run in ("sft", "sft1"):
        model = reload_strictly(merge(tmp_path / run, tmp_path / f"{run}-merged"))
        embeddings, head = moved_rows(model, begun)
        assert set(embeddings) <= set(NEW) and head and set(head) <= set(NEW)
        changed = {name for name, value in model.state_dict().items() if not value.equal(begun.state_dict()[name])}
        assert changed <= {"model.embed_tokens.weight", "lm_head.weight"}
