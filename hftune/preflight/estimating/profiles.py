"""A step as a profile of its layers: from a trace, or by a formula where nothing is traced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from transformers import PretrainedConfig, PreTrainedModel

from hftune.arguments.recomputation import Recomputation
from hftune.models.structure import layer_configs
from hftune.preflight.estimating.work import FULL_LOGITS, Numerics, Work

PER_TOKEN = 34
"""Bytes a token and unit of hidden size that a layer keeps in 16 bit."""

PER_SCORE = 5
"""Bytes a head and pair of tokens where attention keeps its scores."""

LOGIT_BYTES = 14
"""Bytes a logit where the loss is computed of all of them at once: 16 bit, float32, its gradient and softmax."""


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


def layer_bytes(config: PretrainedConfig, tokens: int, row: int, itemsize: int, *, keeps_scores: bool) -> float:
    """Bytes that one decoder layer keeps.

    Args:
        config: Of the text model.
        tokens: Of the micro step of one process.
        row: Tokens of a row, which attend to each other.
        itemsize: Bytes of a number as it is computed with.
        keeps_scores: Whether attention keeps a score for each pair of tokens (eager, or SDPA with a mask).
    """
    scale = itemsize / 2
    kept = tokens * config.hidden_size * PER_TOKEN * scale
    # The equation has an MLP of 4 hidden sizes, which is 19 of the 34 bytes; gated ones have 3 matrices for 2.
    kept *= 1 + 19 / 34 * (_mean(config, "intermediate_size") / (4 * config.hidden_size) * 1.5 - 1)
    if keeps_scores:
        kept += PER_SCORE * _mean(config, "num_attention_heads") * tokens * row * scale
    return kept


def _mean(config: PretrainedConfig, name: str) -> float:
    """Over the layers, which may differ: each by a config of its own, or in a list (Gemma 3n). 0 without the field."""
    values = [getattr(layer, name, None) or 0 for layer in layer_configs(config)] or [0]
    numbers = values[0] if isinstance(values[0], list | tuple) else values
    return float(sum(numbers)) / len(numbers)


def marks(plan: Recomputation | None, count: int) -> list[bool]:
    """Whether something is recomputed, for each of `count` layers."""
    chosen = set(plan.layers(count)) if plan is not None else set()
    return [number in chosen for number in range(count)]


def offloaded(profile: Profile, marked: list[bool]) -> tuple[Profile, float]:
    """The profile with the inputs of recomputed layers offloaded, and their bytes in the machine's memory."""
    kinds = {kind for kind, mark in zip(profile.kinds, marked, strict=True) if mark}
    away = float(sum(profile.kept[kind] for kind in profile.kinds if kind in kinds))

    def moved(kind: int, part: Part, sign: int) -> Part:
        # Forward (-1) the input leaves once its layer is done: the peak stays, the change shrinks. Backward (+1) it
        # comes back first and raises the peak; freeing it again is in the profile's change already.
        kept = profile.kept[kind] if kind in kinds else 0
        return Part(part.rise + (kept if sign > 0 else 0), part.change + sign * kept)

    return replace(
        profile,
        kept=tuple(0 if kind in kinds else kept for kind, kept in enumerate(profile.kept)),
        forward=tuple(moved(kind, part, -1) for kind, part in enumerate(profile.forward)),
        backward=tuple(moved(kind, part, 1) for kind, part in enumerate(profile.backward)),
    ), away


def formula_profile(
    bare: PreTrainedModel, batch: Batch, numerics: Numerics, recompute: Recomputation | None, work: Work
) -> tuple[Profile, int]:
    """The profile of GPT-like layers of this model's sizes, and the bytes of a forward pass without gradients."""
    config = bare.config.get_text_config()
    itemsize = numerics.compute.itemsize
    tokens = batch.rows * batch.tokens
    hidden = tokens * config.hidden_size * itemsize
    whole = round(layer_bytes(config, tokens, batch.tokens, itemsize, keeps_scores=batch.masked))
    marked = marks(recompute, config.num_hidden_layers)
    logits = tokens * config.vocab_size if work.head == FULL_LOGITS else 0
    # Two kinds of layers: 0 keeps everything, 1 is recomputed, keeps its input alone and has the whole again on the way
    # back. Of a logit 4 bytes, the float32 softmax, wait for the backward pass.
    profile = Profile(
        kinds=tuple(int(mark) for mark in marked),
        embed=Part(hidden, hidden),
        forward=(Part(whole, whole), Part(whole, hidden)),
        tail=Part(LOGIT_BYTES * logits + hidden, 4 * logits + hidden),
        kept_embed=hidden,
        kept=(whole, hidden),
        kept_tail=4 * logits + hidden,
        back_tail=Part(6 * logits + hidden, -4 * logits),
        backward=(Part(2 * hidden, -whole), Part(whole + 2 * hidden, -hidden)),
        back_embed=Part(hidden, -hidden),
        hidden_bytes=itemsize,
    )
    return profile, whole
