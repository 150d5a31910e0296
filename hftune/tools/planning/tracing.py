"""Traces one step through a miniature: the bytes each layer keeps, and its peak, forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from hftune.models.blocks import checkpointed_layers
from hftune.models.miniature import Miniature
from hftune.tools.planning.tracker import Tracker

_FROM_MODELS = (RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError, AssertionError)
"""Errors that a model's code may raise on tensors without data, or for arguments that it does not have."""


class Untraceable(Exception):
    """A model cannot be run on tensors without data; the message says why."""


@dataclass(frozen=True)
class Batch:
    """The input of the model in one micro step.

    Args:
        rows: Of the batch.
        tokens: In a row.
        masked: Whether the attention gets a mask of tokens by tokens: padded rows, or packed ones with plain SDPA.
    """

    rows: int
    tokens: int
    masked: bool = False


@dataclass(frozen=True)
class Part:
    """Bytes of one part of a step, above what lived when it began.

    Args:
        rise: The most.
        change: What is more, or less, when it is over.
    """

    rise: int
    change: int


@dataclass(frozen=True)
class Profile:
    """A step in parts: before the layers, each kind of layer, after them, and the way back.

    Args:
        kinds: For each layer of the whole model, in order, its place in `forward`, `kept` and `backward`.
        embed, forward, tail: The forward pass. `tail` is the last norm, and head and loss where these were traced.
        kept_embed, kept, kept_tail: Bytes that each has left for the backward pass.
        back_tail, backward, back_embed: The backward pass. Gradients of weights that stay are not in these.
        hidden_bytes: Of a number of the last hidden states.
    """

    kinds: tuple[int, ...]
    embed: Part
    forward: tuple[Part, ...]
    tail: Part
    kept_embed: int
    kept: tuple[int, ...]
    kept_tail: int
    back_tail: Part
    backward: tuple[Part, ...]
    back_embed: Part
    hidden_bytes: int = 4

    @property
    def all_kept(self) -> int:
        """The bytes kept for the backward pass when it begins."""
        return self.kept_embed + sum(self.kept[kind] for kind in self.kinds) + self.kept_tail


def forward_levels(profile: Profile) -> tuple[int, int]:
    """The peak of the forward pass and the level at its end: bytes above weights, gradients and states."""
    level, peak = profile.embed.change, profile.embed.rise
    for part in (*(profile.forward[kind] for kind in profile.kinds), profile.tail):
        peak = max(peak, level + part.rise)
        level += part.change
    return peak, level


def backward_peaks(profile: Profile) -> Iterator[int]:
    """The peaks of the tail, of each layer from the last to the first, and of the embeddings.

    Bytes above weights, gradients and states.
    """
    level = profile.all_kept
    yield level + profile.back_tail.rise
    level += profile.back_tail.change
    for kind in reversed(profile.kinds):
        yield level + profile.backward[kind].rise
        level += profile.backward[kind].change
    yield level + profile.back_embed.rise


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


def scaled(profile: Profile, share: float) -> Profile:
    """The profile of a process that holds a share of the activations, under tensor parallelism."""

    def of(part: Part) -> Part:
        return Part(round(part.rise * share), round(part.change * share))

    return replace(
        profile,
        embed=of(profile.embed),
        forward=tuple(map(of, profile.forward)),
        tail=of(profile.tail),
        kept_embed=round(profile.kept_embed * share),
        kept=tuple(round(kept * share) for kept in profile.kept),
        kept_tail=round(profile.kept_tail * share),
        back_tail=of(profile.back_tail),
        backward=tuple(map(of, profile.backward)),
        back_embed=of(profile.back_embed),
    )
