"""Optimizers, learning-rate schedules, and losses of preference optimisation."""

from __future__ import annotations

from hftune.arguments.names.row import Answer, Ask, Given
from hftune.arguments.names.translators.common import cannot, number

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
    # Megatron's default; torch's, which holds here, is none.
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
    # Megatron's default style; transformers' is linear.
    if style == "wsd" and ask.other("lr_wsd_decay_style") is None:
        given.append(("lr_wsd_decay_style", ["exponential"]))
    return Answer(given)


THEIR_NAMES = {"or": "odds_ratio"}
"""ERNIEKit's names of losses that have another one here."""


def preference_loss(ask: Ask) -> Answer:
    """`rpo_alpha`, `sft_loss_ratio`, `pref_loss_ratio`, `orpo_beta`: a weighted sum of the preference and the SFT loss.

    Raises:
        ArgumentError: Weights that were given as well, or another loss next to `orpo_beta`.
    """
    if ask.stage != "dpo":
        return _loss_type_alone(ask)
    orpo = ask.text("orpo_beta")
    given: Given = [] if orpo is None else [("beta", [orpo])]
    named = ask.text("loss_type") or ("sigmoid" if orpo is None else "orpo")
    kinds = [THEIR_NAMES.get(kind, kind) for kind in named.replace(",", " ").split()]
    if orpo is not None and kinds != ["orpo"]:
        raise cannot("orpo_beta", orpo, f"--loss_type is {named}; use --loss_type orpo, or --beta")
    if orpo is not None or "loss_type" in ask.given:
        given.append(("loss_type", kinds))
    supervised = number("sft_loss_ratio", ask.text("rpo_alpha", "sft_loss_ratio") or "0")
    preference = number("pref_loss_ratio", ask.text("pref_loss_ratio") or "1")
    # The plain loss needs no weights, and a manifest without them compares equal.
    if (supervised, preference) == (0, 1):
        return Answer(given)
    if ask.other("loss_weights") is not None:
        raise cannot("sft_loss_ratio", supervised, "--loss_weights says it already; give one of them")
    # TRL adds losses up by weight.
    weighted = [*kinds, "sft"] if supervised else kinds
    weights = [f"{preference:g}"] * len(kinds) + ([f"{supervised:g}"] if supervised else [])
    rest = [pair for pair in given if pair[0] != "loss_type"]
    said = f"loss: {' + '.join(f'{weight} {kind}' for weight, kind in zip(weights, weighted, strict=True))}"
    return Answer([*rest, ("loss_type", weighted), ("loss_weights", weights)], (said,))


def _loss_type_alone(ask: Ask) -> Answer:
    """In other stages `loss_type` is the trainer's own; the rest has no meaning there."""
    own = ("loss_type", "label_smoothing") if ask.stage == "rm" else ("loss_type",)
    for name in ask.given:
        if name not in own:
            raise cannot(name, ask.text(name), "it belongs to run_dpo.py")
    return Answer([(name, list(ask.given[name])) for name in own if name in ask.given])


def reference_update(ask: Ask) -> Answer:
    """ERNIEKit's `ref_model_update_steps`: the reference becomes the trained model every so many steps."""
    steps = int(number("ref_model_update_steps", ask.text("ref_model_update_steps") or ""))
    if steps <= 0:
        return Answer()
    sync: Given = [("sync_ref_model", ["True"]), ("ref_model_sync_steps", [str(steps)])]
    # 1: the reference becomes the policy, as in ERNIEKit; TRL would mix the two.
    return Answer([*sync, ("ref_model_mixup_alpha", ["1.0"])])
