"""Every tensor that the merged model will have, from which of the base's and changed how; or why peft has to merge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import torch

from hftune.errors import ArgumentError, ManifestError, UserError, raise_together
from hftune.logging import notice
from hftune.merging.changes import Changes, Updates, misfits, updates_of
from hftune.merging.inputs import FLAG, Inputs
from hftune.merging.skeleton import (
    BaseTensors,
    StoredSlice,
    Unsupported,
    build_skeleton,
    match_names,
    quantised_linears,
)
from hftune.merging.tensors import FLOATS, NAMES, Quantisation, Source, dequantised, read_source, requantised
from hftune.merging.updates import ROWS, Change, grow_rows, is_same
from hftune.models.loading.stored_quantisation import check_readable, describe, is_read_whole, stored_quantisation
from hftune.weight_files import stored_tensors


@dataclass(frozen=True)
class Output:
    """One tensor of the merged model.

    Args:
        name: Its name on disk.
        dtype: As safetensors names it.
        shape: Its shape.
        source: The base's tensor; None: the base has none.
        change: What the adapters do to it; None: nothing.
        new: Whether the base has no tensor of that name on disk.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: Source | None
    change: Change | None = None
    new: bool = False


@dataclass(frozen=True)
class Outputs:
    """All tensors in the order of the base, and what the config must say of them.

    Args:
        tensors: New ones last.
        tied: False where embeddings and head are no longer one tensor, as the base's config says.
        vocab_size: Rows of the embeddings, where they have grown.
    """

    tensors: list[Output]
    tied: bool | None = None
    vocab_size: int | None = None


@dataclass(frozen=True)
class Plan:
    """How the merge is done.

    Args:
        inputs: What is merged into what.
        dequantise: Fold into what quantisation left of the base.
        outputs: The merged tensors; None where peft has to merge.
        unsupported: Why peft has to merge; None where it need not.
    """

    inputs: Inputs
    dequantise: bool
    outputs: Outputs | None = None
    unsupported: str | None = None


def plan_merge(inputs: Inputs, *, dequantise: bool = False) -> Plan:
    """Find every tensor's change, or why peft has to do it.

    Raises:
        UserError: The adapter does not fit the base.
    """
    reasons = chain([inputs.base.unsupported], (adapter.unsupported() for adapter in inputs.adapters))
    # Configs first: they cost nothing, where the base's names need the model that they belong to.
    unsupported = next((reason for reason in reasons if reason is not None), None)
    if unsupported is None:
        try:
            return Plan(inputs, dequantise, _plan_outputs(inputs, dequantise=dequantise))
        except Unsupported as error:
            unsupported = str(error)
    raise_together(_not_with_peft(inputs, unsupported, dequantise=dequantise))
    return Plan(inputs, dequantise, unsupported=unsupported)


def _not_with_peft(inputs: Inputs, reason: str, *, dequantise: bool) -> Iterator[UserError]:
    """What peft's way of merging does not have."""
    if dequantise:
        yield ArgumentError(f"--merge_base dequantized cannot be used: {reason}", fix="use --merge_base original")
    if any(adapter.weight != 1.0 for adapter in inputs.adapters):
        yield ArgumentError(f"--adapter_weights cannot be used: {reason}", fix="merge one adapter")


def _plan_outputs(inputs: Inputs, *, dequantise: bool) -> Outputs:
    base = _base_tensors(inputs, dequantise=dequantise)
    changes = Changes([[(adapter.weight, updates_of(adapter, base)) for adapter in level] for level in inputs.levels])
    grown = _grown(inputs, base)
    updates = [updates for level in changes.levels for _, updates in level]
    raise_together(
        problem
        for adapter, done in zip(inputs.adapters, updates, strict=True)
        for problem in misfits(adapter, done, base, grown)
    )
    _check_weights(base, changes)  # before growth joins in, which is nobody's update
    if grown:
        changes.levels.insert(0, [(1.0, grown)])  # the adapters were trained upon the grown rows
    untied = _untie(base, changes, keep_tied=any(a.config.get("ensure_weight_tying") for a in inputs.adapters))
    # Only now are all updates known: what is tied may have got some of its twin's.
    tensors = _outputs(base, changes, untied, NAMES[getattr(torch, inputs.dtype)] if inputs.dtype else None)
    return Outputs(tensors, False if untied else None, _new_vocab_size(base, changes, tensors))


# --- the base --------------------------------------------------------------------------------------------------------


def _base_tensors(inputs: Inputs, *, dequantise: bool) -> BaseTensors:
    stored = stored_tensors(inputs.base.folder)
    empty = [name for name, tensor in stored.items() if 0 in tensor.shape]
    if empty:
        raise ManifestError(
            f"the base in {inputs.base.name} is empty: {empty[0]} has size 0 (and {len(empty) - 1} more)",
            place="--base_model_name_or_path",
            fix="it was saved without gathering ZeRO-3's shards; save it again from a checkpoint of its run",
        )
    how = stored_quantisation(inputs.config)
    if how is not None and is_read_whole(how):
        check_readable(str(inputs.base.folder), "--base_model_name_or_path")
        raise Unsupported(f"the base is stored in {describe(how)}, which transformers reads whole")
    base = BaseTensors(dequantised(stored, inputs.config, inputs.base.name))
    if dequantise or _needs_skeleton(inputs, base):
        labels, trusted = inputs.scores, inputs.trust_remote_code
        model = build_skeleton(inputs.base.folder, head=inputs.head, labels=labels, trust_remote_code=trusted)
        unused = match_names(base, model, inputs.base.folder)
        if unused and inputs.scores is not None:
            # Other models keep what they do not load, such as layers that predict a token further on.
            base.left_out = set(unused)
            notice(f"a reward model has no {', '.join(unused)}; not written")
    if dequantise:
        assert inputs.quantised is not None
        if how is None:  # what bitsandbytes has stored is as training saw it
            _requantise(base, inputs.quantised)
    return base


def _needs_skeleton(inputs: Inputs, base: BaseTensors) -> bool:
    """Whether names alone do not tell: heads and embeddings (which may be tied), experts, weights stored as (in, out).

    A layer's own linear modules, which is what most adapters have, are stored under the names they have in memory.
    """
    if inputs.scores is not None or inputs.growth is not None:
        return True
    # (in, out) weights need the classes of modules, experts the parameters that a module has.
    if any(adapter.config.get(key) for adapter in inputs.adapters for key in ("fan_in_fan_out", "target_parameters")):
        return True
    touched = [module.name for adapter in inputs.adapters for module in adapter.modules]
    touched += [name for adapter in inputs.adapters for name in adapter.replaced]
    in_layers = all(any(word.isdigit() for word in name.split(".")) for name in touched)
    stored = {name.rpartition(".")[0] for name in base.stored} | base.stored.keys()
    return not in_layers or any(name not in stored for name in touched)


def _requantise(base: BaseTensors, how: Quantisation) -> None:
    """Have the layers that training quantised be read as it saw them."""
    linears = quantised_linears(base.skeleton, eight_bit=how.bits == 8)
    for name in (where.stored for linear in linears for where in base.slices(f"{linear}.weight")):
        base.stored[name] = requantised(base.stored[name], how)


def _grown(inputs: Inputs, base: BaseTensors) -> Updates:
    """Embeddings and head (and its bias) with the rows that training gave them."""
    growth = inputs.growth
    if growth is None:
        return {}
    names = [name for name in (base.embedding, *base.heads) if name]
    return {name: [grow_rows(growth, shape)] for name in names if (shape := base.shape(name))}


def _check_weights(base: BaseTensors, changes: Changes) -> None:
    """Tensors that are not in the base cannot be blended."""
    blended = (level for level in changes.levels if len(level) > 1 or level[0][0] != 1.0)
    for name, updates in (item for level in blended for _, found in level for item in found.items()):
        missing = not base.slices(name) and name not in base.tied
        if missing or any(update.shape and update.shape != base.shape(name) for update in updates):
            raise ManifestError(
                f"{name} is not in the base (or of another size), so it cannot be blended with weights",
                place="--adapter_weights",
                fix="merge the adapter that brings it alone",
            )


# --- embeddings and head that are one tensor -------------------------------------------------------------------------


def _untie(base: BaseTensors, changes: Changes, *, keep_tied: bool) -> set[str]:
    """The tied parameters that become different tensors.

    What counts is what training computed: peft trains one of two tied parameters without the other, unless it was told
    to keep them together (`ensure_weight_tying`).
    """
    untied: set[str] = set()
    for target, source in base.tied.items():
        # Some checkpoints hold both; transformers then loads them as they are, whatever the config says.
        if len(base.slices(target) + base.slices(source)) == 2 and not _same_values(base, target, source):
            notice(f"the base has {target} and {source} apart, though its config ties them; the merged config says so")
            untied |= {target, source}
            continue
        _share_updates(changes, source, target, keep_tied=keep_tied)
        if not is_same(changes.of(target), changes.of(source)):
            notice(
                f"the adapter trained {_which(changes, target, source)}, which the base ties: "
                "the merged model keeps them apart (tie_word_embeddings: false)"
            )
            untied |= {target, source}
    return untied


def _same_values(base: BaseTensors, target: str, source: str) -> bool:
    return torch.equal(read_source(base.source(target)), read_source(base.source(source)))


def _share_updates(changes: Changes, source: str, target: str, *, keep_tied: bool) -> None:
    """Give the tied parameter the updates that peft gives it: single rows always, others if it was told to."""
    for _, updates in chain.from_iterable(changes.levels):
        mine = updates.get(source)
        if mine and (keep_tied or all(update.key[0] == ROWS for update in mine)):
            # peft has the matrices of the head transposed; on the one weight of both they are the same update.
            updates[target] = mine


def _which(changes: Changes, target: str, source: str) -> str:
    if changes.of(target) and changes.of(source):
        return f"{source} and {target} each for itself"
    return f"{target} without {source}" if changes.of(target) else f"{source} without {target}"


def _tied_source(base: BaseTensors, parameter: str) -> Source | None:
    """The base's tensor of the parameter that a parameter is tied to."""
    pairs = [order for pair in base.tied.items() for order in (pair, pair[::-1])]
    return next((base.source(other) for own, other in pairs if own == parameter and base.slices(other)), None)


# --- the merged model's tensors --------------------------------------------------------------------------------------


def _outputs(base: BaseTensors, changes: Changes, untied: set[str], dtype: str | None) -> list[Output]:
    """Every tensor to be written.

    Args:
        base: The base.
        changes: What the adapters do.
        untied: Parameters that the base ties and the merged model does not.
        dtype: Of all floating point tensors; None: each keeps its own.
    """
    changed: dict[str, Output] = {}
    tied = list(dict.fromkeys(chain.from_iterable(base.tied.items())))
    for parameter in changes.parameters():
        # A tied parameter without a tensor of its own is on disk under the other one's name, which changes alike.
        if base.slices(parameter) or parameter not in tied or parameter in untied:
            changed |= {output.name: output for output in _changed(base, changes, parameter, dtype)}
    kept = [name for name in base.stored if name not in base.left_out]
    tensors = [changed.pop(name) if name in changed else _unchanged(name, base.stored[name], dtype) for name in kept]
    new = [output for output in changed.values() if output.name not in base.left_out]
    # Copies of a tied tensor that stays as it was, under the name that is not on disk, while the other one changes.
    for parameter in tied if untied else []:
        source = _tied_source(base, parameter)
        if source is not None and not base.slices(parameter) and not changes.of(parameter):
            new.append(Output(parameter, _dtype(source.dtype, dtype), source.shape, source, new=True))
    return tensors + new


def _changed(base: BaseTensors, changes: Changes, parameter: str, dtype: str | None) -> Iterator[Output]:
    """The tensors on disk that an updated parameter becomes."""
    for where in base.slices(parameter):
        source = base.stored[where.stored]
        # An expert is a slice: what replaces the parameter has the shape of all of them.
        shape = changes.shape(parameter, source.shape) if where.expert is None else source.shape
        change = Change(changes.of(parameter), where, shape)
        yield Output(where.stored, _dtype(source.dtype, dtype), shape, source, change)
    if not base.slices(parameter):
        before = base.shape(parameter)
        assert before is not None
        shape = changes.shape(parameter, before)
        tied_to = _tied_source(base, parameter)
        own = tied_to.dtype if tied_to is not None else _usual_dtype(base)
        change = Change(changes.of(parameter), StoredSlice(parameter), shape)
        yield Output(parameter, _dtype(own, dtype), shape, tied_to, change, new=True)


def _unchanged(name: str, source: Source, dtype: str | None) -> Output:
    return Output(name, _dtype(source.dtype, dtype), source.shape, source)


def _dtype(own: str, asked: str | None) -> str:
    return asked if asked and own in FLOATS else own


def _usual_dtype(base: BaseTensors) -> str:
    # Of a new score head: that of the first weight, as transformers would load the whole model in one dtype.
    return next(tensor.dtype for tensor in base.stored.values() if tensor.dtype in FLOATS)


def _new_vocab_size(base: BaseTensors, changes: Changes, tensors: list[Output]) -> int | None:
    """Rows of embeddings that have grown with the adapter; None where they are those of the base.

    Raises:
        ManifestError: The head has other rows.
    """
    embedding = base.embedding
    if embedding is None or embedding not in changes.parameters():
        return None
    before = base.shape(embedding)
    assert before is not None
    after = changes.shape(embedding, before)
    for head in (output for output in tensors if output.name.endswith(("lm_head.weight", "embed_out.weight"))):
        if head.shape[0] != after[0]:
            raise ManifestError(
                f"the adapter has {after[0]} embeddings, and {head.name} would have {head.shape[0]} rows",
                place=FLAG,
                fix="train and save both: --lora_modules_to_save embed_tokens lm_head",
            )
    if after[0] == before[0]:
        return None
    notice(f"the vocabulary has grown from {before[0]} to {after[0]} rows with the adapter's embeddings")
    return after[0]
