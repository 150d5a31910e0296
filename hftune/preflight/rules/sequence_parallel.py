"""Rules of sequence parallelism (`--sequence_parallel_size`) and of what makes long rows fit (`--tiled_mlp`)."""

from __future__ import annotations

from collections.abc import Iterator

from hftune.arguments.data import DataArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.recomputation import MLP
from hftune.arguments.training import PTArguments, SFTArguments, StageArguments
from hftune.errors import ArgumentError, UserError
from hftune.models.attention.isolation import causal_class, why_not_isolated, why_not_shareable
from hftune.models.attention.names import ULYSSES
from hftune.models.kernels.tiling import tileable
from hftune.models.loading.config import row_length
from hftune.models.loading.skeleton import skeleton_of
from hftune.preflight.rules.sharing import SEQUENCE, check_dealing, check_kernels, check_stage, config_of

PLACE = SEQUENCE.flag


def check_sequence(
    model_args: ModelArguments, data_args: DataArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """All rules of sharing the tokens of rows, and of computing them in pieces."""
    yield from check_tiling(model_args, training_args)
    if training_args.sequence_parallel_size == 1:
        return
    refused = list(check_stage(SEQUENCE, training_args))
    yield from refused
    if refused:
        return
    yield from check_rows(data_args, training_args)
    yield from check_dealing(SEQUENCE, training_args)
    yield from check_loss(training_args)
    yield from check_kernels(SEQUENCE, training_args)
    yield from check_attention_of_rows(model_args, training_args)
    yield from check_architecture(model_args, training_args)


def check_rows(data_args: DataArguments, training_args: StageArguments) -> Iterator[UserError]:
    """What is shared is one row a batch, the same for all processes of a group."""
    if training_args.padding_free is False and not training_args.packing:
        yield ArgumentError(
            "rows with padding are not shared",
            place=f"{PLACE}, --padding_free False",
            fix="leave --padding_free out: the documents of a batch then lie side by side in one row",
        )
    if data_args.streaming:
        yield ArgumentError(
            "a stream gives every process records of its own, and here several need the same",
            place=f"{PLACE}, --streaming",
            fix="tokenise ahead of the run (hftune tokenize, --tokenized_dir), or leave --streaming out",
        )


def check_loss(training_args: StageArguments) -> Iterator[UserError]:
    """The loss is a sum over tokens of which each process knows its own."""
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


def check_attention_of_rows(model_args: ModelArguments, training_args: StageArguments) -> Iterator[UserError]:
    """The attention over whole rows is hftune's; others would see slices only."""
    asked = model_args.attn_implementation or ("flash_attention" if model_args.flash_attn else None)
    if asked not in (None, ULYSSES):
        yield ArgumentError(
            f"{asked} would let the tokens of a slice see that slice only",
            place=f"{PLACE}, --attn_implementation",
            fix=f"leave it out: {ULYSSES} exchanges heads for tokens, and uses torch's FlashAttention on a GPU",
        )


def check_architecture(model_args: ModelArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Tokens of different slices meet in attention alone, and there are heads for every process."""
    config = config_of(model_args, training_args)
    if config is None:
        return
    size = training_args.sequence_parallel_size
    reason = why_not_isolated(config, causal_class(config)) or why_not_shareable(config, size)
    if reason:
        yield ArgumentError(
            f"the tokens of a row of {config.model_type} cannot be shared by {size} processes: {reason}",
            place=PLACE,
            fix="use a smaller number, or leave it out: --deepspeed zero3, --activation_checkpointing full and "
            "--tiled_mlp save memory in one process",
        )


def check_tiling(model_args: ModelArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Pieces are cut from rows of a known length, for MLPs that are not recomputed already."""
    if not training_args.tiled_mlp:
        return
    place = "--tiled_mlp"
    if not isinstance(training_args, PTArguments | SFTArguments):
        yield ArgumentError("MLPs are tiled in pre-training and fine-tuning only", place=place, fix="leave it out")
        return
    if row_length(training_args) is None:
        yield ArgumentError("tiles are cut from rows of a known length", place=place, fix="give --max_length")
    if training_args.recomputation is not None and MLP in training_args.recomputation.parts:
        yield ArgumentError(
            "--tiled_mlp recomputes the MLPs already", place="--activation_checkpointing mlp", fix="leave one out"
        )
    bare = skeleton_of(model_args, training_args, scores=False)
    if bare is not None and not tileable(bare):
        yield ArgumentError(
            f"{type(bare).__name__} has no MLPs whose input could be cut: experts see a part of the tokens anyway",
            place=place,
            fix="leave it out; --activation_checkpointing full saves memory",
        )
