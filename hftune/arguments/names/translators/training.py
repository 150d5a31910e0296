"""Records, lengths and batches, which other tools count over all processes; optimizers, schedules and losses."""

from __future__ import annotations

from hftune.arguments.names.row import NamedValues, Request, Translated, cannot, number
from hftune.arguments.stage_table import base_stage

_STYLES = {
    "constant": "constant_with_warmup",
    "linear": "linear",
    "cosine": "cosine",
    "inverse-square-root": "inverse_sqrt",
    "wsd": "warmup_stable_decay",
}


def megatron_optimizer(request: Request) -> Translated:
    """`optimizer`: adam is AdamW there, too; the momentum of sgd is 0.9 unless it is given."""
    name = (request.text("optimizer") or "").lower()
    given: NamedValues = [("optim", [name])]
    # Megatron's default; torch's, which holds here, is none.
    if name == "sgd" and request.other("sgd_momentum") is None:
        given.append(("sgd_momentum", ["0.9"]))
    return Translated(given)


def schedule(request: Request) -> Translated:
    """Megatron's `lr_decay_style`; its WSD decays exponentially unless a style is given.

    Raises:
        ArgumentError: A style without a counterpart.
    """
    style = (request.text("lr_decay_style") or "").lower()
    if style not in _STYLES:
        raise cannot("lr_decay_style", style, f"it is one of {', '.join(_STYLES)}; or use --lr_scheduler_type")
    given: NamedValues = [("lr_scheduler_type", [_STYLES[style]])]
    # Megatron's default style; transformers' is linear.
    if style == "wsd" and request.other("lr_wsd_decay_style") is None:
        given.append(("lr_wsd_decay_style", ["exponential"]))
    return Translated(given)


THEIR_NAMES = {"or": "odds_ratio"}
"""ERNIEKit's names of losses that have another one here."""


def preference_loss(request: Request) -> Translated:
    """`rpo_alpha`, `sft_loss_ratio`, `orpo_beta` and their like: preference and SFT loss, weighted.

    Raises:
        ArgumentError: Weights that were given as well, or another loss next to `orpo_beta`.
    """
    if base_stage(request.stage) != "dpo":
        return _loss_type_alone(request)
    orpo = request.text("orpo_beta")
    given: NamedValues = [] if orpo is None else [("beta", [orpo])]
    named = request.text("loss_type") or ("sigmoid" if orpo is None else "orpo")
    kinds = [THEIR_NAMES.get(kind, kind) for kind in named.replace(",", " ").split()]
    if orpo is not None and kinds != ["orpo"]:
        raise cannot("orpo_beta", orpo, f"--loss_type is {named}; use --loss_type orpo, or --beta")
    if orpo is not None or "loss_type" in request.given:
        given.append(("loss_type", kinds))
    supervised = number("sft_loss_ratio", request.text("rpo_alpha", "sft_loss_ratio") or "0")
    preference = number("pref_loss_ratio", request.text("pref_loss_ratio") or "1")
    # The plain loss needs no weights, and a manifest without them compares equal.
    if (supervised, preference) == (0, 1):
        return Translated(given)
    if request.other("loss_weights") is not None:
        raise cannot("sft_loss_ratio", supervised, "--loss_weights says it already; give one of them")
    # TRL adds losses up by weight.
    weighted = [*kinds, "sft"] if supervised else kinds
    weights = [f"{preference:g}"] * len(kinds) + ([f"{supervised:g}"] if supervised else [])
    rest = [pair for pair in given if pair[0] != "loss_type"]
    said = f"loss: {' + '.join(f'{weight} {kind}' for weight, kind in zip(weights, weighted, strict=True))}"
    return Translated([*rest, ("loss_type", weighted), ("loss_weights", weights)], (said,))


def _loss_type_alone(request: Request) -> Translated:
    """In other stages `loss_type` is the trainer's own; the rest has no meaning there."""
    own = ("loss_type", "label_smoothing") if base_stage(request.stage) == "rm" else ("loss_type",)
    for name in request.given:
        if name not in own:
            raise cannot(name, request.text(name), "it belongs to run_dpo.py")
    return Translated([(name, list(request.given[name])) for name in own if name in request.given])


def reference_update(request: Request) -> Translated:
    """ERNIEKit's `ref_model_update_steps`: the reference becomes the trained model every so many steps."""
    steps = int(number("ref_model_update_steps", request.text("ref_model_update_steps") or ""))
    if steps <= 0:
        return Translated()
    sync: NamedValues = [("sync_ref_model", ["True"]), ("ref_model_sync_steps", [str(steps)])]
    # 1: the reference becomes the policy, as in ERNIEKit; TRL would mix the two.
    return Translated([*sync, ("ref_model_mixup_alpha", ["1.0"])])
