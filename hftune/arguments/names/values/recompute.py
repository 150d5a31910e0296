"""Which activations are computed again in the backward pass. It changes memory and time, never numbers."""

from __future__ import annotations

import json
from fractions import Fraction

from transformers import TrainingArguments

from hftune.arguments.names.row import Answer, Ask
from hftune.arguments.names.values.common import cannot

_CORE = "the attention alone is recomputed, which its kernels (FlashAttention, SDPA) do themselves"


def recompute(ask: Ask) -> Answer:
    """ERNIEKit's and Megatron's `recompute_*`, fms-fsdp's activation checkpointing.

    Raises:
        ArgumentError: Parts of a layer, or some of the layers, that cannot be chosen.
    """
    if ask.text("fsdp_activation_checkpointing", "selective_checkpointing") is not None:
        return _share_of_blocks(ask)
    if ask.text("no_recompute_layers") is not None and _wanted(ask):
        raise cannot("no_recompute_layers", ask.text("no_recompute_layers"), "every layer is recomputed; leave it out")
    granularity = (ask.text("recompute_granularity") or "").lower()
    if not _wanted(ask):
        return Answer([("gradient_checkpointing", ["False"])])
    if granularity in ("selective", "core_attn"):
        _only_attention(ask)
        return Answer([("gradient_checkpointing", ["False"])], (_CORE,))
    if granularity not in ("", "full"):
        raise cannot("recompute_granularity", granularity, "use full (whole layers) or core_attn")
    if ask.text("recompute_method") == "block":
        raise cannot("recompute_method", "block", "every layer is recomputed; leave it out")
    units = (ask.text("recompute_num_layers") or "1") != "1"
    said = ("--recompute_num_layers has no effect: layers are recomputed one by one",) if units else ()
    return Answer([("gradient_checkpointing", ["True"])], said)


def _wanted(ask: Ask) -> bool:
    """`recompute` decides where it is given (ERNIEKit); without it the granularity does (Megatron)."""
    if ask.text("recompute") is not None:
        return bool(ask.flag("recompute"))
    granularity = ask.text("recompute_granularity")
    return granularity is not None and granularity.lower() != "none"


def _only_attention(ask: Ask) -> None:
    modules = (ask.text("recompute_modules") or "core_attn").split()
    if modules != ["core_attn"]:
        raise cannot(
            "recompute_modules", " ".join(modules), "use --recompute_granularity full, which recomputes them too"
        )


def _share_of_blocks(ask: Ask) -> Answer:
    """fms-fsdp: 1 is every block, 1/2 every second."""
    share = Fraction(ask.text("selective_checkpointing") or "1").limit_denominator(1000)
    if ask.flag("fsdp_activation_checkpointing") is False or share == 0:
        return Answer([("gradient_checkpointing", ["False"])])
    if ask.text("fsdp_activation_checkpointing") is None:
        return Answer([], ("--selective_checkpointing has no effect without --fsdp_activation_checkpointing",))
    on = ("gradient_checkpointing", ["True"])
    if share == 1:
        return Answer([on])
    if share.numerator != 1 or ask.stage != "pt" or not hasattr(TrainingArguments, "activation_checkpointing_kwargs"):
        raise cannot("selective_checkpointing", share, "use 1, or 1/k for every k-th block in pre-training")
    said = f"every {share.denominator} layers one is recomputed; fms-fsdp starts in the middle of the first group"
    kwargs = json.dumps({"every_n_layers": share.denominator})
    return Answer([on, ("activation_checkpointing_kwargs", [kwargs])], (said,))
