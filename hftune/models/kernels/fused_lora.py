"""LoRA layers and gated MLPs with forward and backward passes written out: fewer passes over memory, less kept.

peft computes W x, then A x, B A x, a scaled copy of that, and a sum, each a tensor as large as the output. Here the
low-rank part is added inside the matrix product, and products with one side of r rows run with that side first, where
BLAS is several times quicker. A gated MLP (down(act(gate x) * up x)) keeps x, gate x and up x for its backward pass and
nothing else. The idea of writing these passes out is Unsloth's.

A module takes this way where it is as plain as that, which is looked at in every call: adapters that are switched off,
merged, several or of another kind (DoRA) take peft's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import nn
from torch.nn.functional import gelu, linear, silu

from hftune.compat.installing import replace_method

_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
"""What architectures with a gated MLP call its three linear modules."""

Weight = Callable[[torch.dtype], torch.Tensor]
"""The (out, in) weight in a dtype; a quantised one is unpacked for each use."""

Tensors = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class Projection:
    """A frozen weight and what an adapter adds: W x + b + scale * B A x.

    Args:
        weight: See `Weight`.
        bias: (out,) or None.
        a: (r, in), or None where there is no adapter.
        b: (out, r), likewise.
        dropout: For the adapter's input.
    """

    weight: Weight
    bias: torch.Tensor | None
    dtype: torch.dtype
    a: torch.Tensor | None = None
    b: torch.Tensor | None = None
    scale: float = 1.0
    dropout: nn.Module | None = None

    @classmethod
    def of(cls, module: nn.Module, x: torch.Tensor) -> Projection | None:
        """How this module works now on this input; None: not in this way."""
        layer = module if isinstance(module, LoraLayer) else None
        if layer is None:
            return _frozen(module, x)
        base = _frozen(layer.base_layer, x)
        # Looked at in every call: DPO switches the adapter off for the reference, and merges may come at any time.
        if base is None or layer.merged or layer.disable_adapters or not isinstance(module, _lora_kinds()):
            return None
        names = [name for name in layer.active_adapters if name in layer.lora_A]
        if len(names) != 1 or names[0] in layer.lora_variant:
            return None
        name = names[0]
        a, b, dropout = layer.lora_A[name], layer.lora_B[name], layer.lora_dropout[name]
        if type(a) is not nn.Linear or type(b) is not nn.Linear or b.bias is not None:
            return None
        # A float32 adapter on a 16-bit base computes in float32, which peft does.
        if not torch.is_autocast_enabled(x.device.type) and not a.weight.dtype == b.weight.dtype == base.dtype:
            return None
        drops = dropout if layer.training and getattr(dropout, "p", 0.0) > 0 else None
        return cls(base.weight, base.bias, base.dtype, a.weight, b.weight, float(layer.scaling[name]), drops)


def _lora_kinds() -> tuple[type, ...]:
    """peft's layers on plain and, where something has imported bitsandbytes, on 4-bit linears."""
    # Importing peft's module would import bitsandbytes, which takes seconds and may not be there.
    packed = getattr(sys.modules.get("peft.tuners.lora.bnb"), "Linear4bit", None)
    return (LoraLinear,) if packed is None else (LoraLinear, packed)


def _frozen(module: Any, x: torch.Tensor) -> Projection | None:
    """Of a plain or 4-bit linear whose weight is not trained, and computes in the dtype of its input or of autocast."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if weight is None or weight.requires_grad or (bias is not None and bias.requires_grad):
        return None
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    if type(module) is nn.Linear:
        if weight.dim() != 2 or (weight.dtype != dtype and not torch.is_autocast_enabled(device)):
            return None
        return Projection(weight.to, bias, dtype)
    state = getattr(weight, "quant_state", None)
    if type(module).__name__ != "Linear4bit" or state is None or state.dtype != dtype:
        return None
    return Projection(lambda wanted: _unpacked(weight, state).to(wanted), bias, dtype)


def _unpacked(weight: torch.Tensor, state: Any) -> torch.Tensor:
    from bitsandbytes.functional import dequantize_4bit

    dense: torch.Tensor = dequantize_4bit(weight.data, state)
    return dense


def fuse_lora(model: nn.Module) -> int:
    """Have the LoRA layers and gated MLPs of a model compute in this way; how many modules may do so.

    Not for ZeRO-3, which gathers weights when their module is called: here they are read without calling it.
    """
    found = 0
    for module in model.modules():
        # Liger and others replace the forward pass of a module in its own dictionary; what they do counts.
        if "forward" in vars(module):
            continue
        if isinstance(module, _lora_kinds()):
            replace_method(module, "forward", _lora_forward(type(module).forward))
            found += 1
        elif is_gated_mlp(module):
            replace_method(module, "forward", _mlp_forward(type(module).forward))
            found += 1
    return found


_held: dict[nn.Module, Projection | None] | None = None


@contextmanager
def adapters_held() -> Iterator[None]:
    """In the block adapters and what is computed in stay as they are: each module is looked at once.

    An answer is drawn in hundreds of passes over a few tokens each, of which looking takes a tenth.
    """
    global _held
    _held = {}
    try:
        yield
    finally:
        _held = None


def _how(module: nn.Module, x: torch.Tensor) -> Projection | None:
    """`Projection.of`, once a block of `adapters_held`."""
    if _held is None:
        return Projection.of(module, x)
    if module not in _held:
        _held[module] = Projection.of(module, x)
    return _held[module]


def _is_inference(how: Projection, x: torch.Tensor) -> bool:
    """Whether the products alone are wanted: a function with a backward pass and a block of autocast cost as much."""
    return how.dropout is None and not (torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type))


def _lora_forward(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def forward(self: nn.Module, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        how = None if args or kwargs else _how(self, x)
        if how is None or how.a is None:
            return original(self, x, *args, **kwargs)
        if _is_inference(how, x):
            return _shaped(_project(_flat(x, how), how, None)[0], x)
        dropped = None if how.dropout is None else how.dropout(x)
        out: torch.Tensor = _LoraLinear.apply(x, dropped, how.a, how.b, how)
        return _shaped(out, x)

    return forward


def _mlp_forward(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def forward(self: nn.Module, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        projections = [getattr(self, name) for name in _PROJECTIONS]
        hows = [None if args or kwargs else _how(each, x) for each in projections]
        if any(how is None or how.dropout is not None for how in hows):
            return original(self, x, *args, **kwargs)
        gate, up, down = (how for how in hows if how is not None)
        act = _activation(self)
        assert act is not None
        if _is_inference(gate, x):
            flat = _flat(x, gate)
            opened = act.forward(_project(flat, gate, None)[0]).mul_(_project(flat, up, None)[0])
            return _shaped(_project(opened, down, None)[0], x)
        factors = [factor for how in (gate, up, down) for factor in (how.a, how.b)]
        out: torch.Tensor = _GatedMLP.apply(x, *factors, gate, up, down, act)
        return _shaped(out, x)

    return forward


def _flat(x: torch.Tensor, how: Projection) -> torch.Tensor:
    """(tokens, in) in the dtype of the products."""
    return x.reshape(-1, x.shape[-1]).to(how.dtype)


def _shaped(flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """(tokens, out) in the shape of the input; not in the function, whose views nobody may change in place."""
    return flat.view(*x.shape[:-1], flat.shape[-1])


def is_gated_mlp(module: nn.Module) -> bool:
    """Whether its class computes down(act(gate x) * up x) with an activation known here; it is tried out."""
    act = _activation(module)
    if act is None or not all(isinstance(getattr(module, name, None), nn.Module) for name in _PROJECTIONS):
        return False
    if len(list(module.children())) != 4:
        return False  # a norm or a dropout of its own
    x = torch.linspace(-2, 2, 12).view(1, 2, 6)
    # Each projection of the probe does something else, so that a class that mixes them up gives other numbers.
    expected = x.flip(-1) * (act.forward(x * 0.5) * (x + 1.0))
    try:
        found = type(module).forward(_Probe(module), x)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return False  # it wants more of its module than these four: not the plain one
    return isinstance(found, torch.Tensor) and torch.equal(found, expected)


class _Probe:
    """Stands for a gated MLP in its own forward pass, with projections that are easy to follow."""

    def __init__(self, module: nn.Module) -> None:
        self.act_fn = module.act_fn
        self.gate_proj = lambda x: x * 0.5
        self.up_proj = lambda x: x + 1.0
        self.down_proj = lambda x: torch.linspace(-2, 2, 12).view(1, 2, 6).flip(-1) * x


@dataclass(frozen=True)
class Activation:
    """A function and its derivative times a gradient."""

    forward: Callable[[torch.Tensor], torch.Tensor]
    backward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


_SILU = Activation(silu, torch.ops.aten.silu_backward)
_GELU = Activation(gelu, torch.ops.aten.gelu_backward)
_GELU_TANH = Activation(
    lambda x: gelu(x, approximate="tanh"), lambda g, x: torch.ops.aten.gelu_backward(g, x, approximate="tanh")
)
_BY_NAME = {"SiLU": _SILU, "SiLUActivation": _SILU, "GELUActivation": _GELU, "GELUTanh": _GELU_TANH}


def _activation(module: nn.Module) -> Activation | None:
    act = getattr(module, "act_fn", None)
    if type(act) is nn.GELU:
        return _GELU_TANH if act.approximate == "tanh" else _GELU
    return _BY_NAME.get(type(act).__name__)


def _project(x: torch.Tensor, how: Projection, inner: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """W x + b + scale * B A x of (tokens, in), and A x, (r, tokens). `inner`: what A sees, where that is not x."""
    bias = None if how.bias is None else how.bias.to(how.dtype)
    # In place on the product: no tensor as large as the output for the low-rank part alone.
    out = linear(x, how.weight(how.dtype), bias)
    if how.a is None or how.b is None:
        return out, None
    low = how.a.to(how.dtype) @ (x if inner is None else inner).T  # the side of r rows comes first
    return out.addmm_(low.T, how.b.to(how.dtype).T, alpha=how.scale), low


def _factor_gradients(
    gradient: torch.Tensor, x: torch.Tensor, low: torch.Tensor | None, how: Projection
) -> tuple[torch.Tensor | None, Tensors]:
    """Of A x, (r, tokens), and of A and B, from that of the output, (tokens, out)."""
    if low is None or how.a is None or how.b is None:
        return None, (None, None)
    inner = (how.b.to(how.dtype).T @ gradient.T).mul_(how.scale)
    of_a = (inner @ x).to(how.a.dtype) if how.a.requires_grad else None
    of_b = (low @ gradient).mul_(how.scale).T.to(how.b.dtype) if how.b.requires_grad else None
    return inner, (of_a, of_b)


def _add_input_gradient(
    total: torch.Tensor | None,
    gradient: torch.Tensor,
    inner: torch.Tensor | None,
    how: Projection,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Add that of the input, (tokens, in), through W and, where `inner` is given, through A.

    Args:
        dtype: Of the sum. Under autocast a float32 input gets its gradient from 16-bit products, summed in float32.
    """
    dtype = dtype or how.dtype
    through = gradient @ how.weight(how.dtype)
    total = through.to(dtype) if total is None else total.add_(through)
    if inner is None or how.a is None:
        return total
    factor = how.a.to(how.dtype)
    return total.addmm_(inner.T, factor) if dtype == how.dtype else total.add_(inner.T @ factor)


class _LoraLinear(torch.autograd.Function):
    """(..., in) to (tokens, out), with gradients for A, B and the input."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, dropped: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor, how: Projection
    ) -> torch.Tensor:
        """W x + b + scale * B A d(x), d being the dropout."""
        # Dtypes are chosen here once; autocast would cast every operand of every product again.
        with torch.autocast(x.device.type, enabled=False):
            flat = _flat(x, how)
            inner = None if dropped is None else dropped.reshape(flat.shape).to(how.dtype)
            out, low = _project(flat, how, inner)
        ctx.save_for_backward(flat if inner is None else inner, low)
        ctx.how, ctx.shape, ctx.dtype = how, x.shape, x.dtype
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Of the input, the dropped input, A and B."""
        seen, low = ctx.saved_tensors
        how: Projection = ctx.how
        wants_x, wants_dropped = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        with torch.autocast(gradient.device.type, enabled=False):
            gradient = gradient.reshape(-1, gradient.shape[-1]).to(how.dtype)
            inner, factors = _factor_gradients(gradient, seen, low, how)
            assert inner is not None and how.a is not None
            of_x = of_dropped = None
            if wants_x:
                of_x = _add_input_gradient(None, gradient, None if wants_dropped else inner, how, ctx.dtype)
                of_x = of_x.view(ctx.shape)
            if wants_dropped:
                of_dropped = (inner.T @ how.a.to(how.dtype)).view(ctx.shape).to(ctx.dtype)
        return of_x, of_dropped, *factors, None


class _GatedMLP(torch.autograd.Function):
    """(..., size) to (tokens, size): down(act(gate x) * up x), with gradients for x and all A and B."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        """`rest`: A and B of gate, up and down, then their projections and the activation."""
        gate, up, down, act = rest[6:]
        with torch.autocast(x.device.type, enabled=False):
            flat = _flat(x, gate)
            gated, low_gate = _project(flat, gate, None)
            upped, low_up = _project(flat, up, None)
            # The product of the two is not kept: it is one multiplication away from what is.
            out, low_down = _project(act.forward(gated).mul_(upped), down, None)
        ctx.save_for_backward(flat, gated, upped, low_gate, low_up, low_down)
        ctx.hows, ctx.shape, ctx.dtype = (gate, up, down, act), x.shape, x.dtype
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Of x and the factors; the product before `down` is computed again."""
        flat, gated, upped, low_gate, low_up, low_down = ctx.saved_tensors
        gate, up, down, act = ctx.hows
        with torch.autocast(gradient.device.type, enabled=False):
            gradient = gradient.reshape(-1, gradient.shape[-1]).to(down.dtype)
            # In place from here on, in an order in which each tensor is overwritten only after its last use.
            opened = act.forward(gated)
            inner, of_down = _factor_gradients(gradient, opened * upped, low_down, down)
            of_product = _add_input_gradient(None, gradient, inner, down)
            of_upped = opened.mul_(of_product)
            of_gated = act.backward(of_product.mul_(upped), gated)
            inner_up, of_up = _factor_gradients(of_upped, flat, low_up, up)
            inner_gate, of_gate = _factor_gradients(of_gated, flat, low_gate, gate)
            of_x = None
            if ctx.needs_input_grad[0]:
                of_x = _add_input_gradient(None, of_upped, inner_up, up, ctx.dtype)
                of_x = _add_input_gradient(of_x, of_gated, inner_gate, gate, ctx.dtype).view(ctx.shape)
        return of_x, *of_gate, *of_up, *of_down, None, None, None, None
