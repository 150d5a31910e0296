"""Bases in 4 or 8 bit: stored so by bitsandbytes, or quantised again the way a QLoRA run saw them (arXiv:2305.14314).

Everything happens on the CPU, a tensor at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hftune.errors import ArgumentError, ManifestError
from hftune.merging.tensors import DTYPES, NAMES, read_tensor
from hftune.opening.json_file import parse_json
from hftune.weight_files import StoredTensor

_STATE = ".quant_state.bitsandbytes__"


@dataclass(frozen=True)
class Settings:
    """How a QLoRA run quantised its base.

    Args:
        bits: 4 or 8.
        kind: nf4 or fp4.
        nested: The quantisation constants were quantised, too.
        compute: Dtype that the base was loaded in, which is also what its weights are dequantised to.
    """

    bits: int
    kind: str
    nested: bool
    compute: str


@dataclass(frozen=True)
class Requantised:
    """A tensor of a 16- or 32-bit base after quantising and dequantising it."""

    stored: StoredTensor
    settings: Settings

    @property
    def file(self) -> Any:
        """Where its original lies."""
        return self.stored.file

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.stored.shape

    @property
    def dtype(self) -> str:
        """That of its original."""
        return self.stored.dtype

    def read(self) -> Tensor:
        """The values that training computed with, float32."""
        from bitsandbytes import functional

        weight = read_tensor(self.stored).to(DTYPES[self.settings.compute])
        if self.settings.bits == 8:
            # bitsandbytes quantises to int8 from float16 (nn.modules.Int8Params).
            values, scales, _ = functional.int8_vectorwise_quant(weight.to(torch.float16))
            return functional.int8_vectorwise_dequant(values, scales)
        packed, state = functional.quantize_4bit(
            weight.contiguous(), compress_statistics=self.settings.nested, quant_type=self.settings.kind
        )
        return functional.dequantize_4bit(packed, state).float()


@dataclass(frozen=True)
class Dequantised:
    """A tensor that a bitsandbytes checkpoint stores in 4 or 8 bit."""

    stored: StoredTensor
    extra: tuple[tuple[str, StoredTensor], ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def file(self) -> Any:
        """Where its packed values lie."""
        return self.stored.file

    def read(self) -> Tensor:
        """Its values, float32."""
        from bitsandbytes import functional

        tensors = {name: read_tensor(stored) for name, stored in self.extra}
        packed = read_tensor(self.stored)
        if "SCB" in tensors:
            return functional.int8_vectorwise_dequant(packed, tensors["SCB"].float())
        state = functional.QuantState.from_dict(tensors, device=torch.device("cpu"))
        return functional.dequantize_4bit(packed, state).float()


def dequantise_stored(tensors: dict[str, StoredTensor], config: dict[str, Any], folder: str) -> dict[str, Any]:
    """The tensors of a quantised checkpoint as if it were not; others are returned as they are.

    Raises:
        ArgumentError: Quantised by something other than bitsandbytes.
    """
    how = config.get("quantization_config")
    if how is None:
        return dict(tensors)
    if how.get("quant_method") != "bitsandbytes":
        raise ArgumentError(
            f"the base in {folder} is stored quantised by {how.get('quant_method')}; only bitsandbytes can be undone",
            place="--base_model_name_or_path",
            fix="give the unquantised model that it was made from",
        )
    compute = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    dtype = NAMES[getattr(torch, compute)]
    found: dict[str, Any] = {}
    for name, stored in tensors.items():
        extra = _extra(name, tensors)
        if extra:
            found[name] = Dequantised(stored, extra, _true_shape(name, stored, extra), dtype)
        elif not _belongs(name, tensors):
            found[name] = stored
    return found


def _extra(name: str, tensors: dict[str, StoredTensor]) -> tuple[tuple[str, StoredTensor], ...]:
    """What is stored beside a quantised weight: names without the weight's own."""
    if name.endswith(".weight") and tensors[name].dtype in ("U8", "I8", "BF16", "F16", "F32"):
        module = name.removesuffix("weight")
        if f"{module}SCB" in tensors:
            return (("SCB", tensors[f"{module}SCB"]),)
        return tuple((key.removeprefix(f"{name}."), tensors[key]) for key in tensors if key.startswith(f"{name}."))
    return ()


def _belongs(name: str, tensors: dict[str, StoredTensor]) -> bool:
    """Whether a tensor only describes a quantised one."""
    module = name.rsplit(".", 1)[0]
    return name.endswith((".SCB", ".weight_format")) or (
        module.split(".weight")[0] + ".weight" in tensors and (".weight." in name)
    )


def _true_shape(name: str, stored: StoredTensor, extra: tuple[tuple[str, StoredTensor], ...]) -> tuple[int, ...]:
    """The shape before packing, which 4-bit checkpoints keep in a JSON of their own."""
    state = next((tensor for key, tensor in extra if key.startswith(_STATE[1:])), None)
    if state is None:
        return stored.shape
    content = bytes(read_tensor(state).to(torch.uint8).flatten().tolist())
    shape = parse_json(content, f"{stored.file}: {name}").get("shape")
    if not isinstance(shape, list) or not all(type(size) is int and 0 < size < 1 << 40 for size in shape):
        fix = "copy or download the checkpoint again"
        raise ManifestError(f"{stored.file}: {name} has no shape", place=str(stored.file), fix=fix)
    return tuple(shape)


def requantise(tensors: dict[str, StoredTensor], settings: Settings) -> dict[str, Requantised]:
    """What 4 or 8 bit leave of some weights."""
    return {name: Requantised(stored, settings) for name, stored in tensors.items()}
