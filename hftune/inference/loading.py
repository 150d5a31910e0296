"""A model that answers, from any folder or name: a base, an adapter, a chain of adapters, a merged model.

`hftune ask`, `hftune chat` and their like load by this module alone, so that all say the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from hftune.arguments.asking import LoadingFields
from hftune.checkpoints.folder_checks import check_recorded_whole
from hftune.distributed import ranks
from hftune.errors import ArgumentError, UserError
from hftune.inference.prompts import ends_of
from hftune.models.vocabulary import forbid_rows_without_token
from hftune.preflight.model_folder import base_and_adapters
from hftune.trainers.finished_model import load_finished
from hftune.trainers.rewards.loading import reward_head
from hftune.weight_files import is_model


@dataclass
class Talker:
    """A model that answers, ready for `generate`.

    Attributes:
        name: The folder or name that was given.
        model: Whole, adapters folded in, in evaluation mode; its own settings for sampling are cleared, so that a call
            samples only where it says so.
        tokenizer: With a pad token.
        sampling: The model's own settings for generation, as they were saved.
        ends: Ids of the tokens that end an answer.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    sampling: GenerationConfig
    ends: list[int]


def check_talkers(names: Iterable[str] | None, flag: str, *, trust_remote_code: bool) -> Iterator[UserError]:
    """What is wrong with folders that should talk, and with what they lie upon, before anything is loaded."""
    if not names:
        yield ArgumentError(
            "no model was named", place=flag, fix="give a folder (whole, merged, adapter) or a Hub name"
        )
    for name in dict.fromkeys(names or ()):
        yield from _check_talker(name, flag, trust_remote_code)


def _check_talker(name: str, flag: str, trust_remote_code: bool) -> Iterator[UserError]:
    if not Path(name).is_dir():
        return
    if not is_model(Path(name)):
        yield ArgumentError(f"there is no model in {name}", place=flag, fix="give a model or an adapter")
        return
    problems = list(check_recorded_whole(name, flag))
    yield from problems
    if not problems and _scores(name, flag, trust_remote_code):
        fix = "give a language model; `hftune score` asks a reward model, --reward_model_path scores answers"
        yield ArgumentError(f"{name} is a reward model and says nothing", place=flag, fix=fix)


def _scores(folder: str, flag: str, trust_remote_code: bool) -> bool:
    """Whether a model ends with a score head: with tied embeddings it would load as a language model, too."""
    try:
        return reward_head(folder, flag, trust_remote_code=trust_remote_code) in ("score", "steps")
    except ArgumentError:
        return False


def load_talker(name: str, how: LoadingFields, flag: str = "--models") -> Talker:
    """A model and its tokenizer, over all GPUs of this machine, on that of this process, or on the CPU.

    Adapters are folded into the base.

    Args:
        flag: What named the model, for errors.

    Raises:
        ArgumentError: There is no such model, it lacks weights, or an adapter does not fit its base.
    """
    on_gpu = torch.cuda.is_available() and not how.use_cpu
    dtype: Any = ("auto" if on_gpu else torch.float32) if how.dtype == "auto" else getattr(torch, how.dtype)
    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": how.trust_remote_code}
    base, folders = base_and_adapters(name, flag)
    disable_progress_bar()  # one would be drawn for every model
    if on_gpu:
        # Each of several processes has a whole model.
        alone = ranks.world_size() == 1
        options["device_map"] = "auto" if alone else {"": ranks.local_rank() % torch.cuda.device_count()}
    options |= {"what": "language model", "template_arguments": how.template_arguments}
    model, tokenizer = load_finished(AutoModelForCausalLM, name, base, folders, flag, **options)
    forbid_rows_without_token(model, tokenizer)
    sampling = copy.deepcopy(model.generation_config)
    # They mean nothing to greedy answers, and transformers warns of each that is set.
    for setting in ("temperature", "top_p", "top_k"):
        setattr(model.generation_config, setting, None)
    # An adapter's base may know the end of a text only, and the adapter was trained to end turns.
    ends = ends_of(tokenizer, sampling)
    model.generation_config.eos_token_id = ends or None
    return Talker(name, model, tokenizer, sampling, ends)
