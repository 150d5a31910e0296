"""Whether the conversations of a reward model's batch lie side by side in one row, or are padded."""

from __future__ import annotations

from transformers import PreTrainedConfig
from transformers.modeling_layers import GenericForSequenceClassification, GenericForTokenClassification

from hftune.arguments.model import ModelArguments
from hftune.arguments.preference import RMArguments
from hftune.errors import ArgumentError, UserError
from hftune.logging import notice
from hftune.models.attention.isolation import BACKBONE, isolation_method, refuse_attention
from hftune.models.attention.machine import this_machine
from hftune.models.classes import causal_class, reward_class


def decide_reward_padding(config: PreTrainedConfig, model_args: ModelArguments, training_args: RMArguments) -> None:
    """Set `padding_free` where it was left out: on, wherever it changes no score.

    Raises:
        ArgumentError: It was asked for, and would change scores.
    """
    reason = why_padded(config, model_args, training_args)
    if training_args.padding_free and reason:
        raise ArgumentError(
            f"conversations cannot lie side by side in a row: {reason}", place="--padding_free", fix="leave it out"
        )
    if training_args.padding_free is None:
        training_args.padding_free = reason is None
        notice(f"conversations are padded: {reason}" if reason else "conversations lie side by side, without padding")


def why_padded(config: PreTrainedConfig, model_args: ModelArguments, training_args: RMArguments) -> str | None:
    """Why padding stays; None where rows without it are exact and cost nothing."""
    model_class = reward_class(config, steps=training_args.reward_kind == "process")
    # Only of these is it known that they score all tokens and then take the last one's score.
    if model_class is None or not issubclass(
        model_class, GenericForSequenceClassification | GenericForTokenClassification
    ):
        return f"{config.model_type} reads its score in a way of its own"
    if training_args.torch_compile and not training_args.padding_free:
        return "the model is compiled"
    asked = model_args.attn_implementation
    if asked in ("sdpa", "eager") and not training_args.padding_free:
        return f"{asked}, as asked, would take a mask of tokens by tokens"
    way, reason = isolation_method(config, causal_class(config))
    if way == BACKBONE:
        return reason
    try:
        if asked:
            refuse_attention(asked, this_machine(training_args, dtype=model_args.dtype))
    except UserError as problem:
        return problem.cause
    return None
