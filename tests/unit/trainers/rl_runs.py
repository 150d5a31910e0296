"""Whole RL runs in this process, without a launcher: a trainer of each algorithm on a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset

from hftune.arguments.entry import parse_arguments
from hftune.data.splits import Splits
from hftune.models.adapters.preparation import add_adapter
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.tokenizer import load_tokenizer
from hftune.trainers.rl import rl_trainer

PROMPTS = ["What is 2 plus 3?", "Hello", "Why?", "Name it"]


def make_trainer(
    model: Path, folder: Path, algorithm: str, reward: Callable | list[Any], *flags: str, **more: Any
) -> Any:
    """The trainer of an algorithm on four prompts; `flags` win over what is set here, `more` goes to `rl_trainer`."""
    argv = ["--model_name_or_path", str(model), "--output_dir", str(folder), "--rl_algorithm", algorithm]
    argv += ["--gradient_checkpointing", "False", "--report_to", "none", "--disable_tqdm", "True"]
    argv += ["--save_strategy", "no", "--logging_steps", "1", "--use_cpu", "True", *flags]
    model_args, _, adapter_args, training_args = parse_arguments("rl", argv)
    tokenizer = load_tokenizer(model_args, training_args)
    read = partial(load_causal_lm, model_args, adapter_args, training_args, tokenizer)
    policy = add_adapter(read(), adapter_args, training_args)
    prompts = Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in PROMPTS]})
    data = Splits(prompts, prompts, {"train": {}})
    functions = reward if isinstance(reward, list) else [reward]
    rewards = (functions, more.pop("tokenizers", [None] * len(functions)))
    starts = adapter_args.starts_as_base
    return rl_trainer(policy, training_args, tokenizer, data, rewards, starts_as_base=starts, read_again=read, **more)


def count_even(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward: the share of even token ids."""
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]


def drawn(trainer: Any, *texts: str, times: int = 1) -> dict[str, Any]:
    """A batch of answers, as a step would draw it had the sampler given each of these prompts so often."""
    trainer.model.train()
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in texts for _ in range(times)]
    batch: dict[str, Any] = trainer._generate_and_score_completions(rows)
    return batch


def logged(trainer: Any, name: str) -> list[float]:
    """The values of one figure, step by step."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]
