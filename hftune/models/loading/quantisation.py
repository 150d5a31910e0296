"""Weights in 4 and 8 bit: of checkpoints that are stored so, and of bases that are quantised as they load (QLoRA).

transformers' quantizers read stored ones, as whole weights or packed; what none of them serves is refused before
anything loads, with the command that converts it. bitsandbytes quantises (arXiv:2305.14314), on CPU and GPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

from hftune.errors import ArgumentError, shown
from hftune.opening.model_files import read_checked
from hftune.weight_files import stored_tensors

READ_WHOLE: dict[str, tuple[str, ...]] = {
    "fp8": (),
    "mxfp8": (),
    "mxfp4": (),
    "compressed-tensors": ("compressed_tensors",),
}
"""Methods whose weights transformers dequantises while it loads them -> packages that it needs for it."""
KEPT_PACKED: dict[str, tuple[str, ...]] = {"gptq": ("gptqmodel", "optimum"), "awq": ("gptqmodel",)}
"""Methods whose weights stay packed as the frozen base of an adapter -> packages that transformers needs for it."""
_CONVERT = (
    'pip install gptqmodel && python -c "from gptqmodel.utils.model_dequant import dequantize_model; '
    "dequantize_model('{folder}', '{folder}-bf16')\""
)
"""Writes whole weights of FP8, NVFP4, GPTQ, AWQ and packed integers of compressed-tensors."""

_SCALE = re.compile(r"\.(weight_scale_inv|scale|qscale_weight)$")


def stored_quantisation(config: Any) -> dict[str, Any] | None:
    """The `quantization_config` of a config.json or config object, which may stand in its text part; None for none."""
    for holder in (config, _get(config, "text_config")):
        found = _get(holder, "quantization_config")
        if found:
            found = found if isinstance(found, Mapping) or not hasattr(found, "to_dict") else found.to_dict()
            return dict(found) if isinstance(found, Mapping) else {"quant_method": shown(found)}
    return None


def quantisation_in(folder: str | Path | None) -> dict[str, Any] | None:
    """`stored_quantisation` of a local folder; None where there is no config.json."""
    file = Path(folder or "") / "config.json"
    return stored_quantisation(read_checked(file)) if folder and file.is_file() else None


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def method_of(how: Mapping[str, Any]) -> str:
    """The method that a `quantization_config` names, in lower case."""
    method = how.get("quant_method")
    # Older files of bitsandbytes' name none.
    if method is None and (how.get("load_in_4bit") or how.get("load_in_8bit")):
        return "bitsandbytes"
    return str(getattr(method, "value", method)).lower()


def is_read_whole(how: Mapping[str, Any] | None) -> bool:
    """Whether a checkpoint with this `quantization_config` is read as whole weights."""
    return how is not None and method_of(how) in READ_WHOLE


def describe(how: Mapping[str, Any]) -> str:
    """A word for messages: the method and, where it says one, its format."""
    return " ".join(filter(None, (method_of(how), str(how.get("format") or how.get("quant_algo") or ""))))


def drop_quantisation(config: Any) -> None:
    """Take the `quantization_config` out of a config object."""
    for holder in (config, getattr(config, "text_config", None)):
        if holder is not None and hasattr(holder, "quantization_config"):
            del holder.quantization_config


def whole_weights(config: Any) -> dict[str, Any]:
    """The arguments of `from_pretrained` by which transformers dequantises this checkpoint; empty for any other."""
    how = stored_quantisation(config)
    if how is None or not is_read_whole(how):
        return {}
    from transformers.quantizers import AutoQuantizationConfig

    return {"quantization_config": AutoQuantizationConfig.from_dict(how | {"dequantize": True})}


def convert(folder: str) -> str:
    """The command that writes whole weights of a checkpoint."""
    return _CONVERT.format(folder=folder)


def check_readable(folder: str, place: str) -> None:
    """Refuse a local checkpoint in 4 or 8 bit that no quantizer of transformers' here reads rightly.

    Args:
        folder: With config.json and weights. What is not quantised, or by bitsandbytes, passes.
        place: What named the folder, for the message.

    Raises:
        ArgumentError: With the command that writes whole weights.
    """
    how = quantisation_in(folder)
    if how is None or method_of(how) == "bitsandbytes":
        return
    method = method_of(how)
    packages = (READ_WHOLE | KEPT_PACKED).get(method)
    cause = f"{folder} is stored in {describe(how)}"
    fix = f"give the weights in 16 bit that it was made from; or convert it: {convert(folder)}"
    if packages is None:
        raise ArgumentError(f"{cause}, which hftune does not train on", place=place, fix=fix)
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        install = "pip install " + " ".join(name.replace("_", "-") for name in missing)
        raise ArgumentError(f"{cause}, which needs {' and '.join(missing)}", place=place, fix=f"{install}; or {fix}")
    cut = _cut_block(folder, how) if method in ("fp8", "mxfp8") else None
    if cut is not None:
        # transformers takes blocks for equal parts of the matrix, and computes other numbers where they are not.
        raise ArgumentError(
            f"{cause}, and its blocks do not divide {cut}: transformers would read other numbers",
            place=place,
            fix="give the weights in 16 bit; DeepSeek's inference/fp8_cast_bf16.py converts such a checkpoint",
        )


def _cut_block(folder: str, how: Mapping[str, Any]) -> str | None:
    """The first weight whose last block of scales is not whole."""
    said = how.get("weight_block_size")
    if not isinstance(said, list | tuple) or not all(isinstance(size, int) and size > 0 for size in said):
        return None
    stored = stored_tensors(Path(folder))
    for name, scale in stored.items():
        of = _SCALE.sub(".weight", name)
        weight = stored.get(of)
        if weight is None or weight is scale or len(weight.shape) != 2 or len(scale.shape) != 2:
            continue
        sizes = list(zip(weight.shape, said, strict=False))
        if tuple(ceil(size / block) for size, block in sizes) == scale.shape and any(s % b for s, b in sizes):
            return of
    return None
