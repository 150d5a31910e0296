"""What shares a prompt in a row: the answers of a pair or of RL."""

from __future__ import annotations

from transformers import PreTrainedConfig

from hftune.arguments.model import ModelArguments
from hftune.arguments.preference import DPOArguments
from hftune.arguments.rl_algorithms import GRPOArguments, RLOOArguments
from hftune.arguments.training import StageArguments
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.attention.isolation import ATTENTION, BACKBONE, isolation_method, refuse_attention
from hftune.models.attention.machine import this_machine
from hftune.models.attention.names import SEGMENTS, VARLEN
from hftune.models.classes import causal_class
from hftune.models.experts import is_mixture

SHARED_LAYERS = {"full_attention", "sliding_attention", "sparse", "dense", "moe"}
"""Kinds of layers in which several answers can follow one prompt; a chunk of attention would cut it elsewhere."""


def decide_pair_layout(config: PreTrainedConfig, model_args: ModelArguments, training_args: DPOArguments) -> None:
    """Set `padding_free` and `shared_prompts` where they were left out: on wherever they are exact; else it is said."""
    if training_args.padding_free is None:
        reason = _why_padded(config, model_args, training_args)
        training_args.padding_free = reason is None
        if reason:
            notice(f"pairs are padded: {reason}")
    if training_args.shared_prompts is None:
        reason = why_not_shared(config, model_args, training_args)
        training_args.shared_prompts = reason is None
        if reason and training_args.padding_free:
            notice(f"the prompt of a pair is computed twice: {reason}")


def decide_answer_layout(
    config: PreTrainedConfig, model_args: ModelArguments, training_args: GRPOArguments | RLOOArguments
) -> None:
    """Set RL's `shared_prompts` where it was left out: on where it is exact; else it is said.

    Raises:
        ArgumentError: It was asked for, and cannot be had.
    """
    reason = _why_padded(config, model_args, training_args) or _why_not_one_row(config, model_args, training_args)
    if is_mixture(config):
        reason = "the routers of a mixture count the tokens of padded rows"
    if training_args.shared_prompts and reason:
        raise _refused(f"answers cannot share a row with their prompt: {reason}", "rows are padded")
    if training_args.shared_prompts is None:
        training_args.shared_prompts = reason is None
        if reason:
            notice(f"answers are scored in padded rows, each behind a copy of its prompt: {reason}")


def _refused(cause: str, then: str) -> ArgumentError:
    return ArgumentError(cause, place="--shared_prompts True", fix=f"leave it out: {then} then")


def _why_padded(config: PreTrainedConfig, model_args: ModelArguments, args: StageArguments) -> str | None:
    """Why documents cannot lie side by side in a row; None where they can."""
    way, reason = isolation_method(config, causal_class(config))
    if way == BACKBONE:
        return reason
    try:
        if model_args.attn_implementation:
            refuse_attention(model_args.attn_implementation, this_machine(args, dtype=model_args.dtype))
    except ArgumentError as problem:
        return problem.cause
    return None


def why_not_shared(config: PreTrainedConfig, model_args: ModelArguments, args: DPOArguments) -> str | None:
    """Why a pair cannot share its prompt; None where it can."""
    return _why_not_one_row(config, model_args, args) if args.padding_free else "pairs are padded"


def _why_not_one_row(config: PreTrainedConfig, model_args: ModelArguments, args: StageArguments) -> str | None:
    layers = set(getattr(config.get_text_config(), "layer_types", None) or ())
    way, reason = isolation_method(config, causal_class(config))
    if way != ATTENTION:
        return reason
    if model_args.attn_implementation not in (None, SEGMENTS, VARLEN):
        return f"{model_args.attn_implementation} knows no shared prompts"
    if args.torch_compile:
        return "the model is compiled"
    if other := layers - SHARED_LAYERS:
        return f"layers of {', '.join(sorted(other))}"
    return None
