"""What RL is rewarded by: reward models of the stage before, and functions in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
import transformers
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.model import ModelArguments
from hftune.arguments.named_code import named_code
from hftune.arguments.rl_algorithms import RLArguments
from hftune.checkpoints.manifest import read_manifest
from hftune.checkpoints.reward_scale import RewardScale, read_scale
from hftune.constants import AUTO_CLASSES, STEP_LABELS, TASK_TYPES
from hftune.data.turn_tokens import mode_for_answers
from hftune.errors import ArgumentError, did_you_mean, raise_together
from hftune.logging import notice
from hftune.models.adapters.folding import read_lora_config
from hftune.models.loading.config_file import check_config
from hftune.models.loading.from_pretrained import pretrained
from hftune.path_hints import cannot_load
from hftune.preflight.model_folder import base_and_adapters
from hftune.preflight.rules.rl import check_rewards
from hftune.template_arguments import TemplateArguments
from hftune.trainers.finished_model import load_finished
from hftune.trainers.online.guarded_tokenizer import guarded_tokenizer
from hftune.trainers.rewards.builtin import BUILTIN
from hftune.trainers.rewards.kept import KeptRewards
from hftune.trainers.rewards.score_batches import StepReward
from hftune.trainers.rewards.waiting import Patience, check_signature, watched

RewardSource: TypeAlias = PreTrainedModel | Callable[..., Sequence[float | None]]
Rewards: TypeAlias = tuple[list[RewardSource], list[PreTrainedTokenizerBase | None]]


def load_rewards(training_args: RLArguments, model_args: ModelArguments) -> Rewards:
    """The rewards in order, models before functions, and the tokenizer of each model.

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
    cache = training_args.reward_cache
    kept = None if cache is None else KeptRewards(Path(cache))
    patience = Patience(training_args.reward_timeout, training_args.reward_retries, kept)
    # Scores are compared with each other: 16 bit rounds close ones to the same number.
    dtype = torch.float32 if model_args.dtype == "auto" else getattr(torch, model_args.dtype)
    names = zip(model_paths or [], log_names(model_paths or []), strict=True)
    found = [_reward_of(path, name, dtype, training_args) for path, name in names]
    for name in functions or []:
        function = load_function(name, training_args.max_completion_length)
        if name not in BUILTIN:
            check_signature(function, "--reward_funcs")
            function = watched(function, patience)
        found.append((function, None))
    return [source for source, _ in found], [tokenizer for _, tokenizer in found]


def log_names(paths: Sequence[str]) -> list[str]:
    """What reward models are called in the log: their folders' names, with those above where two are alike.

    Figures of the same name would be averaged, and rows of the table of answers mixed up.
    """
    whole = [Path(path).resolve().parts for path in paths]
    # One part of the path more until all names differ.
    for count in range(1, max(map(len, whole), default=0) + 1):
        names = ["-".join(parts[-count:]) for parts in whole]
        if len(set(names)) == len({*whole}):
            return names
    return []


def _reward_of(
    path: str, name: str, dtype: torch.dtype, training_args: RLArguments
) -> tuple[RewardSource, PreTrainedTokenizerBase | None]:
    """A reward model and its tokenizer; one that scores steps as a function, which has its own."""
    model, tokenizer = load_reward_model(path, dtype, trust_remote_code=training_args.trust_remote_code)
    scale = _said_scale(path) if training_args.normalize_rewards else None
    mode = mode_for_answers(training_args.borders_in_text)
    if scores_steps(model):
        options: dict[str, Any] = {"separator": step_separator(path), "scale": scale, "borders": mode}
        return StepReward(model, tokenizer, device=training_args.device, name=name, **options), None
    model.config.name_or_path = name  # what TRL calls it in the log: of an adapter it would be the base
    if scale is not None:
        apply_scale(model, scale)
    return model, guarded_tokenizer(tokenizer, mode)


def reward_head(path: str, flag: str = "--reward_model_path", *, trust_remote_code: bool = False) -> str:
    """What a reward model scores: "score" (conversations) or "steps".

    Raises:
        ArgumentError: There is no such model, or it has no score head.
    """
    if (Path(path) / "adapter_config.json").is_file():
        task = read_lora_config(path, flag).task_type
        head = next((head for head, kind in TASK_TYPES.items() if kind == task), "causal_lm")
    else:
        check_config(path, flag)
        try:
            names = pretrained(AutoConfig, path, trust_remote_code=trust_remote_code).architectures or [""]
        except (OSError, ValueError) as error:
            raise cannot_load(path, error, flag, "reward model") from error
        heads = {"ForSequenceClassification": "score", "ForTokenClassification": "steps"}
        head = next((head for end, head in heads.items() if names[0].endswith(end)), "causal_lm")
    # Without a head transformers would make one up, with random weights.
    if head == "causal_lm":
        raise ArgumentError(
            f"{path} has no score head", place=flag, fix="give the output folder of run_rm.py, or its merged model"
        )
    return head


def load_reward_model(
    path: str,
    dtype: torch.dtype,
    *,
    flag: str = "--reward_model_path",
    trust_remote_code: bool = False,
    template_arguments: TemplateArguments | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A reward model whole: an adapter is folded into its base in memory. It is never trained here.

    Args:
        path: Of an outcome or a process reward model.
        dtype: Of the weights.
        flag: What named it, for errors.
        trust_remote_code: Run code that comes with it.
        template_arguments: For its chat template; None: as it was trained.
    """
    head = reward_head(path, flag, trust_remote_code=trust_remote_code)
    base, adapters = base_and_adapters(path, flag)
    if adapters:
        notice(f"{', '.join(adapters)}: a reward model as an adapter; folded into {base} in memory")
    options: dict[str, Any] = {"num_labels": len(STEP_LABELS) if head == "steps" else 1, "dtype": dtype}
    options |= {"trust_remote_code": trust_remote_code, "template_arguments": template_arguments}
    auto: Any = getattr(transformers, AUTO_CLASSES[head])
    model, tokenizer = load_finished(auto, path, base, adapters, flag, what="reward model", **options)
    # transformers looks for pads to find the last token.
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    # It is never trained, and no gradients are kept for it.
    model.requires_grad_(False)
    return model, tokenizer


def scores_steps(model: PreTrainedModel) -> bool:
    """Whether a reward model is one of processes: it says of each step whether it is right."""
    return bool(model.config.num_labels == len(STEP_LABELS))


def step_separator(path: str) -> str:
    """What stands between steps, as a process reward model was trained; a line break where nobody has said."""
    manifest = read_manifest(path) or {}
    for folder in [path, *(parent["folder"] for parent in manifest.get("parents") or [])]:
        trained = ((read_manifest(folder) or {}).get("arguments") or {}).get("training") or {}
        if trained.get("reward_kind") == "process":
            return str(trained["step_separator"])
    return "\n"


def _said_scale(path: str) -> RewardScale | None:
    """The scale that is stored with a model, said."""
    scale = read_scale(path)
    if scale is None:
        notice(f"{path} has no scale stored with it: its scores are the rewards as they are")
    else:
        notice(f"{path}: rewards are (score - {scale.mean:.4g}) / {scale.std:.4g}, by its {scale.measured_on}")
    return scale


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


def load_function(name: str, longest: int) -> Callable[..., Sequence[float | None]]:
    """The reward function behind `module:function` or `file.py:function`, or a built-in one.

    Args:
        longest: Tokens of an answer at most.
    """
    if name in BUILTIN:
        return BUILTIN[name](longest)
    flag = "--reward_funcs"
    function: Callable[..., Sequence[float | None]] = named_code(
        name, flag, hint=did_you_mean(name, BUILTIN, written=f"{flag} {{}}")
    )
    return function
