"""What packed numbers say: 4- and 8-bit weights of every published layout as float32, in plain torch on any device.

The layouts are those that the makers publish; each function names where. transformers 5.23 dequantises some of them
while it loads a model, but blocks of 128 that do not divide a matrix (DeepSeek-V3 has 576 rows) it refuses or takes for
shorter ones, and for GPTQ and AWQ it needs packages with kernels for a GPU.
"""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The values of FP4, by its four bits (OCP Microscaling Formats 1.0, table 5)."""

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where AutoAWQ's "gemm" layout has the eight columns of a word (AutoAWQ, awq/utils/packing_utils.py)."""


def fp4_values(packed: Tensor) -> Tensor:
    """Bytes (..., n) as their two FP4 values each (..., 2 n), the low four bits first."""
    values = torch.tensor(E2M1, dtype=torch.float32, device=packed.device)
    packed = packed.view(torch.uint8)
    return torch.stack((values[(packed & 15).int()], values[(packed >> 4).int()]), dim=-1).flatten(-2)


def scale_values(scale: Tensor) -> Tensor:
    """Scales as float32; bytes are exponents of 2 with a bias of 127 (E8M0)."""
    if scale.dtype in (torch.uint8, torch.float8_e8m0fnu):
        return (scale.view(torch.uint8).int() << 23).view(torch.float32)  # the exponent's place in a float32
    return scale.float()


def spread(scale: Tensor, shape: tuple[int, ...], block: tuple[int, int]) -> Tensor:
    """One scale for each weight; a single row or column of scales stays one, and counts for all.

    Args:
        scale: (..., block rows, block columns): the last blocks may be cut off by the matrix's end.
        shape: Of the weight, (..., rows, columns).
        block: Rows and columns that share a scale.
    """
    rows, columns = block
    if scale.shape[-2] > 1:
        scale = scale.repeat_interleave(rows, dim=-2)[..., : shape[-2], :]
    if scale.shape[-1] > 1:
        scale = scale.repeat_interleave(columns, dim=-1)[..., : shape[-1]]
    return scale


def block_of(shape: tuple[int, ...], scales: tuple[int, ...], said: tuple[int, int] | None) -> tuple[int, int] | None:
    """Rows and columns that share a scale; None where the scales are not of this weight.

    Args:
        shape: Of the weight.
        scales: Of its scales, with as many dimensions.
        said: What the config says of blocks: right wherever the number of scales is.
    """
    size, grid = shape[-2:], scales[-2:]
    if said is not None and grid == tuple(ceil(size[axis] / said[axis]) for axis in (0, 1)):
        return said
    # FP4 experts next to FP8 matrices (DeepSeek-V4) have blocks of their own, which divide them.
    if 0 in grid or any(size[axis] % grid[axis] for axis in (0, 1)):
        return None
    return size[0] // grid[0], size[1] // grid[1]


def integers(words: Tensor, bits: int, count: int) -> Tensor:
    """Unsigned integers of so many bits out of 32-bit words (..., n), lowest bits first: (..., count), int32.

    Integers may lie across two words, as with 3 bits (GPTQModel, nn_modules/qlinear/__init__.py; compressed-tensors,
    compressors/pack_quantized/helpers.py).
    """
    at = torch.arange(count, device=words.device) * bits
    word, shift = at // 32, (at % 32).int()
    found = (words[..., word] >> shift) & ((1 << torch.clamp(32 - shift, max=bits)) - 1).int()
    across = shift + bits > 32
    if bool(across.any()):
        left = shift[across] + bits - 32  # bits in the word that follows
        found[..., across] |= (words[..., word[across] + 1] & ((1 << left) - 1)) << (bits - left)
    return found


def gptq(parts: dict[str, Tensor], bits: int, *, zeros_less_one: bool) -> Tensor:
    """A GPTQ weight, (out, in): (q - zero) * scale of its group.

    Args:
        parts: qweight (in * bits / 32, out) int32, qzeros (groups, out * bits / 32) int32, scales (groups, out), and
            g_idx (in), the group of each row, where they are not in order (`desc_act`).
        bits: 2, 3, 4 or 8.
        zeros_less_one: AutoGPTQ stores a zero point less 1, GPTQModel's `gptq_v2` as it is (GPTQModel,
            utils/model.py: convert_gptq_v1_to_v2_format).
    """
    scales = parts["scales"].float()
    groups, out = scales.shape
    rows = parts["qweight"].shape[0] * 32 // bits
    zeros = integers(parts["qzeros"], bits, out)
    # Less 1 wraps around within the bits: a zero point of 0 is stored as the largest.
    zeros = (zeros + 1) & ((1 << bits) - 1) if zeros_less_one else zeros
    values = integers(parts["qweight"].t().contiguous(), bits, rows)
    group = parts["g_idx"].long() if "g_idx" in parts else torch.arange(rows) // ceil(rows / groups)
    return (values - zeros.t()[:, group]).float() * scales.t()[:, group]


def awq(parts: dict[str, Tensor]) -> Tensor:
    """An AWQ weight of 4 bits in the "gemm" layout, (out, in): (q - zero) * scale of its group.

    Args:
        parts: qweight (in, out / 8) int32, qzeros (groups, out / 8) int32, scales (groups, out).
    """
    scales = parts["scales"].float()
    rows, out = parts["qweight"].shape[0], scales.shape[1]
    order = (torch.arange(out).view(-1, 8)[:, list(AWQ_ORDER)]).flatten()
    values, zeros = (integers(parts[name], 4, out)[:, order] for name in ("qweight", "qzeros"))
    group = torch.arange(rows) // (rows // scales.shape[0])
    return ((values - zeros[group]).float() * scales[group]).t().contiguous()


def mxfp4(parts: dict[str, Tensor]) -> Tensor:
    """Experts of gpt-oss, (experts, in, out), from rows that are stored as (experts, out, in).

    Args:
        parts: blocks (experts, out, in / 32, 16) bytes, scales (experts, out, in / 32) exponents (openai/gpt-oss,
            gpt_oss/torch/weights.py).
    """
    values = fp4_values(parts["blocks"]) * scale_values(parts["scales"]).unsqueeze(-1)
    return values.flatten(-2).transpose(-2, -1).contiguous()


def scaled(parts: dict[str, Tensor], block: tuple[int, int]) -> Tensor:
    """A weight of FP8, int8 or FP4 times the scale of its block.

    Args:
        parts: weight (..., rows, columns), or half as many columns of bytes in FP4; scale as in `spread`; zero, the
            zero points, alike; global_scale, by which scales are divided, or outer_scale, by which they are multiplied
            (compressed-tensors and NVIDIA ModelOpt: NVFP4).
        block: Rows and columns that share a scale.
    """
    packed, scale = parts["weight"], scale_values(parts["scale"])
    values = fp4_values(packed) if packed.dtype == torch.uint8 else packed.float()
    scale = _as_grid(scale, values.dim())
    if "global_scale" in parts:
        scale = scale / parts["global_scale"].float()
    if "outer_scale" in parts:
        scale = scale * parts["outer_scale"].float()
    if "zero" in parts:
        values = values - spread(_as_grid(parts["zero"].float(), values.dim()), tuple(values.shape), block)
    return values * spread(scale, tuple(values.shape), block)


def _as_grid(scale: Tensor, dimensions: int) -> Tensor:
    """Scales with as many dimensions as the weight: one scale, or one a row, is a column."""
    if scale.dim() < 2:
        scale = scale.reshape(-1, 1)
    return scale.reshape((*[1] * (dimensions - scale.dim()), *scale.shape))


def packed_integers(parts: dict[str, Tensor], bits: int, shape: tuple[int, ...], group: int) -> Tensor:
    """A weight of compressed-tensors' "pack-quantized", (rows, columns).

    Args:
        parts: weight (rows, words) int32, offset by half of the range; scale (rows, groups); zero (rows * bits / 32,
            groups) int32, packed along rows; g_idx (columns), the group of each, where they are not in order.
        bits: 1 to 8.
        shape: Rows and columns.
        group: Columns that share a scale.
    """
    half, (rows, columns) = 1 << (bits - 1), shape
    values = integers(parts["weight"], bits, columns) - half
    scale = _as_grid(parts["scale"].float(), 2).expand(rows, -1)
    if "zero" in parts:
        zero = integers(parts["zero"].t().contiguous(), bits, rows).t() - half
    else:
        zero = torch.zeros((), dtype=torch.int32).expand(scale.shape)
    where = parts["g_idx"].long() if "g_idx" in parts else torch.arange(columns) // group
    return (values - zero[:, where]).float() * scale[:, where]
