"""Optimizers and learning-rate schedules."""

from __future__ import annotations

from hftune.arguments.names.row import Answer, Ask, Given
from hftune.arguments.names.values.common import cannot, mapped

# Names that hftune has are left alone; this is ERNIEKit's word for AdamW with options of its own.
optimizer = mapped("optim", {"adamw_custom": "adamw_torch"}, "")

_STYLES = {
    "constant": "constant_with_warmup",
    "linear": "linear",
    "cosine": "cosine",
    "inverse-square-root": "inverse_sqrt",
    "wsd": "warmup_stable_decay",
}


def megatron_optimizer(ask: Ask) -> Answer:
    """`optimizer`: adam is AdamW there, too; the momentum of sgd is 0.9 unless it is given."""
    name = (ask.text("optimizer") or "").lower()
    given: Given = [("optim", [name])]
    if name == "sgd" and ask.other("sgd_momentum") is None:
        given.append(("sgd_momentum", ["0.9"]))
    return Answer(given)


def schedule(ask: Ask) -> Answer:
    """Megatron's `lr_decay_style`; its WSD decays exponentially unless a style is given.

    Raises:
        ArgumentError: A style without a counterpart.
    """
    style = (ask.text("lr_decay_style") or "").lower()
    if style not in _STYLES:
        raise cannot("lr_decay_style", style, f"it is one of {', '.join(_STYLES)}; or use --lr_scheduler_type")
    given: Given = [("lr_scheduler_type", [_STYLES[style]])]
    if style == "wsd" and ask.other("lr_wsd_decay_style") is None:
        given.append(("lr_wsd_decay_style", ["exponential"]))
    return Answer(given)
