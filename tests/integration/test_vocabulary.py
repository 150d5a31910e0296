"""New tokens through the stages, two processes under ZeRO-3: only what should move moves, and all reloads strictly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from hftune.checkpoints.manifest import read_manifest
from hftune.models.vocabulary import grow, recorded_growth
from tests.conftest import logged

ADD = ("--add_tokens", "plus 3,is 1", "--add_special_tokens", "<tool>", "--pad_vocab_to_multiple_of", "64")
BASE, TOKENS, ROWS = 281, 284, 320
NEW = [281, 282, 283]


def train(run: Callable, data: Path, stage: str, model: Path, output: Path, *flags: str) -> None:
    """Ten steps of a stage on two processes under ZeRO-3, which bring the loss down."""
    run(
        f"run_{stage}.py",
        *("--deepspeed", "ds_configs/zero3.json", "--model_name_or_path", str(model), "--output_dir", str(output)),
        *("--train_file_dir", str(data / stage), "--validation_file_dir", str(data / f"{stage}_eval")),
        *("--per_device_train_batch_size", "2", "--max_steps", "10", "--logging_steps", "1", "--save_strategy", "no"),
        *("--lr_scheduler_type", "constant", "--gradient_checkpointing", "False"),
        *(("--block_size", "32") if stage == "pt" else ()),
        *flags,
        launcher="deepspeed --num_gpus 2",
        warm=True,
    ).check()
    losses = logged(output)
    assert losses[-1] < losses[0]


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
def test_pt_with_lora_then_merge_then_sft(run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    lora = ("--use_peft", "--lora_rank", "4", "--learning_rate", "1e-2")
    train(run, tiny_data, "pt", tiny_model, tmp_path / "pt", *ADD, *lora)
    paths = ("--peft_model_path", str(tmp_path / "pt"), "--output_dir", str(tmp_path / "merged"))
    run("merge_peft_adapter.py", *paths, warm=True).check()
    model = reload_strictly(tmp_path / "merged")
    # The rows that ZeRO-3 trained with are those that the record makes here, but for the new ones.
    growth = recorded_growth(read_manifest(tmp_path / "pt"))
    begun = AutoModelForCausalLM.from_pretrained(tiny_model)
    assert growth is not None and growth.base_rows == BASE and growth.ids == NEW
    grow(begun, growth)
    embeddings, head = moved_rows(model, begun)
    assert embeddings == head and 281 in head and set(head) <= set(NEW)
    train(run, tiny_data, "sft", tmp_path / "merged", tmp_path / "sft", "--learning_rate", "1e-3")
    reload_strictly(tmp_path / "sft")
    about = json.loads((tmp_path / "sft" / "hftune.json").read_text())["vocabulary"]
    assert about == {"rows": ROWS, "tied": True, "new_tokens": [[281, 283]], "growth": None}
