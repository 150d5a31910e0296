"""Sources, mixing, shuffling and lengths."""

from __future__ import annotations

from hftune.arguments.names.row import Answer, Ask, Given
from hftune.arguments.names.values.common import cannot, mapped, switched

# ERNIEKit's "random" draws from the sources by weight without end; --max_steps says when it stops.
mix_strategy = mapped("mix_strategy", {"random": "over"}, "")
shuffled = switched("train_sampling_strategy", None, "sequential")
grouped = switched("train_sampling_strategy", "group_by_length", None)
strict = switched("on_bad_record", "error", "drop")
from_cache = switched("overwrite_cache", None, "True")
causal_over_documents = switched("cross_document_attention", "True", None)


_STOPS = {"first_exhausted": "under", "all_exhausted": "over"}


def interleaved(ask: Ask) -> Answer:
    """Megatron-SWIFT's `interleave_prob`, which stops when the first source is used up unless told otherwise."""
    weights = ask.text("interleave_prob")
    stops = ask.text("stopping_strategy") or "first_exhausted"
    if weights is None:
        return Answer([], ("--stopping_strategy has no effect without --interleave_prob",))
    if stops not in _STOPS:
        raise cannot("stopping_strategy", stops, f"use one of {', '.join(_STOPS)}")
    given: Given = [("train_dataset_prob", [",".join(weights.replace(",", " ").split())])]
    return Answer([*given, ("mix_strategy", [_STOPS[stops]])])


def per_token(ask: Ask) -> Answer:
    """`calculate_per_token_loss`: tokens have the same weight over a step in pre-training and SFT, pairs elsewhere."""
    wanted, done = bool(ask.flag("calculate_per_token_loss")), ask.stage in ("pt", "sft")
    if wanted != done:
        why = "every token of a step has the same weight" if done else "every pair or answer has the same weight"
        raise cannot("calculate_per_token_loss", wanted, f"{why}; leave it out")
    return Answer()


def loss_scale(ask: Ask) -> Answer:
    """Megatron-SWIFT's `loss_scale`: which tokens are trained."""
    value = (ask.text("loss_scale") or "").lower()
    if value in ("default", ""):
        return Answer()
    if value == "last_round":
        return Answer([("train_on_last_turn", ["True"])])
    if value == "all":
        return Answer([("train_on_inputs", ["True"])])
    raise cannot("loss_scale", value, "use default, last_round or all; or weights of turns in the records")


def truncation(ask: Ask) -> Answer:
    """`truncation_strategy`: hftune cuts the end of what is too long, which is "right"."""
    value = (ask.text("truncation_strategy") or "").lower()
    if value == "right":
        return Answer()
    if value == "split":
        return Answer([("packing_strategy", ["wrapped" if ask.stage == "pt" else "bfd_split"])])
    raise cannot("truncation_strategy", value, "what is too long loses its end (right), or is cut in pieces (split)")
