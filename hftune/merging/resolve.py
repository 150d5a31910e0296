"""From a base and what its adapters change to the list of tensors that the merged model has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from hftune.errors import ManifestError, UserError
from hftune.logging import notice
from hftune.merging.changes import Changes
from hftune.merging.recipes import Base
from hftune.merging.skeleton import Piece
from hftune.merging.tensors import FLOATS, read_tensor
from hftune.merging.updates import Change
from hftune.weight_files import StoredTensor


@dataclass
class Output:
    """One tensor of the merged model.

    Args:
        name: Its name on disk.
        dtype: As safetensors names it.
        shape: Its shape.
        source: The base's tensor (`StoredTensor`, or one that is made when it is read); None: the base has none.
        change: What the adapters do to it; None: nothing.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: Any | None
    change: Change | None = None
    new: bool = False
    """Whether the base has no tensor of that name on disk."""


@dataclass
class Outputs:
    """All of them in the order of the base, and what the config must say of them."""

    tensors: list[Output]
    tied: bool | None = None
    """Set where embeddings and head are no longer what the base's config says."""
    vocab_size: int | None = None
    """Set where the embeddings have grown."""
    problems: list[UserError] = field(default_factory=list)


def resolve(base: Base, changes: Changes, *, dtype: str | None, weight_tying: bool) -> Outputs:
    """Every tensor to be written.

    Args:
        base: The base's tensors.
        changes: What the adapters do.
        dtype: Of all floating point tensors; None: each keeps its own.
        weight_tying: The adapters were trained with peft's `ensure_weight_tying`.
    """
    parted = _settle_tying(base, changes, weight_tying)
    tied = False if parted else None
    found = Outputs([], tied=tied)
    changed: dict[str, Output] = {}
    for parameter in changes.parameters():
        if _is_shadow(base, parameter, parted):
            continue
        for output in _changed(base, changes, parameter, dtype):
            if output.name not in base.dropped:
                changed[output.name] = output
    kept = [name for name in base.tensors if name not in base.dropped]
    found.tensors = [changed.pop(name) if name in changed else _unchanged(base, name, dtype) for name in kept]
    new = [*changed.values(), *_untied_sources(base, changes, changed, dtype, tied)]
    found.tensors += new
    _check_vocabulary(base, changes, found)
    return found


def _is_shadow(base: Base, parameter: str, parted: set[str]) -> bool:
    """Whether a parameter is on disk under the name of the one it stays tied to."""
    tied = base.skeleton.tied if base.skeleton else {}
    return not base.pieces(parameter) and parameter in {*tied, *tied.values()} and parameter not in parted


def _untied_sources(
    base: Base, changes: Changes, changed: dict[str, Output], dtype: str | None, tied: bool | None
) -> list[Output]:
    """Copies of a tied tensor that is not on disk and stays as it was, while the one that is on disk changes."""
    if tied is not False or base.skeleton is None:
        return []
    missing = []
    for pair in base.skeleton.tied.items():
        for own, other in (pair, pair[::-1]):
            if not base.pieces(own) and not changes.of(own):
                source = base.tensors[base.pieces(other)[0].stored]
                missing.append(Output(own, _dtype(source.dtype, dtype), tuple(source.shape), source, new=True))
    return missing


def _changed(base: Base, changes: Changes, parameter: str, dtype: str | None) -> list[Output]:
    pieces = base.pieces(parameter)
    if pieces:
        made = []
        for piece in pieces:
            source = base.tensors[piece.stored]
            before = tuple(source.shape)
            shape = changes.shape(parameter, before) if piece.expert is None else before
            change = changes.change(parameter, piece, shape)
            made.append(Output(piece.stored, _dtype(source.dtype, dtype), shape, source, change))
        return made
    source = _tied_source(base, parameter)
    now = base.shape(parameter)
    assert now is not None
    shape = changes.shape(parameter, now)
    own = source.dtype if source is not None else _usual_dtype(base)
    change = changes.change(parameter, Piece(parameter), shape)
    return [Output(parameter, _dtype(own, dtype), shape, source, change, new=True)]


def _tied_source(base: Base, parameter: str) -> Any | None:
    """The base's tensor that a parameter without one of its own is tied to."""
    tied = base.skeleton.tied if base.skeleton else {}
    for own, other in [*tied.items(), *((source, target) for target, source in tied.items())]:
        if own == parameter and base.pieces(other):
            return base.tensors[base.pieces(other)[0].stored]
    return None


def _unchanged(base: Base, name: str, dtype: str | None) -> Output:
    source = base.tensors[name]
    return Output(name, _dtype(source.dtype, dtype), tuple(source.shape), source)


def _dtype(own: str, asked: str | None) -> str:
    return asked if asked and own in FLOATS else own


def _usual_dtype(base: Base) -> str:
    return next(tensor.dtype for tensor in base.tensors.values() if tensor.dtype in FLOATS)


# --- embeddings and head that are one tensor -------------------------------------------------------------------------


def _settle_tying(base: Base, changes: Changes, weight_tying: bool) -> set[str]:
    """The tied parameters that part.

    What counts is what training computed: peft trains one of two tied parameters without the other, unless it was told
    to keep them together.
    """
    parted: set[str] = set()
    for target, source in (base.skeleton.tied if base.skeleton else {}).items():
        if len(base.pieces(target) + base.pieces(source)) == 2 and not _same_stored(base, target, source):
            notice(f"the base has {target} and {source} apart, though its config ties them; the merged config says so")
            parted |= {target, source}
            continue
        _carry_over(changes, source, target, weight_tying)
        if not _same_change(changes, target, source):
            notice(
                f"the adapter trained {_which(changes, target, source)}, which the base ties: "
                "the merged model keeps them apart (tie_word_embeddings: false)"
            )
            parted |= {target, source}
    return parted


def _which(changes: Changes, target: str, source: str) -> str:
    if changes.of(target) and changes.of(source):
        return f"{source} and {target} each for itself"
    return f"{target} without {source}" if changes.of(target) else f"{source} without {target}"


def _same_stored(base: Base, target: str, source: str) -> bool:
    first, second = (read_tensor(base.tensors[base.pieces(name)[0].stored]) for name in (target, source))
    return torch.equal(first, second)


def _carry_over(changes: Changes, source: str, target: str, weight_tying: bool) -> None:
    """Give the tied parameter the changes that peft gives it: single rows always, others if it was told to."""
    for level in changes.levels:
        for _, specs in level:
            mine = specs.get(source, [])
            if mine and (weight_tying or all(spec.key[0] == "rows" for spec in mine)):
                specs[target] = mine
                # The matrices of the head are those of the embeddings, turned; they are the same weight here.


def _same_change(changes: Changes, target: str, source: str) -> bool:
    return _equal(changes.key(target), changes.key(source))


def _equal(first: Any, second: Any) -> bool:
    """Whether two keys mean the same change; tensors may be saved twice."""
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_equal, first, second))
    if isinstance(first, StoredTensor) and isinstance(second, StoredTensor):
        same_kind = (first.dtype, first.shape) == (second.dtype, second.shape)
        return first == second or (same_kind and torch.equal(read_tensor(first), read_tensor(second)))
    return first == second


def _check_vocabulary(base: Base, changes: Changes, found: Outputs) -> None:
    embedding = base.skeleton.embedding if base.skeleton else None
    if embedding is None or embedding not in changes.parameters():
        return
    before = base.shape(embedding)
    assert before is not None
    after = changes.shape(embedding, before)
    if after[0] != before[0]:
        found.vocab_size = after[0]
        notice(f"the vocabulary has grown from {before[0]} to {after[0]} rows with the adapter's embeddings")
    heads = [output for output in found.tensors if output.name.endswith(("lm_head.weight", "embed_out.weight"))]
    for head in heads:
        if head.shape[0] != after[0]:
            found.problems.append(
                ManifestError(
                    f"the adapter has {after[0]} embeddings, and {head.name} would have {head.shape[0]} rows",
                    place="--peft_model_path",
                    fix="train and save both: --lora_modules_to_save embed_tokens lm_head",
                )
            )
