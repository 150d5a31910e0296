"""A few steps of RL or on-policy distillation with one tool, timed from inside; `rollouts.py` runs this.

PYTHON benchmarks/rollouts_peers.py TOOL --algorithm grpo --data FOLDER --model MODEL --out FOLDER

Imports nothing of hftune unless that is the tool. Both train with `transformers.Trainer`: when a step ended is noted.
Last a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from watching import COMMON, LORA, ROOT, as_flags, lora, peak_mebibytes, peak_of_gpu, run_script

PASSES = {"ppo": 4}
"""How often a batch of answers is trained, where that is not once."""

Steps = list[tuple[float, float, float]]
"""Of each step: end in seconds, and in seconds of processors, loss."""


def watch(steps: Steps) -> None:
    """Note every training step."""
    import transformers

    log = transformers.Trainer.log

    # Every step is logged. TRL's online DPO has a step of its own, which does not call the Trainer's.
    def logged(self: Any, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            steps.append((time.perf_counter(), time.process_time(), float(logs["loss"])))
        log(self, logs, *args, **kwargs)

    transformers.Trainer.log = logged


def even_tokens(completions: list[Any], **columns: Any) -> list[float]:
    """A reward that costs nothing: the share of even letters of an answer."""
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    return [sum(ord(letter) % 2 == 0 for letter in text) / max(1, len(text)) for text in texts]


def common(options: argparse.Namespace) -> dict[str, Any]:
    """What both tools call by the same names."""
    return COMMON | {
        "max_steps": options.steps * PASSES.get(options.algorithm, 1), "per_device_train_batch_size": options.answers,
        "bf16": options.cuda, "use_cpu": not options.cuda,
    }  # fmt: skip


def hftune(options: argparse.Namespace) -> None:
    """run_rl.py or run_distill.py of a repository."""
    arguments = common(options) | LORA | {
        "model_name_or_path": options.model, "train_file_dir": options.data / "prompts",
        "output_dir": options.out / "hftune",
        "use_peft": True, "target_modules": "all",
        "dtype": "bfloat16" if options.cuda else "float32",
        "max_completion_length": options.tokens,
    }  # fmt: skip
    script = "run_rl.py"
    if options.algorithm == "distill":
        script = "run_distill.py"
        arguments |= {"teacher_model_name_or_path": options.model, "distill_mode": "on_policy", "beta": 0.5}
        arguments |= {"temperature": 1.0, "max_length": 512, "train_file_dir": options.data / "records"}
    else:
        beta = 0.1 if options.algorithm == "online_dpo" else 0.05
        arguments |= {"rl_algorithm": options.algorithm, "beta": beta, "reward_funcs": f"{__file__}:even_tokens"}
        numbers = {"grpo": options.group, "rloo": options.group, "online_dpo": 2, "ppo": 1}
        arguments |= {"num_generations": numbers[options.algorithm]}
    run_script((options.repository or ROOT) / script, as_flags(arguments))


def trl(options: argparse.Namespace) -> None:
    """TRL's trainers, as its own scripts make them."""
    import torch
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def model() -> Any:
        dtype = torch.bfloat16 if options.cuda else torch.float32
        return AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype, attn_implementation="sdpa")

    data = load_dataset("json", data_files=str(options.data / "prompts" / "prompts.jsonl"), split="train")
    data = data.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})
    shared = {
        "model": model(), "train_dataset": data, "processing_class": AutoTokenizer.from_pretrained(options.model),
        "peft_config": lora(),
    }  # fmt: skip
    given = common(options) | {"output_dir": str(options.out)}
    if options.algorithm == "distill":
        from trl import DistillationConfig, DistillationTrainer

        config = DistillationConfig(**given, beta=0.5, temperature=1.0, max_completion_length=options.tokens)
        DistillationTrainer(args=config, teacher_model=model(), **shared).train()
        return
    if options.algorithm == "online_dpo":
        from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

        # Its batch is of prompts, each of which it answers twice.
        given |= {"per_device_train_batch_size": options.answers // 2, "max_new_tokens": options.tokens}
        OnlineDPOTrainer(args=OnlineDPOConfig(**given, beta=[0.1]), reward_funcs=even_tokens, **shared).train()
        return
    import trl as library

    name = options.algorithm.upper()
    config = getattr(library, f"{name}Config")(
        **given, beta=0.05, max_completion_length=options.tokens, num_generations=options.group
    )
    getattr(library, f"{name}Trainer")(args=config, reward_funcs=even_tokens, **shared).train()


def main() -> None:
    """Run one tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=["hftune", "trl"])
    parser.add_argument("--algorithm", choices=["grpo", "rloo", "ppo", "online_dpo", "distill"], required=True)
    parser.add_argument("--data", type=Path, required=True, help="a folder with prompts/ and records/")
    parser.add_argument("--model", required=True)
    parser.add_argument("--answers", type=int, default=16, help="of a step")
    parser.add_argument("--group", type=int, default=8, help="answers to a prompt, of GRPO and RLOO")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer at most")
    parser.add_argument("--cuda", action="store_true", help="in bfloat16")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repository", type=Path, help="of hftune, where it is not this one")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    steps: Steps = []
    watch(steps)
    {"hftune": hftune, "trl": trl}[options.tool](options)
    # A step here is a batch of answers, whose last pass ends it.
    passes = PASSES.get(options.algorithm, 1)
    ends = [(seconds, work) for seconds, work, _ in steps[passes - 1 :: passes]]
    figures = {
        "steps": len(ends) - options.warmup,
        "seconds": ends[-1][0] - ends[options.warmup - 1][0],
        # Of all threads: what can be compared where other programs run as well.
        "processor_seconds": ends[-1][1] - ends[options.warmup - 1][1],
        "losses": [loss for *_, loss in steps],
        "peak_mebibytes": (peak_of_gpu() or 0.0) * 1e9 / 2**20 if options.cuda else peak_mebibytes(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
