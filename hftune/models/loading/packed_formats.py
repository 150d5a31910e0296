"""Which tensors of a checkpoint in 4 or 8 bit are a weight, and how they become one: from config and headers alone.

A format is recognised by the names and dtypes that it stores; the config says what these do not (block sizes, bits).
What is asked of a checkpoint afterwards is asked of its weights as if they had been stored in 16 bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor

from hftune.errors import ArgumentError, ManifestError, shown
from hftune.models.loading import unpacking

Shape = tuple[int, ...]
Parts = dict[str, Tensor]


class Stored(Protocol):
    """A tensor's entry in a header."""

    @property
    def dtype(self) -> str:
        """As the safetensors format names it."""

    @property
    def shape(self) -> Shape:
        """Its shape."""


Headers = Mapping[str, Stored]


@dataclass(frozen=True)
class Packed:
    """A weight that is computed from stored tensors.

    Args:
        shape: Of the weight.
        parts: What a part is to the computation -> the name that it is stored under.
        unpack: From these tensors to the weight in float32.
    """

    shape: Shape
    parts: dict[str, str]
    unpack: Callable[[Parts], Tensor]

    def weight(self, read: Callable[[str], Tensor]) -> Tensor:
        """The weight, from stored tensors that `read` gives by name.

        Raises:
            ManifestError: They do not fit together.
        """
        try:
            return self.unpack({part: read(name) for part, name in self.parts.items()})
        except (IndexError, RuntimeError) as error:
            where = next(iter(self.parts.values()))
            raise ManifestError(
                f"{where} cannot be unpacked: {shown(error, 160)}",
                place=where,
                fix="copy or download the checkpoint again",
            ) from error


DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The safetensors format's names of dtypes."""

Finder = Callable[[dict[str, Any], Headers, Callable[[str], Tensor]], Iterator[tuple[str, Packed]]]

EIGHT_BITS = ("F8_E4M3", "F8_E5M2", "I8")
ACTIVATIONS = (
    *("input_scale", "activation_scale", "input_activation_scale", "input_global_scale", "input_zero_point"),
    *("k_scale", "v_scale", "q_scale", "output_scale", "kv_scale"),
)
"""Names of the single numbers that quantise activations or the cache: nothing that a weight is made of."""


def stored_quantisation(config: Any) -> dict[str, Any] | None:
    """The `quantization_config` of a config.json or config object, which may stand in its text part; None for none."""
    for holder in (config, _get(config, "text_config")):
        found = _get(holder, "quantization_config")
        if found:
            found = found if isinstance(found, Mapping) or not hasattr(found, "to_dict") else found.to_dict()
            return dict(found) if isinstance(found, Mapping) else {"quant_method": shown(found)}
    return None


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def method_of(how: Mapping[str, Any]) -> str:
    """The method that a `quantization_config` names, as `METHODS` has it."""
    method = how.get("quant_method")
    # Older files of bitsandbytes' name none.
    if method is None and (how.get("load_in_4bit") or how.get("load_in_8bit")):
        return "bitsandbytes"
    method = str(getattr(method, "value", method)).lower()
    if method == "auto-round":  # which packs as others do, and says as whom
        return next((other for other in ("gptq", "awq") if other in str(how.get("packing_format"))), method)
    return method


def is_read_whole(how: Mapping[str, Any] | None) -> bool:
    """Whether a checkpoint with this `quantization_config` is read as whole weights."""
    return how is not None and method_of(how) in METHODS


def describe(how: Mapping[str, Any]) -> str:
    """A word for messages: the method and, where it says one, its format."""
    return " ".join(filter(None, (method_of(how), str(how.get("format") or how.get("quant_algo") or ""))))


def drop_quantisation(config: Any) -> str | None:
    """Take a quantisation out of a config whose weights are read whole; returns a word for it, None for none."""
    how = stored_quantisation(config)
    if how is None or not is_read_whole(how):
        return None
    for holder in (config, getattr(config, "text_config", None)):
        if holder is not None and hasattr(holder, "quantization_config"):
            del holder.quantization_config
    return describe(how)


def find_packed(
    how: dict[str, Any], stored: Headers, read: Callable[[str], Tensor], place: str
) -> tuple[dict[str, Packed], set[str]]:
    """The weights that are packed, by the names they would have whole; and stored tensors that are no weight.

    Args:
        how: The `quantization_config`, of a method in `METHODS`.
        stored: All tensors of the checkpoint.
        read: A stored tensor's values; asked for a few numbers where shapes do not tell.
        place: For messages: the folder.

    Raises:
        ArgumentError: A layout that is not known here.
    """
    try:
        found = {name: packed for finder in METHODS[method_of(how)] for name, packed in finder(how, stored, read)}
    # The config comes from anywhere, and what it says need not be of the kinds that the format has.
    except (_Unknown, TypeError, ValueError, AttributeError, LookupError, ZeroDivisionError, re.error) as problem:
        why = problem if isinstance(problem, _Unknown) else "its quantization_config is not as that format has it"
        raise ArgumentError(
            f"{place} is stored in {describe(how)}, and {why}",
            place="--model_name_or_path / --base_model_name_or_path",
            fix="give the weights in 16 bit that it was made from; --qlora quantises them while loading",
        ) from problem
    used = {name for packed in found.values() for name in packed.parts.values()}
    modules = {name.rpartition(".")[0] for name in used}
    beside = {name for name in stored if name not in used and name.rpartition(".")[0] in modules}
    left = {name for name in beside if name.rpartition(".")[2] in _COMPANIONS}
    left |= {name for name in stored if name.rpartition(".")[2] in ACTIVATIONS and prod(stored[name].shape) == 1}
    return found, (used | left) - found.keys()


class _Unknown(Exception):
    """A layout that cannot be read; the message says why, to follow "and"."""


_COMPANIONS = ("weight_shape", "weight_zero_point", "weight_g_idx", "g_idx", "weight_scale", "weight_global_scale")
"""What stands next to packed weights and is not always needed to unpack them."""


# --- FP8, int8 and FP4 with scales ----------------------------------------------------------------------------------


def _scaled(how: dict[str, Any], stored: Headers, read: Callable[[str], Tensor]) -> Iterator[tuple[str, Packed]]:
    """Weights in 8 bit, or in FP4 packed into bytes, next to their scales (DeepSeek, Qwen FP8, FBGEMM, ModelOpt)."""
    for name, weight in stored.items():
        module, _, kind = name.rpartition(".")
        scales = (f"{name}_scale_inv", f"{name}_scale", f"{module}.scale", f"{module}.qscale_{kind}")
        scale = next((other for other in scales if other in stored), None)
        if scale is None or weight.dtype not in (*EIGHT_BITS, "U8"):
            continue
        parts = {"weight": name, "scale": scale}
        if f"{name}_scale_2" in stored:
            parts["outer_scale"] = f"{name}_scale_2"
        # DeepSeek-V4 keeps experts in FP4 as signed bytes; int8 weights have no blocks of 32.
        is_fp4 = weight.dtype == "U8" or (weight.dtype == "I8" and stored[scale].dtype in ("F8_E8M0", "U8"))
        yield name, _with_blocks(parts, name, stored, is_fp4=is_fp4, said=_said_block(how))


def _said_block(how: Mapping[str, Any]) -> tuple[int, int] | None:
    size = how.get("weight_block_size")
    return (int(size[0]), int(size[1])) if isinstance(size, list | tuple) and len(size) == 2 else None


def _with_blocks(
    parts: dict[str, str], name: str, stored: Headers, *, is_fp4: bool, said: tuple[int, int] | None
) -> Packed:
    shape, scales = stored[parts["weight"]].shape, stored[parts["scale"]].shape
    if is_fp4:
        shape = (*shape[:-1], shape[-1] * 2)
    # One scale for all; or one a row.
    grid = scales if len(scales) > 1 else (prod(scales), 1)
    block = unpacking.block_of(shape, grid, said) if len(shape) > 1 else None
    if block is None:
        raise _Unknown(f"{name} of shape {list(shape)} has scales of shape {list(scales)}, which do not fit it")
    return Packed(shape, parts, partial(_fp4_or_8 if is_fp4 else unpacking.scaled, block=block))


def _fp4_or_8(parts: Parts, block: tuple[int, int]) -> Tensor:
    # Signed bytes hold the same bits.
    return unpacking.scaled(parts | {"weight": parts["weight"].view(torch.uint8)}, block)


# --- MXFP4 -----------------------------------------------------------------------------------------------------------


def _mxfp4(how: dict[str, Any], stored: Headers, read: Callable[[str], Tensor]) -> Iterator[tuple[str, Packed]]:
    """Experts of gpt-oss: `NAME_blocks` and `NAME_scales`."""
    for blocks in stored:
        name = blocks.removesuffix("_blocks")
        if blocks == name or f"{name}_scales" not in stored:
            continue
        *experts, out, groups, half = stored[blocks].shape
        yield (
            name,
            Packed((*experts, groups * half * 2, out), {"blocks": blocks, "scales": f"{name}_scales"}, unpacking.mxfp4),
        )


# --- GPTQ and AWQ ----------------------------------------------------------------------------------------------------


def _columns(stored: Headers) -> Iterator[tuple[str, dict[str, str]]]:
    """Modules with qweight, qzeros and scales, and these names."""
    for name in stored:
        module, _, kind = name.rpartition(".")
        if kind != "qweight":
            continue
        parts = {part: f"{module}.{part}" for part in ("qweight", "qzeros", "scales")}
        missing = [other for other in parts.values() if other not in stored]
        if missing:
            raise _Unknown(f"{missing[0]} is not there")
        if stored[name].dtype != "I32":
            raise _Unknown(f"{name} is packed into {stored[name].dtype}, not into 32-bit words")
        yield module, parts


def _gptq(how: dict[str, Any], stored: Headers, read: Callable[[str], Tensor]) -> Iterator[tuple[str, Packed]]:
    kind = str(how.get("checkpoint_format") or "gptq")
    if kind not in ("gptq", "gptq_v2") or how.get("is_marlin_format"):
        raise _Unknown(f"its layout {kind} is one for a kernel of GPUs")
    for module, parts in _columns(stored):
        # Bits by shape: GPTQModel's `dynamic` gives modules others than the config says.
        groups, out = stored[parts["scales"]].shape
        bits = stored[parts["qzeros"]].shape[1] * 32 // out
        if stored[parts["qzeros"]].shape[0] != groups or not 1 <= bits <= 8:
            raise _Unknown(f"{module}.qzeros does not fit its scales")
        if f"{module}.g_idx" in stored:
            parts["g_idx"] = f"{module}.g_idx"
        shape = (out, stored[parts["qweight"]].shape[0] * 32 // bits)
        unpack = partial(unpacking.gptq, bits=bits, zeros_less_one=kind == "gptq")
        yield f"{module}.weight", Packed(shape, parts, unpack)


def _awq(how: dict[str, Any], stored: Headers, read: Callable[[str], Tensor]) -> Iterator[tuple[str, Packed]]:
    kind = str(how.get("version") or how.get("format") or "gemm").lower()
    if kind != "gemm":
        raise _Unknown(f"its layout {kind} is one for a kernel of GPUs")
    for module, parts in _columns(stored):
        rows, words = stored[parts["qweight"]].shape
        groups, out = stored[parts["scales"]].shape
        if words * 8 != out or rows % groups:
            raise _Unknown(f"{module} is not in 4 bits, which alone AWQ has")
        yield f"{module}.weight", Packed((out, rows), parts, unpacking.awq)


# --- compressed-tensors ----------------------------------------------------------------------------------------------

_SPARSE = ("sparse-bitmask", "sparse-24-bitmask", "marlin-24")


def _compressed(how: dict[str, Any], stored: Headers, read: Callable[[str], Tensor]) -> Iterator[tuple[str, Packed]]:
    sparse = str((how.get("sparsity_config") or {}).get("format") or "dense")
    formats = [how.get("format"), *(group.get("format") for group in _groups(how)), sparse]
    unknown = [kind for kind in formats if kind in _SPARSE or str(kind).startswith("mxfp6")]
    if unknown:
        raise _Unknown(f"its layout {unknown[0]} is not read here")
    for name, tensor in stored.items():
        if name.endswith("weight_packed"):
            whole = name.removesuffix("_packed")
            packed = _fp4_group if tensor.dtype == "U8" else _packed_group
            yield whole, packed(how, whole, stored, read)
        elif tensor.dtype in EIGHT_BITS and f"{name}_scale" in stored:
            yield name, _eight_bits(how, name, stored)


def _parts(name: str, stored: Headers, weight: str) -> dict[str, str]:
    if f"{name}_scale" not in stored:
        raise _Unknown(f"{name}_scale is not there")
    found = {"weight": weight, "scale": f"{name}_scale"}
    more = {"zero": f"{name}_zero_point", "global_scale": f"{name}_global_scale", "g_idx": f"{name}_g_idx"}
    return found | {part: other for part, other in more.items() if other in stored}


def _eight_bits(how: dict[str, Any], name: str, stored: Headers) -> Packed:
    structure = _weights_of(how, name).get("block_structure")
    said = _said_block({"weight_block_size": structure})
    return _with_blocks(_parts(name, stored, name), name, stored, is_fp4=False, said=said)


def _fp4_group(how: dict[str, Any], name: str, stored: Headers, read: Callable[[str], Tensor]) -> Packed:
    return _with_blocks(_parts(name, stored, f"{name}_packed"), name, stored, is_fp4=True, said=None)


def _packed_group(how: dict[str, Any], name: str, stored: Headers, read: Callable[[str], Tensor]) -> Packed:
    parts, weights = _parts(name, stored, f"{name}_packed"), _weights_of(how, name)
    bits, group = int(weights.get("num_bits") or 0), int(weights.get("group_size") or 0)
    *rows, words = stored[f"{name}_packed"].shape
    if weights.get("type", "int") != "int" or not 1 <= bits <= 8 or len(rows) != 1:
        raise _Unknown(f"the config does not say how {name} is packed")
    groups = stored[f"{name}_scale"].shape[-1] if group > 0 else 1
    columns = groups * group
    if group <= 0 or -(-columns * bits // 32) != words:  # the last word may have room for more columns
        columns = int(read(f"{name}_shape").flatten()[-1]) if f"{name}_shape" in stored else words * 32 // bits
    shape = (rows[0], columns)
    unpack = partial(unpacking.packed_integers, bits=bits, shape=shape, group=group if group > 0 else columns)
    return Packed(shape, parts, unpack)


def _groups(how: Mapping[str, Any]) -> list[dict[str, Any]]:
    groups = how.get("config_groups") or {}
    return [group for group in groups.values() if isinstance(group, dict)]


def _weights_of(how: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the config says of a module's weights: by its name where a group names it, else by the kind of module."""
    module = name.rpartition(".")[0]
    groups = _groups(how)
    named = (group for group in groups for target in group.get("targets") or [] if _is_named(str(target), module))
    chosen = next(named, groups[0] if groups else {})
    return chosen.get("weights") or {}


def _is_named(target: str, module: str) -> bool:
    if target.startswith("re:"):
        return re.match(target.removeprefix("re:"), module) is not None
    return module == target or module.endswith(f".{target}")


METHODS: dict[str, tuple[Finder, ...]] = {
    "fp8": (_scaled,),
    "mxfp8": (_scaled,),
    "fbgemm_fp8": (_scaled,),
    "modelopt": (_scaled,),
    "mxfp4": (_mxfp4, _scaled),
    "gptq": (_gptq,),
    "awq": (_awq,),
    "compressed-tensors": (_compressed,),
}
"""By `quant_method`: the formats that are read as whole weights. bitsandbytes is kept as it is (`quantization.py`)."""
