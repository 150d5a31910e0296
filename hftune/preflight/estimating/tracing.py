"""Traces one step through a miniature: the bytes each layer keeps, and its peak, forward and backward."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hftune.arguments.recomputation import Recomputation
from hftune.models.attention.mixers import mixers_of
from hftune.models.kernels.activation_checkpointing import Recomputing
from hftune.models.miniature import Miniature
from hftune.models.structure import checkpointed_layers
from hftune.preflight.estimating.planner import Untraceable
from hftune.preflight.estimating.profiles import Batch, Part, Profile

GRAIN = 512
"""Bytes to which torch's CUDA allocator rounds up."""


@dataclass
class Stretch:
    """A part of a step.

    Args:
        name: What happens in it.
        start: Bytes that live when it begins.
        peak: The most that live in it.
        end: Bytes that live when it is over.
    """

    name: str
    start: int
    peak: int
    end: int = 0


class Tracker(TorchDispatchMode):
    """Bytes of the storages that operators return, while they live.

    Args:
        known: Tensors that are accounted for elsewhere: weights, their gradients, the inputs.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        # Kept alive, so that no other storage can get the address of one of them.
        self._known = {_address(tensor): tensor for tensor in known}
        self._living: dict[int, tuple[int, str]] = {}
        self.now = 0
        self.stretches = [Stretch("before", 0, 0)]

    def begin(self, name: str) -> None:
        """End the current stretch and begin a new one."""
        self.stretches[-1].end = self.now
        self.stretches.append(Stretch(name, self.now, self.now))

    def of(self, name: str) -> Stretch:
        """The stretch of that name; an empty one if it never began."""
        return next((one for one in self.stretches if one.name == name), Stretch(name, 0, 0))

    def living(self, name: str) -> int:
        """The bytes that were allocated in a stretch and still live."""
        return sum(size for size, born in self._living.values() if born == name)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count what it returns. Overrides `TorchDispatchMode`'s: it sees all below autograd."""
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            self._count(tensor)
        return out

    def _count(self, tensor: torch.Tensor) -> None:
        address = _address(tensor)
        # A view, or the result of an in-place operator: its storage is counted already.
        if address in self._living or address in self._known:
            return
        storage = tensor.untyped_storage()
        size = -(-storage.nbytes() // GRAIN) * GRAIN
        stretch = self.stretches[-1]
        self._living[address] = size, stretch.name
        self.now += size
        stretch.peak = max(stretch.peak, self.now)
        # torch keeps a storage's Python object as long as the storage lives: when it ends, the memory is free.
        weakref.finalize(storage, self._forget, address)

    def _forget(self, address: int) -> None:
        size, _ = self._living.pop(address)
        self.now -= size


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    """The tensors among what an operator returns."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for one in result:
            yield from _tensors(one)


def _address(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage, which several tensors may share."""
    # Not `data_ptr`: tensors without data have none.
    return int(tensor.untyped_storage()._cdata)


_FROM_MODELS = (RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError, AssertionError)
"""Errors that a model's code may raise on tensors without data, or for arguments that it does not have."""


def trace(miniature: Miniature, batch: Batch, autocast: torch.dtype | None, *, with_loss: bool) -> Profile:
    """Run one step on tensors without data and return its profile. Called under a `FakeTensorMode`.

    Args:
        miniature: Materialised, with what is trained set, in training mode.
        autocast: The dtype that is computed in where weights have another one.
        with_loss: Run the head on all tokens, and transformers' own loss; else stop at the last hidden states.
    """
    model = miniature.model
    for parameter in model.parameters():
        # Gradients exist beforehand, so that none is allocated during the trace: `plan.moments` counts them.
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
    inputs = _inputs(batch, with_loss)
    grads = [one.grad for one in model.parameters() if one.grad is not None]
    tracker = Tracker([*model.parameters(), *model.buffers(), *inputs.values(), *grads])
    with _marked(miniature, tracker), tracker:
        tracker.begin("embed")
        with _models_code(), torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
            result = (model if with_loss else base_of(model))(**inputs, use_cache=False)
            out = result.loss if with_loss else result.last_hidden_state
        # accelerate returns outputs in float32; the Trainer frees them before the backward pass.
        copied = result.logits.float() if with_loss and autocast is not None else None
        hidden_bytes = out.element_size()
        del result, copied
        tracker.begin("back_tail")
        # Now, with the forward pass over: whatever it has left alive waits for the backward pass.
        living = {name: tracker.living(name) for name in ("embed", "tail", *_names(miniature, "forward"))}
        with _models_code():
            # Hidden states are no scalar: in the place of the loss's gradient stands one of their shape.
            out.backward(torch.empty_like(out))
        tracker.begin("after")
    return _profile(miniature, tracker, living, hidden_bytes)


@contextlib.contextmanager
def _models_code() -> Iterator[None]:
    """Turn errors of the model's code into `Untraceable`; errors of the planner's own code stay what they are.

    Raises:
        Untraceable: In the place of what the model raised.
    """
    try:
        yield
    except _FROM_MODELS as problem:
        raise Untraceable(f"{type(problem).__name__}: {problem}".splitlines()[0][:200]) from problem


def trace_without_gradients(miniature: Miniature, batch: Batch, autocast: torch.dtype | None) -> int:
    """The peak of a forward pass without gradients, in bytes, whatever the number of layers."""
    inputs = _inputs(batch, with_loss=False)
    model = miniature.model
    tracker = Tracker([*model.parameters(), *model.buffers(), *inputs.values()])
    computed = torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None)
    with torch.no_grad(), tracker, _models_code(), computed:
        base_of(model)(**inputs, use_cache=False)
    # Nothing began a new stretch: the last one is the whole pass.
    return tracker.stretches[-1].peak


def goes_token_by_token(model: nn.Module) -> bool:
    """Whether a layer has a loop over tokens without its kernel, as Mamba's first version: minutes without data.

    Later ones have a decay for each head, not for each element of the state, and go in chunks.
    """
    named = (found for mixer in mixers_of(model) for found in mixer.named_parameters())
    return any(name.endswith("A_log") and sum(size > 1 for size in one.shape) > 1 for name, one in named)


def base_of(model: Any) -> nn.Module:
    """The model below the head, also of a model with an adapter."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    base: nn.Module = inner.base_model
    if base is inner and (found := checkpointed_layers(inner)) is not None:
        return found[0]  # a decoder that transformers does not find by its name (Llama 4, 5.23)
    return base


def _inputs(batch: Batch, with_loss: bool) -> dict[str, torch.Tensor]:
    ids = torch.empty((batch.rows, batch.tokens), dtype=torch.long)
    inputs = {"input_ids": ids}
    if batch.masked:
        inputs["attention_mask"] = torch.empty_like(ids)
    if with_loss:
        inputs["labels"] = torch.empty_like(ids)
    return inputs


def _names(miniature: Miniature, what: str) -> list[str]:
    return [f"{what} {number}" for number in range(len(miniature.layers))]


@contextlib.contextmanager
def _marked(miniature: Miniature, tracker: Tracker) -> Iterator[None]:
    """Have layers begin a stretch of the tracker, in the block, when their forward and their backward pass begin."""
    handles: list[Any] = []
    for number, layer in enumerate(miniature.layers):
        handles.append(layer.register_forward_pre_hook(_before(tracker, number), with_kwargs=True))
        last = number == len(miniature.layers) - 1
        handles.append(layer.register_forward_hook(_after(tracker, number, last=last), with_kwargs=True))
    if any(one.requires_grad for one in miniature.layers[0].parameters()):
        # Of many layers, all but the first have an input with a gradient: so has the one that stands for them.
        handles.append(miniature.model.get_input_embeddings().register_forward_hook(_require_gradient))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _before(tracker: Tracker, number: int) -> Callable[..., None]:
    def hook(layer: nn.Module, args: Any, kwargs: Any) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        if number == 0 and hidden.requires_grad:
            # Reached when the first layer's backward pass is over.
            hidden.register_hook(lambda grad: tracker.begin("back_embed"))
        tracker.begin(f"forward {number}")

    return hook


def _after(tracker: Tracker, number: int, *, last: bool) -> Callable[..., None]:
    def hook(layer: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        hidden = out[0] if isinstance(out, tuple) else out
        if hidden.requires_grad:
            # The gradient of a layer's output is ready just before its backward pass runs.
            hidden.register_hook(lambda grad: tracker.begin(f"backward {number}"))
        if last:
            tracker.begin("tail")

    return hook


def _require_gradient(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
    return out if out.requires_grad else out.requires_grad_(True)


def _profile(miniature: Miniature, tracker: Tracker, living: dict[str, int], hidden_bytes: int) -> Profile:
    def part(name: str) -> Part:
        stretch = tracker.of(name)
        return Part(stretch.peak - stretch.start, stretch.end - stretch.start)

    return Profile(
        kinds=miniature.kinds,
        embed=part("embed"),
        forward=tuple(part(name) for name in _names(miniature, "forward")),
        tail=part("tail"),
        kept_embed=living["embed"],
        kept=tuple(living[name] for name in _names(miniature, "forward")),
        kept_tail=living["tail"],
        back_tail=part("back_tail"),
        backward=tuple(part(name) for name in _names(miniature, "backward")),
        back_embed=part("back_embed"),
        hidden_bytes=hidden_bytes,
    )


def switch_on(miniature: Miniature, plan: Recomputation | None, marked: list[bool], *, reentrant: bool) -> None:
    """Switch recomputation on for the layers of a miniature, as in the whole model.

    Args:
        marked: One for each layer of the whole model.
        reentrant: With torch's older way, unless the plan has a word of its own.
    """
    # All layers of a kind have the same mark, so the first one answers for its kind.
    places = [str(place) for place in range(len(miniature.layers)) if marked[miniature.kinds.index(place)]]
    if plan is None or not places:
        return
    model = miniature.model
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    # `places` names the layers already: an interval would thin them out again. Offloading is arithmetic, in
    # `offloaded`.
    here = replace(plan, every=1, which=",".join(places))
    Recomputing(plain, here, reentrant=reentrant, offload=False).switch(plain, on=True)
