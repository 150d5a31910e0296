"""Rules of sequence parallelism (`--sequence_parallel_size`)."""

from __future__ import annotations

from collections.abc import Iterator

from transformers import PreTrainedConfig

from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.errors import ArgumentError, UserError
from hftune.models.attention.isolation import why_not_isolated, why_not_shareable
from hftune.models.attention.names import ULYSSES
from hftune.models.classes import causal_class
from hftune.preflight.facts import Facts
from hftune.preflight.rules.sharing import SEQUENCE, check_kernels, check_row_distribution, check_stage

PLACE = SEQUENCE.flag


def check_sequence_parallel(facts: Facts) -> Iterator[UserError]:
    """Problems of options that do not work with rows shared by processes."""
    training_args = facts.training_args
    # What other stages lack (packing, smoothing) is not even among their arguments.
    refused = list(check_stage(SEQUENCE, training_args))
    yield from refused
    if refused:
        return
    yield from check_rows(facts)
    yield from check_row_distribution(SEQUENCE, training_args)
    yield from check_loss(training_args)
    yield from check_kernels(SEQUENCE, training_args)
    yield from check_attention_of_rows(facts.model_args)
    if facts.config is not None:
        yield from check_architecture(facts.config, training_args)


def check_rows(facts: Facts) -> Iterator[UserError]:
    """Problems of rows that cannot be shared: a batch is one row, the same for all processes of a group."""
    if facts.rows.padding_free is False and not facts.training_args.packing:
        yield ArgumentError(
            "rows with padding are not shared",
            place=f"{PLACE}, --padding_free False",
            fix="leave --padding_free out: the documents of a batch then lie side by side in one row",
        )
    if facts.data_args.streaming:
        yield ArgumentError(
            "a stream gives every process records of its own, and here several need the same",
            place=f"{PLACE}, --streaming",
            fix="tokenise ahead of the run (hftune tokenize, --tokenized_dir), or leave --streaming out",
        )


def check_loss(training_args: StageArguments) -> Iterator[UserError]:
    """Problems of losses that are no sum over tokens of which each process knows its own."""
    if training_args.label_smoothing_factor:
        yield ArgumentError(
            "label smoothing takes the logits of whole rows",
            place=f"{PLACE}, --label_smoothing_factor",
            fix="leave --label_smoothing_factor out",
        )
    if not training_args.average_tokens_across_devices:
        yield ArgumentError(
            "the loss of a row is a mean over the labels of all its slices, and each process would divide by its own",
            place=f"{PLACE}, --average_tokens_across_devices False",
            fix="leave --average_tokens_across_devices out",
        )


def check_attention_of_rows(model_args: ModelArguments) -> Iterator[UserError]:
    """A problem where another attention is asked for: it would see slices only."""
    asked = model_args.attn_implementation or ("flash_attention" if model_args.flash_attn else None)
    if asked not in (None, ULYSSES):
        yield ArgumentError(
            f"{asked} would let the tokens of a slice see that slice only",
            place=f"{PLACE}, --attn_implementation",
            fix=f"leave it out: {ULYSSES} exchanges heads for tokens, and uses torch's FlashAttention on a GPU",
        )


def check_architecture(config: PreTrainedConfig, training_args: StageArguments) -> Iterator[UserError]:
    """A problem where tokens of different slices meet outside attention, or heads are too few."""
    size = training_args.sequence_parallel_size
    reason = why_not_isolated(config, causal_class(config)) or why_not_shareable(config, size)
    if reason:
        yield ArgumentError(
            f"the tokens of a row of {config.model_type} cannot be shared by {size} processes: {reason}",
            place=PLACE,
            fix="use a smaller number, or leave it out: --deepspeed zero3, --activation_checkpointing full and "
            "--tiled_mlp save memory in one process",
        )
