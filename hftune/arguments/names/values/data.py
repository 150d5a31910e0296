"""Sources, mixing, shuffling and lengths."""

from __future__ import annotations

from hftune.arguments.names.row import Answer, Ask
from hftune.arguments.names.values.common import cannot, mapped, switched

# ERNIEKit's "random" draws from the sources by weight without end; --max_steps says when it stops.
mix_strategy = mapped("mix_strategy", {"random": "over"}, "")
stopping = mapped("mix_strategy", {"first_exhausted": "under", "all_exhausted": "over"}, "use --mix_strategy")
shuffled = switched("train_sampling_strategy", None, "sequential")
grouped = switched("train_sampling_strategy", "group_by_length", None)
strict = switched("on_bad_record", "error", "drop")
from_cache = switched("overwrite_cache", None, "True")
causal_over_documents = switched("cross_document_attention", "True", None)


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
