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
    """DeepSeek's: a scale for each 128 x 128."""
    values = (torch.randn(shape, generator=generator) * 8).to(torch.float8_e4m3fn)
    grid = (math.ceil(shape[0] / 128), math.ceil(shape[1] / 128))
    scale = scales(grid, generator) * STD / 8
    weight = torch.zeros(shape)
    for row in range(shape[0]):
        for column in range(0, shape[1], 128):
            weight[row, column : column + 128] = (
                values[row, column : column + 128].float() * scale[row // 128, column // 128]
            )
    return {f"{module}.weight": values, f"{module}.weight_scale_inv": scale}, weight


def fp8_channels(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Tensors, Tensor]:
    """compressed-tensors' "float-quantized": a scale for each row, and one of the activations."""
    values = (torch.randn(shape, generator=generator) * 8).to(torch.float8_e4m3fn)
    scale = (scales((shape[0], 1), generator) * STD / 8).bfloat16()
    stored = {f"{module}.weight": values, f"{module}.weight_scale": scale, f"{module}.input_scale": torch.ones(1)}
    return stored, torch.stack([values[row].float() * scale[row].float() for row in range(shape[0])])


def int8_channels(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Tensors, Tensor]:
    """compressed-tensors' "int-quantized"."""
    values = (draw(255, shape, generator) - 127).to(torch.int8)
    scale = scales((shape[0], 1), generator) * STD / 127
    weight = torch.stack([values[row].float() * scale[row] for row in range(shape[0])])
    return {f"{module}.weight": values, f"{module}.weight_scale": scale}, weight


def int4_groups(symmetric: bool, bits: int = 4, group: int = 32) -> Packer:
    """compressed-tensors' "pack-quantized": groups of columns, a number offset by half of the range."""

    def pack(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Tensors, Tensor]:
        rows, columns = shape
        size = columns if group < 0 else group
        groups, half = math.ceil(columns / size), 1 << (bits - 1)
        values = draw(1 << bits, shape, generator)  # offset
        scale = (scales((rows, groups), generator) * STD / half).bfloat16()
        zero = torch.full((rows, groups), half) if symmetric else draw(1 << bits, (rows, groups), generator)
        weight = torch.zeros(shape)
        for column in range(columns):
            at = column // size
            weight[:, column] = (values[:, column] - zero[:, at]) * scale[:, at].float()
        stored = {
            f"{module}.weight_packed": words(values.tolist(), bits),
            f"{module}.weight_scale": scale,
            f"{module}.weight_shape": torch.tensor(shape),
        }
        if not symmetric:
            stored[f"{module}.weight_zero_point"] = words(zero.t().tolist(), bits).t().contiguous()
        return stored, weight

    return pack


def nibbles(codes: Tensor) -> Tensor:
    """Two codes a byte, the first one low."""
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).to(torch.uint8)


def nvfp4(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Tensors, Tensor]:
    """compressed-tensors' "nvfp4-pack-quantized": groups of 16, FP8 scales, divided by one more."""
    codes = draw(16, shape, generator)
    scale = (scales((shape[0], shape[1] // 16), generator) * 100).to(torch.float8_e4m3fn)
    outer = torch.tensor([100 * 3 / STD])
    values = torch.tensor(FP4)[codes]
    weight = torch.stack(
        [values[:, column] * scale[:, column // 16].float() / outer for column in range(shape[1])], dim=1
    )
    stored = {"weight_packed": nibbles(codes), "weight_scale": scale, "weight_global_scale": outer}
    return {f"{module}.{name}": tensor for name, tensor in stored.items()}, weight


def modelopt(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Tensors, Tensor]:
    """NVIDIA ModelOpt's NVFP4: as above, multiplied."""
    stored, weight = nvfp4(module, shape, generator)
    outer = 1 / stored[f"{module}.weight_global_scale"]
    scale = stored[f"{module}.weight_scale"]
    packed = stored[f"{module}.weight_packed"]
    return {
        f"{module}.weight": packed,
        f"{module}.weight_scale": scale,
        f"{module}.weight_scale_2": outer.squeeze(),
        f"{module}.input_scale": torch.tensor(1.0),
    }, weight


def gptq(bits: int = 4, *, kind: str = "gptq", shuffled: bool = True) -> Packer:
    """AutoGPTQ's: columns of words along the input, zero points less one, groups in any order (`desc_act`)."""

    def pack(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Tensors, Tensor]:
        out, rows = shape
        groups, most = rows // 32, 1 << bits
        values, zeros = draw(most, (rows, out), generator), draw(most, (groups, out), generator)
        scale = (scales((groups, out), generator) * STD * 2 / most).half()
        order = torch.randperm(rows, generator=generator) if shuffled else torch.arange(rows)
        group = order // 32
        weight = torch.zeros(shape)
        for row in range(rows):
            weight[:, row] = (values[row] - zeros[group[row]]) * scale[group[row]].float()
        kept = (zeros - 1) % most if kind == "gptq" else zeros
        return {
            f"{module}.qweight": words(values.t().tolist(), bits).t().contiguous(),
            f"{module}.qzeros": words(kept.tolist(), bits),
            f"{module}.scales": scale,
            f"{module}.g_idx": group.int(),
        }, weight

    return pack


def awq(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Tensors, Tensor]:
    """AutoAWQ's "gemm": words along the output, whose four-bit places hold columns 0 2 4 6 1 3 5 7."""
    out, rows = shape
    values, zeros = draw(16, (rows, out), generator), draw(16, (rows // 32, out), generator)
    scale = (scales((rows // 32, out), generator) * STD / 8).half()
    weight = torch.zeros(shape)
    for row in range(rows):
        weight[:, row] = (values[row] - zeros[row // 32]) * scale[row // 32].float()
    order = torch.cat([torch.tensor([0, 2, 4, 6, 1, 3, 5, 7]) + first for first in range(0, out, 8)])
    stored = {"qweight": words(values[:, order].tolist(), 4), "qzeros": words(zeros[:, order].tolist(), 4)}
    return {f"{module}.{name}": tensor for name, tensor in (stored | {"scales": scale}).items()}, weight


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
    "fp8": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, fp8_blocks),
    "fp8-channel": (_compressed("float-quantized", **_FLOAT8), fp8_channels),
    "fbgemm": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, fp8_channels),
    "int8": (_compressed("int-quantized", num_bits=8, strategy="channel", group_size=None), int8_channels),
    "int4": (_compressed("pack-quantized"), int4_groups(True)),
    "int4-zeros": (_compressed("pack-quantized", symmetric=False), int4_groups(False)),
    "int4-channel": (
        _compressed("pack-quantized", strategy="channel", group_size=None),
        int4_groups(True, group=-1),
    ),
    "int3": (_compressed("pack-quantized", num_bits=3), int4_groups(True, 3)),
    "nvfp4": (_compressed("nvfp4-pack-quantized", type="float", group_size=16, strategy="tensor_group"), nvfp4),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}, modelopt),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False}, gptq()),
    "gptq-8": ({"quant_method": "gptq", "bits": 8, "group_size": 32, "desc_act": False}, gptq(8, shuffled=False)),
    "gptq-3": ({"quant_method": "gptq", "bits": 3, "group_size": 32, "desc_act": False}, gptq(3)),
    "gptq_v2": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"},
        gptq(kind="gptq_v2"),
    ),
    "auto-round": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 32, "packing_format": "auto_round:auto_gptq"},
        gptq(shuffled=False),
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}, awq),
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
