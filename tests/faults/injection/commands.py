"""Every command that writes, as small as it can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

from tests.converter import stand_in
from tests.faults.injection.bench import FREE, INTERRUPTED, OLD, Command, DryRun, Pages, Pipeline, Stage
from tests.unit.checkpoints.zero_files import PARAMETERS
from tests.unit.checkpoints.zero_files import write as write_zero
from tests.unit.merging.models import make_adapter

RESULTS = (
    *("merge", "export vllm", "export gguf", "export ollama"),
    *("consolidate", "tokenize", "score", "teach", "evaluate", "sample", "data check"),
)
PAGES = ("report", "export hub --card_only", "ask")
STAGES = ("sft", "sft resumed", "sft zero2", "sft zero3", "pt", "rm", "dpo", "rl", "distill")
PIPELINES = ("pipeline run", "pipeline run --dry_run")
STARTS: dict[str, tuple[str, ...]] = dict.fromkeys((*RESULTS, *PAGES, *STAGES, *PIPELINES), (FREE, OLD)) | {
    "data check": (FREE,),
    "sft resumed": (INTERRUPTED,),
    "pipeline run --dry_run": (OLD,),
}
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
# What writes is the same in all stages: SFT is tried at each kind of call, the others share the kinds among them.
_SHARES = {"sft zero2": (0, 2), "sft zero3": (1, 2)}
_SHARES |= {name: (place, 5) for place, name in enumerate(("pt", "rm", "dpo", "rl", "distill"))}
_QUICK = ["--use_cpu", "True", "--report_to", "none", "--per_device_train_batch_size", "2", "--save_total_limit", "1"]
_OUT = ["--output_dir", "{out}"]
_PIPELINE = """model: {model}
output_dir: {out}
shared: {use_peft: true, lora_rank: 2, learning_rate: {rate}, max_steps: 1, per_device_train_batch_size: 2,
  gradient_checkpointing: false, use_cpu: true, report_to: none}
stages:
  sft: {train_file_dir: {data}/sft}
answers: {questions: ['Who?'], max_new_tokens: 2}
"""


def table(model: Path, data: Path, folder: Path) -> dict[str, Command]:
    """All commands.

    Args:
        model: A tiny model.
        data: Records of every stage.
        folder: For what some of them read.
    """
    found = _results(model, data, folder) | _measurements(model, data) | _pages(model, folder)
    return found | _stages(model, data, folder) | _pipelines(model, data)


def _results(model: Path, data: Path, folder: Path) -> dict[str, Command]:
    of = ["--model_name_or_path", str(model)]
    modules: dict[str, Any] = {"target_modules": ["q_proj", "v_proj"], "r": 2}
    adapter, other = (str(make_adapter(model, folder / f"adapter{seed}", seed=seed, **modules)) for seed in (1, 2))
    checkpoint = str(write_zero(folder / "zero", 2, 2))
    doubled = [{name: 2 * value for name, value in group.items()} for group in PARAMETERS]
    checkpoint_before = str(write_zero(folder / "zero-before", 2, 2, doubled))
    tuned, judge = _tuned(model, folder / "tuned"), _reward_model(model, folder / "judge")
    quick = [*_OUT, "--verify", "False"]
    converter = ["--converter", stand_in(folder / "converter")]
    return {
        "merge": Command(
            ["merge_peft_adapter.py", "--peft_model_path", adapter, *quick], earlier=["--peft_model_path", other]
        ),
        "export vllm": Command(["hftune", "export", "vllm", *of, *quick], earlier=["--dtype", "float32"]),
        "export gguf": Command(["hftune", "export", "gguf", *of, *quick, *converter], earlier=["--outtype", "f16"]),
        "export ollama": Command(
            ["hftune", "export", "ollama", *of, *quick, *converter], earlier=["--system", "Be brief."]
        ),
        "consolidate": Command(
            ["hftune", "consolidate", "--checkpoint", checkpoint, *_OUT], earlier=["--checkpoint", checkpoint_before]
        ),
        "tokenize": Command(
            ["hftune", "tokenize", "run_sft", *of, "--train_file_dir", f"{data}/sft", *_OUT],
            earlier=["--train_file_dir", f"{data}/sft_eval"],
        ),
        "score": Command(
            ["hftune", "score", f"{data}/pairs", "--model", str(judge), "--output", "{out}", "--use_cpu"],
            earlier=["--max_length", "16"],
            overwrite=["--overwrite_output"],
        ),
        "teach": Command(
            [
                "hftune",
                "teach",
                *of,
                "--teacher_model_name_or_path",
                str(tuned),
                "--train_file_dir",
                f"{data}/sft",
                *_OUT,
            ],
            earlier=["--top_k", "3"],
            aside=(".out.partial", ".out.shards"),
        ),
    }


def _measurements(model: Path, data: Path) -> dict[str, Command]:
    """What looks at models and data; parts that are finished wait next to the target."""
    parts = (".out.partial", ".out.parts")
    prompts = ["--model_name_or_path", str(model), "--train_file_dir", f"{data}/prompts"]
    scored = ["--reward_funcs", "length", "--keep", "best", "--num_generations", "2", "--max_new_tokens", "2"]
    return {
        "evaluate": Command(
            [
                *("hftune", "evaluate", str(model), "--eval_tasks", "loss", "exact_match", "--max_new_tokens", "2"),
                *("--validation_file_dir", f"{data}/sft_eval", "--use_cpu", *_OUT),
            ],
            earlier=["--max_eval_samples", "2"],
            aside=parts,
        ),
        "sample": Command(
            ["hftune", "sample", *prompts, *scored, "--use_cpu", *_OUT], earlier=["--seed", "7"], aside=parts
        ),
        "data check": Command(["hftune", "data", "check", f"{data}/sft", "--preprocessing_num_workers", "1", *_OUT]),
    }


def _pages(model: Path, folder: Path) -> dict[str, Command]:
    run = folder / "a-run"
    run.mkdir()
    manifest = {"stage": "sft", "status": "complete", "base": {"name": str(model)}, "metrics": {"train_loss": 1.0}}
    (run / "hftune.json").write_text(json.dumps(manifest))
    (run / "mine.txt").write_text("mine")
    asked = ["hftune", "ask", "--models", str(model), "--max_new_tokens", "2", "--use_cpu", "--questions"]
    return {
        "report": Command(
            ["hftune", "report", "{out}"], overwrite=[], into=run, owned=("report.html", "report.md"), kind=Pages
        ),
        "export hub --card_only": Command(
            ["hftune", "export", "hub", "--model_name_or_path", "{out}", "--card_only", "True"],
            overwrite=[],
            into=run,
            owned=("README.md",),
            kind=Pages,
        ),
        "ask": Command(
            [*asked, "Who?", *_OUT],
            earlier=["--questions", "Where?"],
            overwrite=[],
            owned=("answers.json", "hftune.json"),
            kind=Pages,
        ),
    }


def _stages(model: Path, data: Path, folder: Path) -> dict[str, Command]:
    """One process each; RL of two answers a question."""
    shared = ["--model_name_or_path", str(model), *_OUT, *_QUICK, "--learning_rate", "1e-3"]
    drawn = ["--reward_model_path", str(folder / "judge"), "--num_generations", "2", "--max_completion_length", "2"]
    taught = ["--teacher_model_name_or_path", str(folder / "tuned"), "--distill_mode", "offline"]
    own: dict[str, tuple[str, str, list[str]]] = {
        "sft": ("sft", "sft", ["--max_steps", "1"]),
        "sft resumed": ("sft", "sft", ["--max_steps", "2", "--save_steps", "1"]),
        "sft zero2": ("sft", "sft", ["--max_steps", "1", "--deepspeed", "ds_configs/zero2.json"]),
        "sft zero3": ("sft", "sft", ["--max_steps", "1", "--deepspeed", "ds_configs/zero3.json"]),
        "pt": ("pt", "pt", ["--max_steps", "1", "--block_size", "32"]),
        "rm": ("rm", "pairs", ["--max_steps", "1"]),
        "dpo": ("dpo", "pairs", ["--max_steps", "1"]),
        "rl": ("rl", "prompts", ["--max_steps", "1", *drawn]),
        "distill": ("distill", "sft", ["--max_steps", "1", *taught]),
    }
    return {
        name: Command(
            [f"run_{stage}.py", *shared, "--train_file_dir", f"{data}/{records}", *more],
            earlier=["--learning_rate", "1e-2"],
            changing=_OF_A_RUN,
            share=_SHARES.get(name, (0, 1)),
            kind=Stage,
        )
        for name, (stage, records, more) in own.items()
    }


def _pipelines(model: Path, data: Path) -> dict[str, Command]:
    text = _PIPELINE.replace("{model}", str(model)).replace("{data}", str(data))
    run = ["hftune", "pipeline", "run", "{room}/pipeline.yaml"]
    return {
        "pipeline run": Command(run, overwrite=[], text=text, share=(0, 1), kind=Pipeline),
        "pipeline run --dry_run": Command([*run, "--dry_run"], overwrite=[], text=text, share=(0, 4), kind=DryRun),
    }


def _tuned(model: Path, folder: Path) -> Path:
    """The model with two matrices changed."""
    from tests.unit.merging.models import load_plain

    tuned = load_plain(model)
    with torch.no_grad():
        for layer in tuned.model.layers:
            weight = layer.self_attn.q_proj.weight
            rows, columns = (torch.arange(float(size)).sin() for size in weight.shape)
            weight += 0.1 * torch.outer(rows, columns)
    tuned.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


def _reward_model(model: Path, folder: Path) -> Path:
    """The model with a head that scores."""
    torch.manual_seed(2)
    config = LlamaConfig.from_pretrained(model, num_labels=1)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder
