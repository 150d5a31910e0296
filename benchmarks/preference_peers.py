"""A few steps of DPO with one tool, timed from inside; `preference.py` runs this in that tool's environment.

PYTHON benchmarks/preference_peers.py TOOL --data pairs.jsonl --model MODEL --steps 10 --warmup 2 --out FOLDER

Imports nothing of hftune unless that is the tool. Every tool is started by its own command line or script in this
process; all of them train with `transformers.Trainer`, whose `training_step` is watched: when it began and ended, how
many tokens its batch held without padding, and the loss. Last a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Steps = list[tuple[float, float, int, float]]
"""Of each step: beginning and end in seconds, tokens of the policy without padding, loss."""


def watch(steps: Steps) -> None:
    """Note every training step."""
    import transformers

    original = transformers.Trainer.training_step

    def step(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        tokens, began = real_tokens(inputs), time.perf_counter()
        loss = original(self, model, inputs, *args, **kwargs)
        steps.append((began, time.perf_counter(), tokens, float(loss.detach())))
        return loss

    transformers.Trainer.training_step = step


def real_tokens(inputs: dict[str, Any]) -> int:
    """Tokens of prompts and answers, each prompt counted once an answer."""
    if "num_tokens" in inputs:  # hftune has prompts once in its rows
        return int(inputs["num_tokens"].sum())
    if "prompt_attention_mask" in inputs:  # TRL before its rewriting, with prompts apart
        counted = ("prompt_attention_mask", "prompt_attention_mask", "chosen_attention_mask", "rejected_attention_mask")
        return sum(int(inputs[name].sum()) for name in counted)
    masks = [value for name, value in inputs.items() if name.endswith("attention_mask")]
    return sum(int(mask.sum()) for mask in masks)


COMMON = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "save_strategy": "no",
    "report_to": "none",
    "seed": 42,
    "logging_steps": 1000,
}


def _flags(arguments: dict[str, Any]) -> list[str]:
    return [part for name, value in arguments.items() for part in (f"--{name}", *map(str, _listed(value)))]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _script(path: Path, arguments: dict[str, Any]) -> None:
    sys.argv = [str(path), *_flags(arguments)]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")


def hftune(options: argparse.Namespace) -> None:
    """run_dpo.py of this repository."""
    arguments = COMMON | {
        "model_name_or_path": options.model, "train_file_dir": options.data, "output_dir": options.out / "hftune",
        "use_peft": True, "lora_r": 8, "lora_alpha": 16, "lora_target_modules": "all", "max_length": options.max_length,
        "max_steps": options.steps, "gradient_checkpointing": False, "dtype": "float32", "beta": 0.1,
        "precompute_ref_log_probs": options.precompute,
    }  # fmt: skip
    os.environ["HFTUNE_CACHE"] = str(options.out / "cache")
    _script(Path(__file__).resolve().parents[1] / "run_dpo.py", arguments)


def trl(options: argparse.Namespace) -> None:
    """TRL's trainer, as its own script makes it."""
    import torch
    from datasets import load_dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, attn_implementation="sdpa")
    config = DPOConfig(
        **COMMON, output_dir=str(options.out), max_steps=options.steps, max_length=options.max_length,
        gradient_checkpointing=False, bf16=False, use_cpu=True, beta=0.1,
    )  # fmt: skip
    data = load_dataset("json", data_files=str(options.data), split="train").map(_messages)
    lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    trainer = DPOTrainer(model, args=config, train_dataset=data, processing_class=tokenizer, peft_config=lora)
    trainer.train_dataset = trainer.train_dataset.map(_to_the_terminator, fn_kwargs={"eos": tokenizer.eos_token_id})
    trainer.train()


def _to_the_terminator(record: dict[str, Any], eos: int) -> dict[str, Any]:
    """TRL also trains the line break that ChatML writes behind an answer; without it losses can be compared."""
    cut = {}
    for side in ("chosen_ids", "rejected_ids"):
        ids = record[side]
        cut[side] = ids[: len(ids) - ids[::-1].index(eos)] if eos in ids else ids
    return cut


def _messages(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": record["conversations"][0]["value"]}],
        "chosen": [{"role": "assistant", "content": record["chosen"]}],
        "rejected": [{"role": "assistant", "content": record["rejected"]}],
    }


def llamafactory(options: argparse.Namespace) -> None:
    """`llamafactory-cli train`."""
    from llamafactory.train.tuner import run_exp

    folder = options.out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    records = [json.loads(line) for line in options.data.read_text(encoding="utf-8").splitlines()]
    for record in records:
        for side in ("chosen", "rejected"):
            record[side] = {"from": "gpt", "value": record[side]}
    (folder / "pairs.json").write_text(json.dumps(records, ensure_ascii=False), encoding="utf-8")
    columns = {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}
    info = {"pairs": {"file_name": "pairs.json", "formatting": "sharegpt", "ranking": True, "columns": columns}}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    run_exp(
        COMMON
        | {
            "stage": "dpo", "do_train": True, "model_name_or_path": options.model, "finetuning_type": "lora",
            "lora_rank": 8, "lora_alpha": 16, "lora_dropout": 0.0, "lora_target": "all", "dataset": "pairs",
            "dataset_dir": str(folder), "template": "smollm2", "cutoff_len": options.max_length, "flash_attn": "sdpa",
            "max_steps": options.steps, "output_dir": str(options.out / "out"), "overwrite_cache": True,
            "pref_beta": 0.1, "pref_loss": "sigmoid", "use_cpu": True, "disable_gradient_checkpointing": True,
            "overwrite_output_dir": True, "optim": "adamw_torch",
        }
    )  # fmt: skip


def ms_swift(options: argparse.Namespace) -> None:
    """`swift rlhf --rlhf_type dpo`."""
    from swift.pipelines import rlhf_main

    file = options.out / "swift.jsonl"
    lines = []
    for line in options.data.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        turns = [
            {"role": "user", "content": record["conversations"][0]["value"]},
            {"role": "assistant", "content": record["chosen"]},
        ]
        lines.append(json.dumps({"messages": turns, "rejected_response": record["rejected"]}, ensure_ascii=False))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    arguments = COMMON | {
        "rlhf_type": "dpo", "model": options.model, "model_type": "llama", "template": "chatml", "dataset": file,
        "tuner_type": "lora", "lora_rank": 8, "lora_alpha": 16, "lora_dropout": 0.0, "target_modules": "all-linear",
        "torch_dtype": "float32", "attn_impl": "sdpa", "max_length": options.max_length, "max_steps": options.steps,
        "split_dataset_ratio": 0, "output_dir": options.out / "out", "gradient_checkpointing": "false", "beta": 0.1,
        "load_from_cache_file": "false", "dataloader_num_workers": 0, "use_cpu": "true",
    }  # fmt: skip
    rlhf_main(_flags(arguments))


def medicalgpt(options: argparse.Namespace) -> None:
    """training/dpo_training.py of its repository."""
    folder = options.out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pairs.jsonl").write_bytes(options.data.read_bytes())
    arguments = COMMON | {
        "model_name_or_path": options.model, "train_file_dir": folder, "validation_file_dir": folder,
        "use_peft": True, "lora_rank": 8, "lora_alpha": 16, "lora_dropout": 0.0, "target_modules": "all",
        "torch_dtype": "float32", "max_source_length": options.max_length, "max_target_length": options.max_length,
        "max_steps": options.steps, "output_dir": options.out / "out", "gradient_checkpointing": False,
        "do_train": True, "bf16": False, "fp16": False, "device_map": "cpu", "eval_strategy": "no",
        "remove_unused_columns": False,
    }  # fmt: skip
    _script(options.repository / "training" / "dpo_training.py", arguments)


TOOLS: dict[str, Callable[[argparse.Namespace], None]] = {
    "hftune": hftune,
    "trl": trl,
    "llamafactory": llamafactory,
    "ms_swift": ms_swift,
    "medicalgpt": medicalgpt,
}


def main() -> None:
    """Run one tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=list(TOOLS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--precompute", default="False", help="hftune: the reference once, before training")
    parser.add_argument("--repository", type=Path, help="of a tool that is no package")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    steps: Steps = []
    began = time.perf_counter()
    watch(steps)
    TOOLS[options.tool](options)
    counted = steps[options.warmup :]
    seconds = counted[-1][1] - steps[options.warmup - 1][1] if options.warmup else counted[-1][1] - counted[0][0]
    figures = {
        "tokens": sum(tokens for _, _, tokens, _ in counted),
        "seconds": seconds,
        "before_first_step": steps[0][0] - began,
        "losses": [loss for *_, loss in steps],
        "tokens_of_steps": [tokens for _, _, tokens, _ in steps],
        "peak_mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
