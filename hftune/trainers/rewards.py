"""What RL is rewarded by: reward models of the stage before, and functions in Python."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments import ModelArguments
from hftune.arguments.training import RLFields
from hftune.checkpoints.chain import whole_chain
from hftune.checkpoints.manifest import read_manifest
from hftune.checkpoints.reward_scale import RewardScale, read_scale
from hftune.distributed.zero import not_partitioned
from hftune.errors import ArgumentError, raise_together
from hftune.logging import notice
from hftune.models.adapter_configs import read_lora_config
from hftune.models.agreement import grow_as_recorded
from hftune.models.folding import fold_adapters
from hftune.preflight.checks import check_rewards

RewardSource: TypeAlias = PreTrainedModel | Callable[..., list[float]]
Rewards: TypeAlias = tuple[list[RewardSource], list[PreTrainedTokenizerBase | None]]


def load_rewards(training_args: RLFields, model_args: ModelArguments) -> Rewards:
    """The rewards in order, models before functions, and a tokenizer beside each model.

    Args:
        training_args: `reward_model_path`: folders of run_rm.py (adapter, full or merged), or Hub names with a score
            head. `reward_funcs`: `module:function` or `file.py:function`, called as TRL calls reward functions: with
            `prompts`, `completions` and the data's columns as lists, returning one float a completion.
        model_args: `dtype` is also that of the reward models' weights; float32 for auto.

    Raises:
        ArgumentError: No reward at all, a function that cannot be found, or a model without a score head.
    """
    model_paths, functions = training_args.reward_model_path, training_args.reward_funcs
    raise_together(check_rewards(functions or [], model_paths or []))
    dtype = torch.float32 if model_args.dtype == "auto" else getattr(torch, model_args.dtype)
    sources: list[RewardSource] = []
    tokenizers: list[PreTrainedTokenizerBase | None] = []
    for path in model_paths or []:
        model, tokenizer = load_reward_model(path, dtype)
        if training_args.normalize_rewards:
            _normalise(model, path)
        sources.append(model)
        tokenizers.append(tokenizer)
    for name in functions or []:
        sources.append(load_function(name))
        tokenizers.append(None)
    return sources, tokenizers


def load_reward_model(path: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A reward model whole: an adapter is folded into its base in memory. It is never trained here."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    with not_partitioned():
        if (Path(path) / "adapter_config.json").is_file():
            base = (read_manifest(path) or {}).get("base", {}).get("name")
            base = base or read_lora_config(path, "--reward_model_path").base_model_name_or_path
            folders = whole_chain([path])
            notice(f"{', '.join(folders)}: a reward model as an adapter; folded into {base} in memory")
            model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=dtype)
            grow_as_recorded(model, folders)
            model = fold_adapters(model, folders)
        else:
            model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1, dtype=dtype)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    model.requires_grad_(False)
    return model.eval(), tokenizer


def _normalise(model: PreTrainedModel, path: str) -> None:
    """Apply the scale that is stored with a model, and say so."""
    scale = read_scale(path)
    if scale is None:
        notice(f"{path} has no scale stored with it: its scores are the rewards as they are")
        return
    apply_scale(model, scale)
    notice(f"{path}: rewards are (score - {scale.mean:.4g}) / {scale.std:.4g}, by its {scale.measured_on}")


def apply_scale(model: PreTrainedModel, scale: RewardScale) -> None:
    """Have the model give (score - mean) / std from now on; its weights stay as they are.

    Args:
        model: With `logits` of shape (batch, 1) in its outputs.
        scale: Of its raw scores.
    """

    def normalise(module: Any, args: Any, output: Any) -> Any:
        output.logits = (output.logits.float() - scale.mean) / scale.std
        return output

    model.register_forward_hook(normalise)


def load_function(name: str) -> Callable[..., list[float]]:
    """The function behind `module:function` or `file.py:function`."""
    where, _, attribute = name.rpartition(":")
    if not where:
        raise ArgumentError(
            f"{name!r} names no function", place="--reward_funcs", fix="write module:function or file.py:function"
        )
    module: Any
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        return getattr(module, attribute)
    except (ImportError, FileNotFoundError, AttributeError) as error:
        raise ArgumentError(f"{name} cannot be loaded: {error}", place="--reward_funcs", fix="check it") from error
