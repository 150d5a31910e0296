"""A few steps of distillation with one tool, timed from inside; `distill.py` runs this in that tool's environment.

PYTHON benchmarks/distill_peers.py TOOL --data FOLDER --student MODEL --teacher MODEL --mode offline --out FOLDER

Imports nothing of hftune unless that is the tool. All tools train with `transformers.Trainer`: when a step ended is
noted, and of the batch whose loss is computed the tokens without padding, and those that are trained. Last a line of
JSON.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Steps = list[tuple[float, float, int, int, float]]
"""Of each step: end in seconds, and in seconds of processors, tokens without padding, trained tokens, loss."""
BETA, RANK = 0.5, 8


def watch(steps: Steps) -> None:
    """Note every training step."""
    import transformers

    original = transformers.Trainer.training_step

    def step(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        seen: list[tuple[int, int]] = []
        compute = type(self).compute_loss

        @functools.wraps(compute)
        def computed(*given: Any, **more: Any) -> Any:
            # Some tools generate between the two, so that a batch is known only here.
            seen.append(tokens_of(given[1] if len(given) > 1 else more["inputs"]))
            return compute(self, *given, **more)

        self.compute_loss = computed
        loss = original(self, model, inputs, *args, **kwargs)
        del self.compute_loss
        steps.append((time.perf_counter(), time.process_time(), *seen[0], float(loss.detach())))
        return loss

    transformers.Trainer.training_step = step


def tokens_of(inputs: dict[str, Any]) -> tuple[int, int]:
    """Tokens of a batch without padding, and those that are trained."""
    if "completion_mask" in inputs:
        trained = int(inputs["completion_mask"].sum())
        return int(inputs["prompt_mask"].sum()) + trained, trained
    mask = inputs.get("attention_mask")
    tokens = inputs["input_ids"].numel() if mask is None else int(mask.sum())
    return tokens, int((inputs["labels"] != -100).sum())


COMMON: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "save_strategy": "no",
    "report_to": "none",
    "seed": 42,
    "logging_steps": 1000,
}


def _script(path: Path, arguments: dict[str, Any]) -> None:
    sys.argv = [str(path), *(part for name, value in arguments.items() for part in (f"--{name}", str(value)))]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")


def hftune(options: argparse.Namespace) -> None:
    """run_distill.py of this repository."""
    arguments = COMMON | {
        "model_name_or_path": options.student, "teacher_model_name_or_path": options.teacher,
        "train_file_dir": options.data, "output_dir": options.out / "hftune", "use_peft": True, "lora_r": RANK,
        "lora_alpha": 16, "lora_target_modules": "all", "max_length": options.max_length, "max_steps": options.steps,
        "gradient_checkpointing": options.recompute, "dtype": "float32", "beta": BETA, "distill_mode": options.mode,
        "temperature": 1.0,
    }  # fmt: skip
    if options.mode == "on_policy":
        arguments["max_completion_length"] = options.answer
    os.environ["HFTUNE_CACHE"] = str(options.out / "cache")
    _script(Path(__file__).resolve().parents[1] / "run_distill.py", arguments)


def _parts(options: argparse.Namespace) -> dict[str, Any]:
    """What both of TRL's trainers take."""
    import torch
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer

    models = (
        AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, attn_implementation="sdpa")
        for name in (options.student, options.teacher)
    )
    lora = LoraConfig(r=RANK, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    tokenizer = AutoTokenizer.from_pretrained(options.student)
    return dict(zip(("model", "teacher_model"), models, strict=True)) | {
        "processing_class": tokenizer, "peft_config": lora,
    }  # fmt: skip


def _records(options: argparse.Namespace) -> Any:
    from datasets import load_dataset

    return load_dataset("json", data_files=str(options.data / "records.jsonl"), split="train")


def trl(options: argparse.Namespace) -> None:
    """TRL's DistillationTrainer, which trains the student's own answers alone."""
    from trl import DistillationConfig, DistillationTrainer

    config = DistillationConfig(
        **COMMON, output_dir=str(options.out), max_steps=options.steps, bf16=False,
        gradient_checkpointing=options.recompute, use_cpu=True, beta=BETA, temperature=1.0,
        max_completion_length=options.answer,
    )  # fmt: skip
    prompts = _records(options).map(lambda one: {"prompt": one["messages"][:-1]}, remove_columns=["messages"])
    DistillationTrainer(args=config, train_dataset=prompts, **_parts(options)).train()


def gkd(options: argparse.Namespace) -> None:
    """TRL's GKDTrainer."""
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    config = GKDConfig(
        **COMMON, output_dir=str(options.out), max_steps=options.steps, bf16=False,
        gradient_checkpointing=options.recompute, use_cpu=True, beta=BETA, temperature=1.0,
        max_length=options.max_length, max_new_tokens=options.answer, lmbda=float(options.mode == "on_policy"),
    )  # fmt: skip
    # It draws a number from 0 to 1 and generates where that is not larger, so that 0 is offline but once in a lifetime.
    GKDTrainer(args=config, train_dataset=_records(options), **_parts(options)).train()


def medicalgpt(options: argparse.Namespace) -> None:
    """training/opd_training.py of its repository."""
    arguments = COMMON | {
        "model_name_or_path": options.student, "teacher_model_name_or_path": options.teacher,
        "train_file_dir": options.data, "validation_file_dir": options.data, "use_peft": True, "lora_rank": RANK,
        "lora_alpha": 16, "lora_dropout": 0.0, "target_modules": "all", "torch_dtype": "float32",
        "max_prompt_length": options.max_length - options.answer, "max_new_tokens": options.answer,
        "max_steps": options.steps, "output_dir": options.out / "out", "gradient_checkpointing": options.recompute,
        "do_train": True, "bf16": False, "device_map": "cpu", "teacher_device_map": "cpu", "eval_strategy": "no",
        "opd_beta": BETA, "opd_lambda": float(options.mode == "on_policy"), "temperature": 1.0,
        "cache_dir": options.out / "cache",
    }  # fmt: skip
    _script(options.repository / "training" / "opd_training.py", arguments)


TOOLS: dict[str, Callable[[argparse.Namespace], None]] = {
    "hftune": hftune,
    "trl": trl,
    "gkd": gkd,
    "medicalgpt": medicalgpt,
}


def main() -> None:
    """Run one tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=list(TOOLS))
    parser.add_argument("--data", type=Path, required=True, help="a folder with records.jsonl")
    parser.add_argument("--student", required=True)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--mode", choices=["offline", "on_policy"], default="offline")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--answer", type=int, default=64, help="tokens that the student draws at most")
    parser.add_argument("--batch", type=int, default=2, help="rows of a micro batch")
    parser.add_argument("--recompute", action="store_true", help="recompute activations, the default of hftune and TRL")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repository", type=Path, help="of a tool that is no package")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    COMMON["per_device_train_batch_size"] = options.batch
    steps: Steps = []
    watch(steps)
    TOOLS[options.tool](options)
    counted = steps[options.warmup :]
    figures = {
        "tokens": sum(tokens for _, _, tokens, *_ in counted),
        "trained": sum(trained for *_, trained, _ in counted),
        # From end to end, since some tools generate before what is noted as the beginning.
        "seconds": counted[-1][0] - steps[options.warmup - 1][0],
        # Of all threads: what can be compared where other programs run as well.
        "processor_seconds": counted[-1][1] - steps[options.warmup - 1][1],
        "losses": [loss for *_, loss in steps],
        "peak_mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
