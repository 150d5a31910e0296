"""Rules about preference optimisation, and how its batches are laid out."""

from __future__ import annotations

from collections.abc import Iterator

from transformers import PreTrainedConfig

from hftune.arguments.model import ModelArguments
from hftune.arguments.preference import (
    A_TOKEN,
    DIFFERENCES_OF_SCORES,
    LOSS_TYPES,
    SMOOTHED,
    SORTED,
    UNPAIRED,
    DPOArguments,
)
from hftune.arguments.training import StageArguments
from hftune.errors import ArgumentError, UserError, did_you_mean
from hftune.logging import notice
from hftune.models.attention.isolation import causal_class, refuse_attention, refuse_unless_isolated
from hftune.models.attention.machine import this_machine
from hftune.models.attention.names import SEGMENTS, VARLEN
from hftune.models.loading.config import model_config

SHARED_LAYERS = {"full_attention", "sliding_attention", "sparse", "dense", "moe"}
"""Kinds of layers in which several answers can follow one prompt; a chunk of attention would cut it elsewhere."""


def settle_rows(model_args: ModelArguments, args: DPOArguments) -> None:
    """Decide what was left open: `padding_free` and `shared_prompts` where they are exact, said where they are not."""
    try:
        config = model_config(model_args, args)
    except (UserError, OSError, TypeError):
        args.padding_free, args.shared_prompts = bool(args.padding_free), bool(args.shared_prompts)
        return  # said by `check_model`
    if args.padding_free is None:
        reason = _why_padded(config, model_args, args)
        args.padding_free = reason is None
        if reason:
            notice(f"pairs are padded: {reason}")
    if args.shared_prompts is None:
        reason = why_not_shared(config, model_args, args)
        args.shared_prompts = reason is None
        if reason and args.padding_free:
            notice(f"the prompt of a pair is computed twice: {reason}")


def _why_padded(config: PreTrainedConfig, model_args: ModelArguments, args: DPOArguments) -> str | None:
    """Why documents cannot lie side by side in a row; None where they can."""
    try:
        refuse_unless_isolated(config, causal_class(config))
        if model_args.attn_implementation:
            refuse_attention(model_args.attn_implementation, this_machine(args, dtype=model_args.dtype))
    except ArgumentError as problem:
        return problem.cause
    return None


def why_not_shared(config: PreTrainedConfig, model_args: ModelArguments, args: DPOArguments) -> str | None:
    """Why a pair cannot share its prompt; None where it can."""
    layers = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if not args.padding_free:
        return "pairs are padded"
    if model_args.attn_implementation not in (None, SEGMENTS, VARLEN):
        return f"{model_args.attn_implementation} knows no shared prompts"
    if args.torch_compile:
        return "the model is compiled"
    if other := layers - SHARED_LAYERS:
        return f"layers of {', '.join(sorted(other))}"
    return None


def check_preferences(model_args: ModelArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Losses that there are, with options that they look at; a reference that can be what is asked of it."""
    if not isinstance(training_args, DPOArguments):
        return
    yield from _check_losses(training_args)
    yield from _check_numbers(training_args)
    yield from _check_reference(training_args)
    if training_args.shared_prompts and not training_args.padding_free:
        yield ArgumentError(
            "a padded row holds one answer, and cannot share its prompt",
            place="--shared_prompts True",
            fix="leave it out, or leave out --padding_free False",
        )


def _check_losses(args: DPOArguments) -> Iterator[UserError]:
    kinds = set(args.loss_type)
    for name in args.loss_type:
        if name not in LOSS_TYPES:
            near = did_you_mean(name, sorted(LOSS_TYPES), written="--loss_type {}")
            fix = f"{near} one of: {', '.join(sorted(LOSS_TYPES))}".strip()
            yield ArgumentError(f"there is no loss {name}", place="--loss_type", fix=fix)
    if args.f_divergence_type != "reverse_kl" and (others := kinds & LOSS_TYPES - DIFFERENCES_OF_SCORES - {"sft"}):
        yield ArgumentError(
            f"{', '.join(sorted(others))} with the divergence {args.f_divergence_type}, whose constant does not cancel",
            place="--f_divergence_type",
            fix=f"leave it out, or use one of: {', '.join(sorted(DIFFERENCES_OF_SCORES))}",
        )
    if args.use_weighting and kinds & SORTED:
        yield ArgumentError(
            "sorted answers would get the weights of other pairs",
            place="--use_weighting",
            fix="leave it out, or use another loss than aot",
        )
    if kinds & UNPAIRED and not kinds <= UNPAIRED and (args.desirable_weight, args.undesirable_weight) != (1.0, 1.0):
        notice("--desirable_weight and --undesirable_weight weigh kto and apo_zero_unpaired alone")


def _check_numbers(args: DPOArguments) -> Iterator[UserError]:
    """Numbers with which a loss has a meaning, and none that no loss looks at."""
    kinds = set(args.loss_type)
    smoothing = args.label_smoothing
    rules: list[tuple[bool, str, str, str]] = [
        (not args.beta, "beta 0", "--beta", "give a number above 0"),
        (
            "exo_pair" in kinds and not smoothing,
            "exo_pair needs a label smoothing above 0",
            "--label_smoothing",
            "give 1e-3, as its paper does",
        ),
        (
            bool(smoothing) and not kinds & (SMOOTHED | {"robust"}),
            f"{' '.join(args.loss_type)} has no label smoothing",
            "--label_smoothing",
            f"leave it out, or use one of: {', '.join(sorted(SMOOTHED))}",
        ),
        (
            bool(args.offset_alpha) and "sigmoid" not in kinds,
            f"{' '.join(args.loss_type)} takes no offset",
            "--offset_alpha",
            "leave it out, or use --loss_type sigmoid",
        ),
        (
            args.normalize_logps and bool(kinds & A_TOKEN),
            f"{' '.join(sorted(kinds & A_TOKEN))} divides by the length of an answer already",
            "--normalize_logps",
            "leave it out",
        ),
    ]
    for wrong, cause, place, fix in rules:
        if wrong:
            yield ArgumentError(cause, place=place, fix=fix)


def _check_reference(args: DPOArguments) -> Iterator[UserError]:
    if args.sync_ref_model and args.precompute_ref_log_probs:
        yield ArgumentError(
            "a reference that is renewed in training cannot be computed before it",
            place="--sync_ref_model, --precompute_ref_log_probs",
            fix="choose one",
        )
    if not args.needs_reference and (args.sync_ref_model or args.other_reference):
        flag = "--ref_model / --ref_adapters" if args.other_reference else "--sync_ref_model"
        yield ArgumentError(
            "no loss looks at a reference", place=flag, fix="leave it out, or use a loss with a reference"
        )
    if args.sync_ref_model and args.other_reference:
        yield ArgumentError(
            "another model as reference, renewed by mixing in the policy",
            place="--sync_ref_model, --ref_model",
            fix="choose one",
        )
