"""Which activations are computed again in the backward pass. It changes memory and time, never numbers."""

from __future__ import annotations

import json
import re
from fractions import Fraction

from hftune.arguments.checkpointing import ATTENTION, CORE_ATTENTION, MLP
from hftune.arguments.names.row import Answer, Ask, Given
from hftune.arguments.names.values.common import cannot

_MODULES = {"core_attn": CORE_ATTENTION, "mlp": MLP, "moe": MLP}
_DETAILS = ("recompute_use_reentrant", "offload_recompute_inputs", "no_recompute_layers")
_NOTHING = ("false", "none", "null")
_IDLE = "--{} has no effect: nothing is recomputed"


def recompute(ask: Ask) -> Answer:
    """ERNIEKit's and Megatron's `recompute_*`, fms-fsdp's activation checkpointing.

    Raises:
        ArgumentError: Parts of a layer, or a share of the layers, that cannot be chosen.
    """
    if ask.text("fsdp_activation_checkpointing", "selective_checkpointing") is not None:
        return _share_of_blocks(ask)
    if not _wanted(ask):
        idle = tuple(
            _IDLE.format(name) for name in _DETAILS if ask.text(name) is not None and ask.flag(name) is not False
        )
        off: Given = [("gradient_checkpointing", ["False"])]
        return Answer(off if ask.text("recompute", "recompute_granularity") is not None else [], idle)
    which, said = _which(ask)
    return Answer([*_parts(ask), *which, *_how(ask)], said)


def _wanted(ask: Ask) -> bool:
    """`recompute` decides where it is given (ERNIEKit); without it the granularity does (Megatron)."""
    if ask.text("recompute") is not None:
        return bool(ask.flag("recompute"))
    granularity = ask.text("recompute_granularity")
    return granularity is not None and granularity.lower() != "none"


def _parts(ask: Ask) -> Given:
    granularity = (ask.text("recompute_granularity") or "full").lower()
    if granularity == "full":
        return [("gradient_checkpointing", ["True"])]
    if granularity == "full_attn":
        return [("activation_checkpointing", [ATTENTION])]
    if granularity not in ("selective", "core_attn"):
        raise cannot("recompute_granularity", granularity, "use full, full_attn, core_attn, selective or none")
    modules = (ask.text("recompute_modules") or "core_attn").split()
    for module in modules:
        if module not in _MODULES:
            raise cannot("recompute_modules", module, f"use {', '.join(_MODULES)}; or --recompute_granularity full")
    return [("activation_checkpointing", [",".join(dict.fromkeys(_MODULES[module] for module in modules))])]


def _which(ask: Ask) -> tuple[Given, tuple[str, ...]]:
    """Some of the layers: Megatron's `block` takes the first ones, ERNIEKit leaves some out."""
    left_out = re.findall(r"\d+", ask.text("no_recompute_layers") or "")
    if left_out:
        return [("activation_checkpointing_layers", [f"not {','.join(left_out)}"])], ()
    count, method = int(ask.text("recompute_num_layers") or "1"), (ask.text("recompute_method") or "").lower()
    if method == "block":
        return [("activation_checkpointing_layers", [f"0-{count - 1}" if count > 1 else "0"])], ()
    if method not in ("", "none", "uniform"):
        raise cannot("recompute_method", method, "use uniform or block")
    return [], ("--recompute_num_layers has no effect: layers are recomputed one by one",) if count != 1 else ()


def _how(ask: Ask) -> Given:
    given: Given = []
    if ask.flag("offload_recompute_inputs"):
        given.append(("activation_checkpointing_offload", ["True"]))
    if ask.flag("recompute_use_reentrant"):
        given.append(("gradient_checkpointing_kwargs", [json.dumps({"use_reentrant": True})]))
    return given


def _share_of_blocks(ask: Ask) -> Answer:
    """fms-fsdp: 1 is every block, 1/2 every second; both sides choose the blocks in the same way."""
    text = ask.text("selective_checkpointing") or "1"
    try:
        share = Fraction(text).limit_denominator(1000)
    except (ValueError, ZeroDivisionError) as error:
        raise cannot("selective_checkpointing", text, "give a share such as 1/3, up to 1") from error
    if ask.flag("fsdp_activation_checkpointing") is False or share == 0:
        return Answer([("gradient_checkpointing", ["False"])])
    if ask.text("fsdp_activation_checkpointing") is None:
        return Answer([], ("--selective_checkpointing has no effect without --fsdp_activation_checkpointing",))
    if not 0 < share <= 1:
        raise cannot("selective_checkpointing", text, "give a share such as 1/3, up to 1")
    on: Given = [("gradient_checkpointing", ["True"])]
    return Answer(on if share == 1 else [*on, ("activation_checkpointing_layers", [str(share)])])
