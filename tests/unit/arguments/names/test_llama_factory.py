"""LLaMA-Factory's example files (2026-08): each parses as it is, or every argument that it must lose is named."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from hftune.tools.pipeline.checking import stage_problems

ALL = (
    "trust_remote_code=True stage=sft do_train=True dataset=identity,alpaca_en_demo cutoff_len=2048 max_samples=1000 "
    "overwrite_cache=True preprocessing_num_workers=16 dataloader_num_workers=4 logging_steps=10 save_steps=500 "
    "plot_loss=True overwrite_output_dir=True save_only_model=False report_to=none per_device_train_batch_size=1 "
    "gradient_accumulation_steps=8 num_train_epochs=3.0 lr_scheduler_type=cosine warmup_ratio=0.1 bf16=True "
    "ddp_timeout=180000000 learning_rate=0.0001 model_name_or_path=m output_dir=o"
)
"""What most of them have; a file of its own words wins."""
STAGES = {"pt": "pt", "sft": "sft", "rm": "rm", "dpo": "dpo", "kto": "dpo", "ppo": "rl"}
with (Path(__file__).parent / "llama_factory.csv").open(encoding="utf-8") as _file:
    EXAMPLES = {row["example"]: row for row in csv.DictReader(_file)}


def arguments_of(text: str) -> dict[str, list[str]]:
    pairs = (word.partition("=") for word in text.split(" "))
    return {name: value.split(",") if name == "fsdp" else [value] for name, _, value in pairs}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_parses_or_says_what_differs(name: str) -> None:
    given = arguments_of(f"{ALL} {EXAMPLES[name]['arguments']}")
    problems = list(stage_problems(STAGES[given["stage"][0]], given, {}, (8, 8)))
    named = [re.search(r"--(\w+)", f"{problem.cause} {problem.place or ''}") for problem in problems]
    assert sorted(match[1] if match else "" for match in named) == EXAMPLES[name]["refused"].split()
    assert all(problem.fix for problem in problems)
