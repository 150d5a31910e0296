"""Which attention a run uses, and how the records of a batch lie in its rows: by arguments, model and machine.

Rows come first: only where several records lie in one must the attention keep them apart. What was left out is set in
the arguments, and a notice says why.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GenericForSequenceClassification, GenericForTokenClassification

from hftune.arguments.model import ModelArguments
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.attention.isolation import (
    ATTENTION,
    DEAF_ATTENTION,
    PADDED,
    has_attention,
    isolation_method,
    refuse_attention,
    refuse_unknown,
)
from hftune.models.attention.machine import Machine, this_machine
from hftune.models.attention.segments import MAX_HEAD_SIZE, SEGMENTS, VARLEN
from hftune.models.attention.ulysses import ULYSSES
from hftune.models.classes import causal_class, reward_class
from hftune.models.structure import attention_layers, head_size, is_mixture

if TYPE_CHECKING:
    from hftune.arguments.preference import RMArguments
    from hftune.arguments.training import PTArguments, SFTArguments, StageArguments

MIN_FLEX_HEAD_SIZE = 16
"""What torch's FlexAttention begins with on a GPU (2.11 to 2.13)."""

SHARED_LAYERS = {"full_attention", "sliding_attention", "sparse", "dense", "moe"}
"""Kinds of layers in which several answers can follow one prompt; a chunk of attention would cut it elsewhere."""


def decide_rows(stage: str, config: PreTrainedConfig, model_args: ModelArguments, training_args: Any) -> None:
    """Set `padding_free` and, in DPO and RL, `shared_prompts` where they were left out.

    Args:
        stage: A key of `STAGES` that is based on no other.

    Raises:
        ArgumentError: A layout was asked for that would change scores.
    """
    given = (config, model_args, training_args)
    if stage in ("pt", "sft"):
        _decide_padding_free(*given)
    elif stage == "rm":
        refusal = "conversations cannot lie side by side in a row"
        kept = "conversations lie side by side, without padding"
        _switch(training_args, "padding_free", _why_scores_padded(*given), "conversations are padded", kept, refusal)
    elif stage == "dpo":
        _switch(training_args, "padding_free", _why_padded(*given), "pairs are padded")
        reason = _why_not_one_row(*given) if training_args.padding_free else "pairs are padded"
        off = "the prompt of a pair is computed twice" if training_args.padding_free else ""
        _switch(training_args, "shared_prompts", reason, off)
    elif stage == "rl":
        reason = _why_padded(*given) or _why_not_one_row(*given)
        if is_mixture(config):
            reason = "the routers of a mixture count the tokens of padded rows"
        off = "answers are scored in padded rows, each behind a copy of its prompt"
        refusal = "answers cannot share a row with their prompt"
        _switch(training_args, "shared_prompts", reason, off, refusal=refusal)


def _switch(args: Any, name: str, reason: str | None, off: str, on: str = "", refusal: str = "") -> None:
    """Set an argument that was left out: on where no `reason` speaks against it; what comes of it is said.

    Raises:
        ArgumentError: `refusal`, where it was asked for against a reason.
    """
    asked = getattr(args, name)
    if asked and reason and refusal:
        raise ArgumentError(f"{refusal}: {reason}", place=f"--{name} True", fix="leave it out: rows are padded then")
    if asked is None:
        setattr(args, name, reason is None)
        if off and reason:
            notice(f"{off}: {reason}")
        elif on:
            notice(on)


def attention_for(config: PreTrainedConfig, model_args: ModelArguments, training_args: StageArguments) -> str | None:
    """The `attn_implementation` to load a model with; None leaves the choice to transformers.

    What `--attn_implementation` or `--flash_attn` asks for wins. Without documents side by side in a row (packed or
    padding-free), transformers chooses.

    Raises:
        ArgumentError: An attention that nobody knows, that cannot run here, or that would let documents side by side
            see each other.
    """
    machine = this_machine(training_args, dtype=model_args.dtype)
    if training_args.sequence_parallel_size > 1:
        inner = VARLEN if machine.varlen else SEGMENTS
        notice(f"attention: {ULYSSES}, which is {inner} over whole rows, for a share of the heads a process")
        return ULYSSES
    asked = model_args.attn_implementation or (_flash(machine) if model_args.flash_attn else None)
    if asked is not None:
        refuse_unknown(asked, machine)
    if not training_args.flat_batches:
        return asked
    model_class = causal_class(config)
    way, reason = isolation_method(config, model_class)
    if way == PADDED or model_class is None:
        raise ArgumentError(
            f"documents of a row of {config.model_type} cannot be kept apart: {reason}",
            place="--packing / --padding_free",
            fix="add --packing False (and no --padding_free)",
        )
    if way != ATTENTION:
        notice(f"documents of a row, layers with a state end it with each: {reason}")
    if not has_attention(config):
        return asked
    if asked is not None:
        refuse_attention(asked, machine)
        return asked
    shared = bool(getattr(training_args, "shared_prompts", False))
    if shared:  # only hftune's own let several answers or documents of a row see one prompt
        machine = dataclasses.replace(machine, flash=frozenset(), flex=False)
    chosen, reason = choose_attention(config, model_class, machine)
    notice(f"attention: {chosen} ({reason}{'; shared prompts are computed once' if shared else ''})")
    return chosen


def _decide_padding_free(
    config: PreTrainedConfig, model_args: ModelArguments, training_args: PTArguments | SFTArguments
) -> None:
    """Set `padding_free` where it was left out: rows are padded only where documents cannot share one.

    The losses are the same; pads, which are a quarter of a usual batch, are not computed.
    """
    if training_args.padding_free is not None:
        return
    sees_all = bool(getattr(training_args, "cross_document_attention", False))
    way, reason = isolation_method(config, causal_class(config))
    if way == PADDED and training_args.packing and not sees_all and "packing" not in training_args.given:
        training_args.packing = False
        notice(f"documents are not packed: {reason}")
    packed = training_args.packing or bool(training_args.eval_packing)
    if training_args.sequence_parallel_size > 1:
        # What a group of processes shares is one row a batch. A packed block is such a row already, and where its
        # documents may see each other it counts as one document.
        training_args.padding_free = not packed or sees_all
        return
    training_args.padding_free = not packed and _lie_side_by_side(config, model_args, training_args)
    if training_args.padding_free:
        notice("the documents of a batch lie side by side in one row, without pads (--padding_free False pads them)")


def _lie_side_by_side(config: PreTrainedConfig, model_args: ModelArguments, training_args: StageArguments) -> bool:
    """Whether this machine has an attention that keeps documents apart and is as quick as one over padded rows."""
    asked = model_args.attn_implementation
    machine = this_machine(training_args, dtype=model_args.dtype)
    # sdpa, eager and compiled models take a dense mask of tokens by tokens, with which one long row costs more than
    # several padded ones.
    if (asked and "flash" not in asked) or machine.compiled:
        return False
    model_class = causal_class(config)
    if model_class is None or isolation_method(config, model_class)[0] == PADDED:
        return False
    # On a GPU a call of SDPA for each document is slower than one call over a padded batch; on a CPU it is not.
    return (
        not (machine.major and has_attention(config)) or choose_attention(config, model_class, machine)[0] != SEGMENTS
    )


def report_attention(model: PreTrainedModel, model_args: ModelArguments, training_args: StageArguments) -> None:
    """Say which attention a loaded model has, unless choosing it said so already."""
    asked = model_args.attn_implementation or model_args.flash_attn
    if asked or not training_args.flat_batches:
        reason = "as asked" if asked else "transformers' choice; rows are padded"
        notice(f"attention: {model.config._attn_implementation} ({reason})")


def choose_attention(config: PreTrainedConfig, model_class: type[PreTrainedModel], machine: Machine) -> tuple[str, str]:
    """The fastest attention that is exact for this model on this machine, and why it is that one."""
    text = config.get_text_config()
    softcap = getattr(text, "attn_logit_softcapping", None) is not None
    # Without SDPA an architecture has soft caps, which its config says, or attention sinks, which no config field does.
    sinks = not model_class._supports_sdpa and not softcap
    dropout = bool(getattr(text, "attention_dropout", 0.0))
    sizes = [head_size(layer) for layer in attention_layers(config)]
    flex = machine.major and machine.flex and model_class._supports_flex_attn and not dropout
    flex = flex and min(sizes, default=0) >= MIN_FLEX_HEAD_SIZE
    version = _flash_version(machine)
    # What both FlashAttention and torch's own take.
    flash = machine.half and not softcap and not sinks and max(sizes, default=0) <= MAX_HEAD_SIZE
    if version and flash and model_class._supports_flash_attn:
        return f"flash_attention_{version}", f"FlashAttention {version} is installed"
    # Under torch.compile the functions of hftune would break the graph at every layer: they read lengths from tensors.
    if machine.compiled and not sinks:
        if flex:
            return "flex_attention", "the model is compiled"
        # Both with a dense mask of tokens by tokens.
        return ("sdpa" if model_class._supports_sdpa else "eager"), "the model is compiled"
    if machine.varlen and flash and not dropout:
        return VARLEN, "torch's own FlashAttention, all documents in a call"
    # Not with sinks: GPT-OSS keeps its position ids from its mask (transformers 5.23), which only our own makes good.
    if flex and not sinks:
        return "flex_attention", "soft caps or float32, which FlashAttention does not take"
    return SEGMENTS, "SDPA, a document at a time"


def _flash_version(machine: Machine) -> int | None:
    """The version to use: FlashAttention 3 is for Hopper, 4 for Blackwell, 2 for Ampere and later."""
    preferred = {8: (2,), 9: (3, 2, 4)}.get(machine.major, (4, 2) if machine.major > 9 else ())
    return next((version for version in preferred if version in machine.flash), None)


def _flash(machine: Machine) -> str | None:
    """What `--flash_attn` stands for."""
    version = _flash_version(machine)
    if version is not None:
        return f"flash_attention_{version}"
    notice("--flash_attn: FlashAttention is not installed, or there is no GPU for it; it has no effect")
    return None


def _why_padded(config: PreTrainedConfig, model_args: ModelArguments, args: StageArguments) -> str | None:
    """Why documents cannot lie side by side in a row; None where they can."""
    way, reason = isolation_method(config, causal_class(config))
    if way == PADDED:
        return reason
    try:
        if model_args.attn_implementation:
            refuse_attention(model_args.attn_implementation, this_machine(args, dtype=model_args.dtype))
    except ArgumentError as problem:
        return problem.cause
    return None


def _why_not_one_row(config: PreTrainedConfig, model_args: ModelArguments, args: StageArguments) -> str | None:
    layers = set(getattr(config.get_text_config(), "layer_types", None) or ())
    way, reason = isolation_method(config, causal_class(config))
    if way != ATTENTION:
        return reason
    if config.get_text_config(decoder=True).model_type in DEAF_ATTENTION:
        return "its layers tell their attention nothing of shared prompts"
    if model_args.attn_implementation not in (None, SEGMENTS, VARLEN):
        return f"{model_args.attn_implementation} knows no shared prompts"
    if args.torch_compile:
        return "the model is compiled"
    if other := layers - SHARED_LAYERS:
        return f"layers of {', '.join(sorted(other))}"
    return None


def _why_scores_padded(config: PreTrainedConfig, model_args: ModelArguments, training_args: RMArguments) -> str | None:
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
    return _why_padded(config, model_args, training_args)
