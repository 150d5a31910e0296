"""Teachers of a distillation: whole models or adapters, frozen, that read the tokens of the student."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations import is_deepspeed_zero3_enabled

from hftune.arguments.distill import DistillArguments
from hftune.arguments.model import ModelArguments
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.adapters.folding import fold_adapters
from hftune.models.loading.causal_lm import build_model
from hftune.models.loading.stored_weights import check_finite
from hftune.models.loading.tokenizer import has_tokenizer, load_plain_tokenizer
from hftune.models.vocabulary import grow_as_recorded
from hftune.preflight.model_folder import base_and_adapters
from hftune.preflight.teachers import FLAG, errors_of_teacher, teacher_arguments

SAMPLES = (
    "Hello world! It's 12345.67  (two  spaces),\n\n\tand a tab; don't STOP_here.",
    'def f(x):\n    return {"a": [1, 2]}  # ümlaut, café, ½ №',
    "中文的句子，没有空格。日本語のテキスト。한국어",
    "Здравствуй, мир! 🙂👩‍💻 مرحبا ∑∂ 𝔘",
)
"""Texts of many kinds: tokenizers that make the same ids of them are taken for one."""

GOLD = "name a teacher with the student's tokenizer; across tokenizers TRL distils: trl.experimental.gold (GOLD)"


def load_teacher(model_args: ModelArguments, training_args: DistillArguments) -> PreTrainedModel | None:
    """The teacher, in evaluation mode and without gradients; partitioned where ZeRO-3 is. None where none is loaded.

    Raises:
        ArgumentError: There is no such model, or an adapter does not fit its base.
    """
    if not training_args.teachers:
        return None
    (name,) = training_args.teachers
    base, adapters = base_and_adapters(name, FLAG)
    own_args, adapter_args = teacher_arguments(base, model_args, training_args)
    training_args = copy.copy(training_args)
    training_args.fp8 = None  # speeds up layers that are trained
    with errors_of_teacher(name):
        model = build_model(AutoModelForCausalLM, own_args, adapter_args, training_args, None)
        grow_as_recorded(model, adapters)
        model = fold_adapters(model, adapters)
        if not is_deepspeed_zero3_enabled():
            check_finite(model, name, FLAG)
    model.requires_grad_(False)
    model.config.use_cache = False
    return model.eval()


def check_tokenizers(
    tokenizer: PreTrainedTokenizerBase, model_args: ModelArguments, training_args: DistillArguments
) -> None:
    """Compare the student's tokenizer with that of each teacher that the run loads; no weights are read.

    Raises:
        ArgumentError: One has another, or its tokenizer cannot be read.
    """
    for name in training_args.teachers:
        own = _tokenizer_of(name, model_args, training_args)
        if own is not None and not same_tokenizer(tokenizer, own):
            raise ArgumentError("the teacher has another tokenizer than the student", place=f"{FLAG} {name}", fix=GOLD)


def _tokenizer_of(
    name: str, model_args: ModelArguments, training_args: DistillArguments
) -> PreTrainedTokenizerBase | None:
    """A teacher's tokenizer, with the adapter where it lies there; None where a folder has none."""
    base, adapters = base_and_adapters(name, FLAG)
    own_args, _ = teacher_arguments(base, model_args, training_args)
    place = next((one for one in reversed(adapters) if has_tokenizer(Path(one))), base)
    if Path(place).is_dir() and not has_tokenizer(Path(place)):
        notice(f"{place} holds no tokenizer; it is taken to have the student's")
        return None
    with errors_of_teacher(name):
        return load_plain_tokenizer(replace(own_args, model_name_or_path=place), training_args)


def same_tokenizer(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Whether ids mean the same in both, so that a teacher can read what a student reads.

    Every id that both have is the same token, and texts become the same ids: a vocabulary that is padded, or has
    further tokens at its end, is no other one.
    """
    own, theirs = one.get_vocab(), other.get_vocab()
    if own != theirs:
        pieces = {index: piece for piece, index in own.items()}
        if any(pieces.get(index, piece) != piece or own.get(piece, index) != index for piece, index in theirs.items()):
            return False
    return all(
        one(sample, add_special_tokens=False)["input_ids"] == other(sample, add_special_tokens=False)["input_ids"]
        for sample in (*SAMPLES, *(f" {sample.lower()}" for sample in SAMPLES), "Cafe\u0301 \u2126 ﬁ  \r\n")
    )
