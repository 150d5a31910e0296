"""Stretching rotary positions (arXiv:2104.09864) so that a model reads longer rows than it was trained on."""

from __future__ import annotations

import math
from typing import Any

from transformers import PreTrainedConfig

from hftune.arguments.model import ModelArguments
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.opening.json_file import parse_json

BY_NAME: dict[str, dict[str, float]] = {
    "linear": {},
    "dynamic": {},
    "yarn": {},
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}
"""Kinds that are complete with a factor, and their other constants: those of Llama 3.1 for llama3. linear is position
interpolation (arXiv:2306.15595), yarn arXiv:2309.00071; dynamic is NTK-aware and stretches only as far as a row needs.
"""

_KEEPS_ORIGINAL = ("yarn", "llama3", "longrope")
"""Kinds that are computed from the context before stretching, kept in `original_max_position_embeddings`."""


def scale_rope(config: PreTrainedConfig, model_args: ModelArguments, rows: int | None) -> None:
    """Change a config's `rope_parameters` and `max_position_embeddings` as `--rope_scaling` asks, and say so.

    Args:
        config: Changed in place.
        model_args: `rope_scaling` by name or as JSON (or a mapping, from YAML), `rope_factor`.
        rows: Tokens of the longest row, which the factor is taken from where none is given.

    Raises:
        ArgumentError: An unknown kind, a factor below 1, a model without rotary positions, or one that is stretched
            already in another way.
    """
    asked = model_args.rope_scaling
    if asked is None:  # called for runs with one of the two
        raise _problem("a factor without a kind of scaling", "add --rope_scaling linear, dynamic, yarn or llama3")
    text = config.get_text_config()
    current = _current(text)
    by_name = isinstance(asked, str) and not asked.lstrip().startswith("{")
    wanted = _named(str(asked), text, model_args, rows) if by_name else _inline(asked, text)
    # A flag that all stages are given must not stretch twice: an earlier one may have done the same.
    if wanted is None or all(current.get(name) == value for name, value in wanted.items()):
        return
    # A kind by name is applied to a model as it was trained; JSON says all values, and may replace others.
    if by_name and current.get("rope_type", "default") != "default":
        raise _problem(
            f"the model's positions are scaled already: {current}",
            "leave the flag out, or give all of the new values as JSON in place of the old ones",
        )
    before, after = _stretch(text, current, wanted)
    notice(f"rope: {wanted['rope_type']}, factor {wanted.get('factor', 1):g}: context {before} -> {after} tokens")


def trained_context(text_config: PreTrainedConfig) -> int:
    """Tokens that the model was trained to tell apart, before any stretching."""
    original = _current(text_config).get("original_max_position_embeddings")
    return int(original or text_config.max_position_embeddings)


def _current(text_config: PreTrainedConfig) -> dict[str, Any]:
    """The rope of all layers, or of those with full attention where layers differ (the others see a window)."""
    parameters = getattr(text_config, "rope_parameters", None)
    if not parameters:
        raise _problem(
            f"{text_config.model_type} has no rotary positions to scale",
            "leave the flag out: the model's positions are learned, or it has none",
        )
    return parameters.get("full_attention", parameters)


def _named(kind: str, text: PreTrainedConfig, model_args: ModelArguments, rows: int | None) -> dict[str, Any] | None:
    if kind not in BY_NAME:
        raise _problem(f"there is no rope scaling {kind!r}", f"use {', '.join(BY_NAME)}, or inline JSON")
    context = trained_context(text)
    factor = model_args.rope_factor
    if factor is None:
        if rows is None:
            raise _problem("nothing says how long rows get", "add --rope_factor, or --max_length")
        factor = float(math.ceil(rows / context))
    if factor < 1:
        raise _problem(f"a factor of {factor:g} would shrink the context", "give --rope_factor 1 or more")
    if factor == 1:
        notice(f"--rope_scaling {kind} changes nothing: rows of {rows} tokens fit the context of {context}")
        return None
    return {"rope_type": kind, "factor": float(factor), **BY_NAME[kind]}


def _inline(asked: Any, text: PreTrainedConfig) -> dict[str, Any]:
    fix = 'write {"rope_type": "yarn", "factor": 4.0}'
    parsed = asked if isinstance(asked, dict) else parse_json(asked, "--rope_scaling", error=ArgumentError, fix=fix)
    given = dict(parsed)
    kind = given.pop("type", None)  # the name before transformers 5
    given.setdefault("rope_type", kind)
    if given["rope_type"] is None:
        raise _problem("no rope_type in the JSON", 'write {"rope_type": "yarn", "factor": 4.0}')
    if given["rope_type"] in _KEEPS_ORIGINAL:
        given.setdefault("original_max_position_embeddings", trained_context(text))
    if given["rope_type"] == "llama3":
        given = {**BY_NAME["llama3"], **given}
    return given


def _stretch(text: PreTrainedConfig, current: dict[str, Any], wanted: dict[str, Any]) -> tuple[int, int]:
    context = int(wanted.get("original_max_position_embeddings") or trained_context(text))
    # The base frequency and the share of rotary dimensions are the model's, whatever the scaling.
    kept: dict[str, Any] = {name: current[name] for name in ("rope_theta", "partial_rotary_factor") if name in current}
    # In place: the same mapping may be the one of the layers with full attention within `rope_parameters`.
    current.clear()
    current.update({**kept, **wanted})
    if current["rope_type"] in _KEEPS_ORIGINAL:
        current.setdefault("original_max_position_embeddings", context)
        if hasattr(text, "original_max_position_embeddings"):
            text.original_max_position_embeddings = current["original_max_position_embeddings"]
    after = int(context * float(current.get("factor") or 1.0))
    # The formula of dynamic reads the context before stretching from this field.
    if current["rope_type"] != "dynamic":
        text.max_position_embeddings = after
    if getattr(text, "head_dim", 0) is None:
        # A field that is None (Mixtral's default), with which dynamic and yarn would compute (transformers 5.23).
        text.head_dim = text.hidden_size // text.num_attention_heads
    try:
        text.standardize_rope_params()
        text.validate_rope()
    except (KeyError, ValueError) as error:
        raise _problem(str(error.args[0]), "give what this architecture takes, as JSON, or leave it out") from error
    return context, after


def _problem(cause: str, fix: str) -> ArgumentError:
    return ArgumentError(cause, place="--rope_scaling / --rope_factor", fix=fix)
