"""Every command that writes, as small as it can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

from tests.faults.injection.bench import FREE, OLD, Command, Stage
from tests.unit.checkpoints.zero_files import PARAMETERS
from tests.unit.checkpoints.zero_files import write as write_zero
from tests.unit.merging.models import make_adapter

RESULTS = ("merge", "consolidate", "score")
STARTS: dict[str, tuple[str, ...]] = dict.fromkeys((*RESULTS, "sft"), (FREE, OLD))
"""What is at the target before."""

# Logs are the last run's, whatever became of it.
_OF_A_RUN = (
    "trainer_state.json",
    "progress.jsonl",
    "completions.jsonl",
    "hftune.json",
    "README.md",
    "run.log",
    "run-rank1.log",
)
_QUICK = ["--use_cpu", "True", "--report_to", "none", "--per_device_train_batch_size", "2", "--save_total_limit", "1"]
_OUT = ["--output_dir", "{out}"]


def table(model: Path, data: Path, folder: Path) -> dict[str, Command]:
    """All commands.

    Args:
        model: A tiny model.
        data: Records of every stage.
        folder: For what some of them read.
    """
    return _results(model, data, folder) | _stages(model, data)


def _results(model: Path, data: Path, folder: Path) -> dict[str, Command]:
    modules: dict[str, Any] = {"target_modules": ["q_proj", "v_proj"], "r": 2}
    adapter, other = (str(make_adapter(model, folder / f"adapter{seed}", seed=seed, **modules)) for seed in (1, 2))
    checkpoint = str(write_zero(folder / "zero", 2, 2))
    doubled = [{name: 2 * value for name, value in group.items()} for group in PARAMETERS]
    checkpoint_before = str(write_zero(folder / "zero-before", 2, 2, doubled))
    judge = _reward_model(model, folder / "judge")
    quick = [*_OUT, "--verify", "False"]
    return {
        "merge": Command(
            ["merge_peft_adapter.py", "--peft_model_path", adapter, *quick], earlier=["--peft_model_path", other]
        ),
        "consolidate": Command(
            ["hftune", "consolidate", "--checkpoint", checkpoint, *_OUT], earlier=["--checkpoint", checkpoint_before]
        ),
        "score": Command(
            ["hftune", "score", f"{data}/pairs", "--model", str(judge), "--output", "{out}", "--use_cpu"],
            earlier=["--max_length", "16"],
            overwrite=["--overwrite_output"],
        ),
    }


def _stages(model: Path, data: Path) -> dict[str, Command]:
    """One process each; what writes is the same in all stages."""
    shared = ["--model_name_or_path", str(model), *_OUT, *_QUICK, "--learning_rate", "1e-3"]
    shared += ["--train_file_dir", f"{data}/sft"]
    words, earlier = ["run_sft.py", *shared, "--max_steps", "1"], ["--learning_rate", "1e-2"]
    return {"sft": Command(words, earlier=earlier, changing=_OF_A_RUN, sampled=True, kind=Stage)}


def _reward_model(model: Path, folder: Path) -> Path:
    """The model with a head that scores."""
    torch.manual_seed(2)
    config = LlamaConfig.from_pretrained(model, num_labels=1)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder
