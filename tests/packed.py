"""Tiny checkpoints as their makers publish them in 4 and 8 bit, written number by number, and what they say.

Weights are drawn as the integers and scales that are stored, so that nothing here is read back by what is tested.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
STD = 0.1
Tensors = dict[str, Tensor]
Packer = Callable[[str, tuple[int, int], torch.Generator], tuple[Tensors, Tensor]]
"""A module's name, the shape (out, in) of its weight -> what is stored, and the weight in float32."""


def words(rows: list[list[int]], bits: int) -> Tensor:
    """Each row's unsigned integers as one long number in 32-bit words, the first integer lowest."""
    packed = []
    for row in rows:
        number = sum(value << (bits * place) for place, value in enumerate(row))
        count = math.ceil(len(row) * bits / 32)
        packed.append([(number >> (32 * place)) & 0xFFFFFFFF for place in range(count)])
    signed = [[word - (1 << 32) if word >> 31 else word for word in row] for row in packed]
    return torch.tensor(signed, dtype=torch.int32)


def draw(high: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(high, shape, generator=generator)


def scales(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Positive numbers about 1."""
    return (torch.rand(shape, generator=generator) + 0.5).to(dtype)


def fp8_blocks(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Tensors, Tensor]:
    """DeepSeek's, smaller: a scale for each 32 x 32."""
    values = (torch.randn(shape, generator=generator) * 8).to(torch.float8_e4m3fn)
    grid = (math.ceil(shape[0] / 32), math.ceil(shape[1] / 32))
    scale = scales(grid, generator) * STD / 8
    weight = torch.zeros(shape)
    for row in range(shape[0]):
        for column in range(0, shape[1], 32):
            weight[row, column : column + 32] = (
                values[row, column : column + 32].float() * scale[row // 32, column // 32]
            )
    return {f"{module}.weight": values, f"{module}.weight_scale_inv": scale}, weight


def fp8_channels(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Tensors, Tensor]:
    """compressed-tensors' "float-quantized": a scale for each row, and one of the activations."""
    values = (torch.randn(shape, generator=generator) * 8).to(torch.float8_e4m3fn)
    scale = (scales((shape[0], 1), generator) * STD / 8).bfloat16()
    stored = {f"{module}.weight": values, f"{module}.weight_scale": scale, f"{module}.input_scale": torch.ones(1)}
    return stored, torch.stack([values[row].float() * scale[row].float() for row in range(shape[0])])


def int4_groups(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Tensors, Tensor]:
    """compressed-tensors' "pack-quantized": groups of 32 columns, a number offset by half of the range."""
    rows, columns = shape
    groups, half = columns // 32, 8
    values, zero = draw(16, shape, generator), draw(16, (rows, groups), generator)  # offset
    scale = (scales((rows, groups), generator) * STD / half).bfloat16()
    weight = torch.zeros(shape)
    for column in range(columns):
        at = column // 32
        weight[:, column] = (values[:, column] - zero[:, at]) * scale[:, at].float()
    stored = {
        f"{module}.weight_packed": words(values.tolist(), 4),
        f"{module}.weight_scale": scale,
        f"{module}.weight_shape": torch.tensor(shape),
        f"{module}.weight_zero_point": words(zero.t().tolist(), 4).t().contiguous(),
    }
    return stored, weight


def nibbles(codes: Tensor) -> Tensor:
    """Two codes a byte, the first one low."""
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).to(torch.uint8)


def _compressed(kind: str, **weights: Any) -> dict[str, Any]:
    how = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32} | weights
    group = {"targets": ["Linear"], "weights": how, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


_FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "channel", "group_size": None}
FORMATS: dict[str, tuple[dict[str, Any], Packer]] = {
    "fp8": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 32]}, fp8_blocks),
    "fp8-channel": (_compressed("float-quantized", **_FLOAT8), fp8_channels),
    "int4-zeros": (_compressed("pack-quantized", symmetric=False), int4_groups),
}
"""Name -> `quantization_config` as published, and how a linear layer is stored."""


def pack(plain: Path, folder: Path, kind: str) -> Path:
    """A checkpoint whose decoder's linear layers are drawn anew and stored in this format; returns its folder.

    `folder` is the packed checkpoint; `folder`-whole holds the same weights in float32.
    """
    how, packer = FORMATS[kind]
    generator = torch.Generator().manual_seed(0)

    def change(name: str, tensor: Tensor) -> tuple[Tensors, Tensor] | None:
        if not name.endswith("_proj.weight"):
            return None
        rows, columns = tensor.shape
        return packer(name.removesuffix(".weight"), (rows, columns), generator)

    return write(plain, folder, how, change)


def pack_gpt_oss(plain: Path, folder: Path) -> Path:
    """gpt-oss: experts in MXFP4, all else in bfloat16."""
    generator = torch.Generator().manual_seed(0)

    def change(name: str, tensor: Tensor) -> tuple[Tensors, Tensor] | None:
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            return None
        experts, rows, out = tensor.shape
        codes = draw(16, (experts, out, rows // 32, 32), generator)
        exponents = draw(4, (experts, out, rows // 32), generator) + 127 - 8
        values = torch.tensor(FP4)[codes] * (2.0 ** (exponents - 127)).unsqueeze(-1)
        weight = values.reshape(experts, out, rows).permute(0, 2, 1)
        return {f"{name}_blocks": nibbles(codes), f"{name}_scales": exponents.to(torch.uint8)}, weight

    how = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    return write(plain, folder, how, change)


def write(
    plain: Path, folder: Path, how: dict[str, Any], change: Callable[[str, Tensor], tuple[Tensors, Tensor] | None]
) -> Path:
    """The packed folder, and the same weights whole next to it."""
    packed: Tensors = {}
    whole: Tensors = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        changed = change(name, tensor)
        packed |= {name: tensor} if changed is None else changed[0]
        whole[name] = tensor if changed is None else changed[1].contiguous()
    config = json.loads((plain / "config.json").read_text())
    for target, tensors, said in (
        (folder, packed, {"quantization_config": how}),
        (folder.parent / f"{folder.name}-whole", whole, {}),
    ):
        shutil.copytree(plain, target)
        (target / "hftune.json").unlink(missing_ok=True)
        (target / "config.json").write_text(json.dumps(config | said))
        save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return folder
