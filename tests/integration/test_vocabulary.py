"""New tokens through the stages: PT with them, merge, SFT; two processes, ZeRO-3; what is saved reloads strictly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hftune.checkpoints.manifest import read_manifest
from hftune.models.vocabulary import recorded_growth, resized_rows

ADD = ("--add_tokens", "plus 3,is 1", "--add_special_tokens", "<tool>", "--pad_vocab_to_multiple_of", "64")
EMBEDDINGS = "model.embed_tokens.weight"


def reload_strictly(folder: Path) -> AutoModelForCausalLM:
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size == model.get_input_embeddings().weight.shape[0] == 320 > len(tokenizer) == 284
    assert tokenizer.encode("2 plus 3<tool>")[-2:] == [281, 283]
    return model


@pytest.fixture(scope="session")
def untied(tiny_model: Path, workspace: Path) -> Path:
    """The tiny model with a head of its own."""
    folder = workspace / "tiny-untied"
    if not folder.exists():
        model = AutoModelForCausalLM.from_pretrained(tiny_model, tie_word_embeddings=False)
        torch.manual_seed(1)
        torch.nn.init.normal_(model.lm_head.weight, std=0.2)
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_pt_lora_merge_sft_under_zero3(
    stage_run: Callable, run: Callable, tiny_model: Path, untied: Path, tmp_path: Path, tied: bool
) -> None:
    base = tiny_model if tied else untied
    pt = stage_run("pt", "lora", "zero3", (*ADD, "--model_name_or_path", str(base)))
    assert pt.losses[-1] < pt.losses[0]
    merged = tmp_path / "merged"
    flags = ("--peft_model_path", str(pt.folder), "--output_dir", str(merged))
    run("merge_peft_adapter.py", *flags).check()
    model = reload_strictly(merged)
    assert model.config.tie_word_embeddings == tied
    # Only the rows of new tokens have moved, in both tables: the others and the padding are those of the growth.
    growth = recorded_growth(read_manifest(pt.folder))
    begun = AutoModelForCausalLM.from_pretrained(base)
    for table in ("get_input_embeddings", "get_output_embeddings"):
        expected = resized_rows(getattr(begun, table)().weight, growth)
        moved = (getattr(model, table)().weight != expected).any(1).nonzero().flatten().tolist()
        assert moved == [281, 282] or moved == [281, 282, 283]
    sft = stage_run("sft", "full", "zero3", ("--model_name_or_path", str(merged)))
    assert sft.losses[-1] < sft.losses[0]
    assert sft.manifest["vocabulary"]["rows"] == 320 and sft.manifest["vocabulary"]["new_tokens"] == [[281, 283]]
    reload_strictly(sft.folder)
