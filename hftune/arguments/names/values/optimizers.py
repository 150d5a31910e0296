"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import json
from typing import Any

from hftune.arguments.names.row import Answer, Ask
from hftune.arguments.names.values.common import cannot, mapped, number

# Names that transformers has are left alone; these are other tools' words for AdamW with decoupled weight decay.
optimizer = mapped(
    "optim",
    {"adam": "adamw_torch", "adamw": "adamw_torch", "adamw_custom": "adamw_torch"},
    "",
)
_sgd = mapped("optim", {"adam": "adamw_torch", "sgd": "sgd"}, "use --optim, which lists what there is")

_STYLES = {
    "constant": "constant_with_warmup",
    "linear": "linear",
    "cosine": "cosine",
    "inverse-square-root": "inverse_sqrt",
    "wsd": "warmup_stable_decay",
}
_WSD_DECAYS = {"linear": "linear", "cosine": "cosine", "minus_sqrt": "1-sqrt"}


def megatron_optimizer(ask: Ask) -> Answer:
    """`optimizer` adam (which is AdamW there, too) and sgd, whose momentum there is 0.9 unless it is said."""
    answer = _sgd(ask)
    plain = (ask.text("optimizer") or "").lower() == "sgd"
    return Answer(answer.given, ("SGD is trained without momentum",) if plain else ())


def schedule(ask: Ask) -> Answer:
    """Megatron's `lr_decay_style` with its `lr_decay_iters` and `lr_wsd_*`.

    Raises:
        ArgumentError: A style without a counterpart, or a decay that ends before training does.
    """
    style = (ask.text("lr_decay_style") or "").lower()
    steps = ask.text("lr_decay_iters")
    if steps is not None and steps != ask.other("max_steps"):
        raise cannot("lr_decay_iters", steps, "the rate decays until the last step; leave it out, or equal --max_steps")
    if not style:
        return Answer()
    if style not in _STYLES:
        raise cannot("lr_decay_style", style, f"it is one of {', '.join(_STYLES)}; or use --lr_scheduler_type")
    given = [("lr_scheduler_type", [_STYLES[style]])]
    if style == "wsd":
        given.append(("lr_scheduler_kwargs", [json.dumps(_wsd(ask))]))
    return Answer(given)


def _wsd(ask: Ask) -> dict[str, Any]:
    steps = ask.text("lr_wsd_decay_iters")
    if steps is None:
        raise cannot("lr_decay_style", "WSD", "give --lr_wsd_decay_iters, the steps that the rate decays over")
    decay = (ask.text("lr_wsd_decay_style") or "exponential").lower()
    if decay not in _WSD_DECAYS:
        raise cannot("lr_wsd_decay_style", decay, f"use one of {', '.join(_WSD_DECAYS)}")
    return {"num_decay_steps": int(number("lr_wsd_decay_iters", steps)), "decay_type": _WSD_DECAYS[decay]}
