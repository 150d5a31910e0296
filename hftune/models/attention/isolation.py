"""How documents of one row are kept apart in a model, by its architecture, and by which attention."""

from __future__ import annotations

import inspect
import sys

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hftune.errors import ArgumentError, did_you_mean, shown
from hftune.models.attention.machine import Machine
from hftune.models.attention.segments import SEGMENTS, VARLEN

ISOLATED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention", "sparse", "dense", "moe"}
"""Kinds of layers, in transformers' words, in which a token's past is what its attention mask says."""

MIXING_LAYERS = {"linear_attention", "conv", "hybrid", "hybrid_sliding", "mlp"}
"""Kinds with a state or a convolution apart from attention, or with neither: their mixers are found by structure."""

ATTENTION_ARGUMENTS = {"module", "query", "key", "value", "attention_mask", "scaling", "dropout", "kwargs"}
ATTENTION_ARGUMENTS |= {"softcap", "s_aux", "sliding_window"}
"""What `segments_attention` does as a model's own attention does it."""

OWN_MASKS = ("doge",)
"""Architectures whose attention adds to its mask, and so wants one of tokens by tokens."""

DEAF_ATTENTION = ("nemotron", "stablelm")
"""Architectures whose layers hand on nothing of what the model is given: their attention hears of no shared prompts."""

STRETCHED = ("dynamic", "longrope")
"""Rotary positions that stretch as far as the longest document of a row needs."""

_KNOWN = (
    "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention", "sdpa", "eager", SEGMENTS, VARLEN,
)  # fmt: skip
"""They keep documents apart."""

ATTENTION, MIXERS, PADDED = "attention", "mixers", "padded"
"""What keeps documents apart; see `models/attention/documents.py`. PADDED: nothing does within a row."""


def isolation_method(config: PreTrainedConfig, model_class: type[PreTrainedModel] | None) -> tuple[str, str]:
    """What keeps documents of a row apart in such a model, and why attention alone does not ("" where it does).

    Returns:
        ATTENTION, MIXERS (layers with a state end it at borders) or PADDED (nothing does: rows have one document each).
    """
    reason = why_not_isolated(config, model_class)
    if reason is None:
        return ATTENTION, ""
    if model_class is None or not _kinds(config) & MIXING_LAYERS:
        return PADDED, reason
    # What indexes or compresses earlier tokens finds them by their places in a row, which no border changes.
    known = _kinds(config) <= MIXING_LAYERS | ISOLATED_LAYERS
    if not known or (has_attention(config) and _own_attention(config, model_class)):
        return PADDED, _own_attention(config, model_class) or reason
    return MIXERS, reason


def has_attention(config: PreTrainedConfig) -> bool:
    """Whether some layer is attention, or has it besides; a model that does not name its layers has."""
    kinds = _kinds(config)
    return not kinds or bool(kinds - {"linear_attention", "conv", "mlp", "moe"})


def _kinds(config: PreTrainedConfig) -> set[str]:
    return set(getattr(config.get_text_config(decoder=True), "layer_types", None) or ())


def why_not_isolated(config: PreTrainedConfig, model_class: type[PreTrainedModel] | None) -> str | None:
    """Why tokens of this model reach others by other ways than attention; None where they do not."""
    if model_class is None:
        return "its code comes with the model, and cannot be checked"
    others = _kinds(config) - ISOLATED_LAYERS
    # Models with layers of different kinds name them all in `layer_types`; others say it of the whole class.
    if model_class._is_stateful or others:
        kinds = ", ".join(sorted(others)) or "a recurrent state"
        return f"it has layers whose past is more than the attention mask says ({kinds})"
    if not model_class._supports_attention_backend:
        return "it has an attention of its own, which no document borders reach"
    return _own_attention(config, model_class)


def _own_attention(config: PreTrainedConfig, model_class: type[PreTrainedModel]) -> str | None:
    """What of a model's attention depends on more than masks and positions that it is given; None: nothing."""
    if "position_ids" not in inspect.signature(model_class.forward).parameters:
        return "it takes no position ids"
    code = vars(sys.modules[model_class.__module__])
    if any(hasattr(part, "create_position_ids_from_input_ids") for part in code.values() if isinstance(part, type)):
        return "it counts positions from its pad token"
    if config.get_text_config(decoder=True).model_type in OWN_MASKS:
        return "its attention changes the mask that it is given"
    # The arguments of a model's own attention are those that it hands to any other.
    eager = code.get("eager_attention_forward")
    more = set(inspect.signature(eager).parameters) - ATTENTION_ARGUMENTS if eager else set()
    return f"its attention takes more than masks ({', '.join(sorted(more))})" if more else None


def refuse_unknown(asked: str, machine: Machine) -> None:
    """Refuse an attention that transformers does not know, or that cannot run here.

    Raises:
        ArgumentError: Naming those there are.
    """
    # Also kernels of the Hub with that word in their name, OWNER/NAME.
    if "flash" in asked and (not machine.major or not machine.half):
        raise ArgumentError(
            f"{asked} needs a GPU and half precision",
            place="--attn_implementation",
            fix=f"add --bf16 on a GPU, or leave the flag out ({SEGMENTS} is used)",
        )
    if asked not in _KNOWN and asked not in ALL_ATTENTION_FUNCTIONS.valid_keys() and "/" not in asked:
        raise ArgumentError(
            f"there is no attention {shown(asked)}",
            place="--attn_implementation",
            fix=f"{did_you_mean(asked, _KNOWN)} one of: {', '.join(_KNOWN)}; or leave the flag out".strip(),
        )


def refuse_attention(asked: str, machine: Machine) -> None:
    """Refuse an attention that is not known to keep documents apart, or that cannot run here.

    Raises:
        ArgumentError: Naming those that do.
    """
    refuse_unknown(asked, machine)
    # Kernels of the Hub with that word in their name take the borders of documents alike.
    if "flash" not in asked and asked not in _KNOWN:
        raise ArgumentError(
            f"{asked} is not known to keep packed documents apart",
            place="--attn_implementation",
            fix=f"leave the flag out, or give one of: {', '.join(_KNOWN)}",
        )


def why_not_shareable(config: PreTrainedConfig, size: int) -> str | None:
    """Why the tokens of a row of this model cannot be shared by `size` processes; None where nothing is known."""
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    if isinstance(heads, int) and heads < size:
        return f"its {heads} heads of attention do not suffice for {size} processes"
    ropes = getattr(text, "rope_parameters", None) or {}
    kinds = {str(one.get("rope_type")) for one in (ropes, *ropes.values()) if isinstance(one, dict)}
    if any(name in kind for kind in kinds for name in STRETCHED):
        # transformers looks at the largest position that it is given: each process would stretch by its own slice.
        return "its positions stretch by the length of a row, of which each process has a slice"
    chunked = "chunked_attention" in (getattr(text, "layer_types", None) or ())
    if chunked or getattr(text, "attention_chunk_size", None):
        return "its chunked attention is laid out from the beginning of a slice, not of a document"
    return None
