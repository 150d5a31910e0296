"""The real model learns Chinese words: the bar of `hftune vocab`, and PT, merge and SFT on what it made."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from hftune.cli import dispatch

ROOT = Path(__file__).parents[2]
PRETRAIN, HELD_OUT = (ROOT / "examples" / "data" / name for name in ("pretrain_zh", "pretrain_zh_eval"))


@pytest.fixture(scope="module")
def smollm2(workspace: Path) -> Path:
    sys.path.insert(0, str(ROOT / "examples"))
    from base_model import prepare_base

    kept = ROOT / "outputs" / "base" / "SmolLM2-135M-Instruct"
    folder = kept if (kept / "SOURCE").is_file() else workspace / "SmolLM2-135M-Instruct"
    prepare_base(folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_chinese_words_for_smollm2(smollm2: Path, run: Callable, tmp_path: Path) -> None:
    grown = tmp_path / "grown"
    corpus = ("--train_file_dir", str(PRETRAIN), "--validation_file_dir", str(HELD_OUT))
    size = ("--new_tokens", "1000", "--min_frequency", "1", "--pad_vocab_to_multiple_of", "64")
    dispatch(["vocab", "extend", "--model_name_or_path", str(smollm2), *corpus, *size, "--output_dir", str(grown)])
    figures = json.loads((grown / "hftune.json").read_text())["metrics"]["tokens_per_character"]
    assert figures["saved"] >= 1 / 3
    assert len(AutoTokenizer.from_pretrained(grown)) == 49152 + 1000

    two = ("--deepspeed", "ds_configs/zero3.json", "--max_steps", "4", "--per_device_train_batch_size", "1")
    small = (*two, "--logging_steps", "1", "--save_strategy", "no", "--use_peft", "--train_file_dir")
    launcher = "deepspeed --num_gpus 2"
    pt, merged, sft = (tmp_path / name for name in ("pt", "merged", "sft"))
    rows = ("--lora_modules_to_save", "embed_tokens", "--block_size", "64")
    flags = ("--model_name_or_path", str(grown), "--output_dir", str(pt), *rows)
    run("run_pt.py", *small, str(PRETRAIN), *flags, launcher=launcher).check()
    run("merge_peft_adapter.py", "--peft_model_path", str(pt), "--output_dir", str(merged)).check()
    chats = (str(ROOT / "examples" / "data" / "sft"), "--max_length", "128")
    run(
        "run_sft.py", *small, *chats, "--model_name_or_path", str(merged), "--output_dir", str(sft), launcher=launcher
    ).check()
    final = tmp_path / "final"
    run("merge_peft_adapter.py", "--peft_model_path", str(sft), "--output_dir", str(final)).check()
    for folder in (merged, final):
        model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert model.get_input_embeddings().weight.shape[0] == model.config.vocab_size == 50176
        assert model.config.tie_word_embeddings
        assert len(AutoTokenizer.from_pretrained(folder)) == 50152
