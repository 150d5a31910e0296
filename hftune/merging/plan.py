"""Every tensor that the merged model will have, from which of the base's and changed how; or why peft has to merge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from hftune.errors import ArgumentError, ManifestError, raise_together
from hftune.logging import notice
from hftune.merging.changes import Update, Updates, misfits, updates_of
from hftune.merging.inputs import Inputs
from hftune.merging.skeleton import BaseTensors, StoredSlice, Unsupported, build_skeleton, match_names
from hftune.merging.tensors import FLOATS, NAMES
from hftune.models.loading.quantisation import (
    check_readable,
    convert,
    describe,
    is_read_whole,
    method_of,
    stored_quantisation,
)
from hftune.weight_files import StoredTensor, stored_tensors


@dataclass(frozen=True)
class Output:
    """One tensor of the merged model.

    Args:
        name: Its name on disk.
        dtype: As safetensors names it.
        shape: Its shape.
        source: The base's tensor; None: the base has none.
        updates: What the adapters do to it, in order.
        where: Which slice of a parameter it stores; of a tensor that is updated.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: StoredTensor | None
    updates: list[Update] = field(default_factory=list)
    where: StoredSlice | None = None


@dataclass(frozen=True)
class Plan:
    """How the merge is done.

    Args:
        inputs: What is merged into what.
        outputs: The merged tensors in the order of the base, new ones last; None where peft has to merge.
        unsupported: Why peft has to merge; None where it need not.
    """

    inputs: Inputs
    outputs: list[Output] | None = None
    unsupported: str | None = None


def plan_merge(inputs: Inputs) -> Plan:
    """Find every tensor's change, or why peft has to do it.

    Raises:
        UserError: The adapter does not fit the base.
    """
    # Configs first: they cost nothing, where the base's names need the model that they belong to.
    unsupported = next(_reasons(inputs), None)
    if unsupported is None:
        try:
            return Plan(inputs, _plan_outputs(inputs))
        except Unsupported as error:
            unsupported = str(error)
    return Plan(inputs, unsupported=unsupported)


def _reasons(inputs: Inputs) -> Iterator[str]:
    """Why peft has to merge, as far as configs and manifests tell."""
    yield from filter(None, [inputs.base.unsupported, *(adapter.unsupported() for adapter in inputs.adapters)])
    if inputs.weighs:
        yield "adapters have weights"
    if inputs.growth is not None:
        yield "the vocabulary has grown"
    if inputs.dequantise:
        yield "the base is what quantisation left of it"
    how = stored_quantisation(inputs.config)
    if how is not None:
        _check_undone(how, inputs)
        yield f"the base is stored in {describe(how)}"


def _check_undone(how: dict[str, Any], inputs: Inputs) -> None:
    """Refuse a base whose packed weights transformers cannot make whole again."""
    folder = str(inputs.base.folder)
    if is_read_whole(how):
        check_readable(folder, "--base_model_name_or_path")
    elif method_of(how) != "bitsandbytes":
        raise ArgumentError(
            f"the base in {inputs.base.name} is stored quantised by {describe(how)}, which cannot be undone",
            place="--base_model_name_or_path",
            fix=f"give the unquantised model that it was made from; or convert it: {convert(folder)}",
        )


def _plan_outputs(inputs: Inputs) -> list[Output]:
    base = _base_tensors(inputs)
    found = [(adapter, updates_of(adapter, base)) for adapter in inputs.adapters]
    raise_together(problem for adapter, _ in found for problem in misfits(adapter, base))
    changes: Updates = {}
    for name, updates in chain.from_iterable(updates.items() for _, updates in found):
        changes.setdefault(name, []).extend(updates)  # adapters one after another, as they were trained
    # Trained alone, or each for itself, the two are no longer one tensor: peft and transformers know which.
    tied = sorted(changes.keys() & {*chain.from_iterable(base.tied.items())})
    if tied:
        raise Unsupported(f"it trains {' and '.join(tied)}, which the base ties")
    return _outputs(base, changes, NAMES[getattr(torch, inputs.dtype)] if inputs.dtype else None)


# --- the base --------------------------------------------------------------------------------------------------------


def _base_tensors(inputs: Inputs) -> BaseTensors:
    stored = stored_tensors(inputs.base.folder)
    empty = [name for name, tensor in stored.items() if 0 in tensor.shape]
    if empty:
        raise ManifestError(
            f"the base in {inputs.base.name} is empty: {empty[0]} has size 0 (and {len(empty) - 1} more)",
            place="--base_model_name_or_path",
            fix="it was saved without gathering ZeRO-3's shards; save it again from a checkpoint of its run",
        )
    base = BaseTensors(stored)
    if _needs_skeleton(inputs, base):
        labels, trusted = inputs.scores, inputs.trust_remote_code
        model = build_skeleton(inputs.base.folder, head=inputs.head, labels=labels, trust_remote_code=trusted)
        unused = match_names(base, model)
        if unused and inputs.scores is not None:
            # Other models keep what they do not load, such as layers that predict a token further on.
            base.left_out = set(unused)
            notice(f"a reward model has no {', '.join(unused)}; not written")
    return base


def _needs_skeleton(inputs: Inputs, base: BaseTensors) -> bool:
    """Whether names alone do not tell: heads and embeddings (which may be tied), experts, weights stored as (in, out).

    A layer's own linear modules, which is what most adapters have, are stored under the names they have in memory.
    """
    if inputs.scores is not None:
        return True
    # (in, out) weights need the classes of modules, experts the parameters that a module has.
    if any(adapter.config.get(key) for adapter in inputs.adapters for key in ("fan_in_fan_out", "target_parameters")):
        return True
    touched = [module.name for adapter in inputs.adapters for module in adapter.modules]
    touched += [name for adapter in inputs.adapters for name in adapter.replaced]
    in_layers = all(any(word.isdigit() for word in name.split(".")) for name in touched)
    stored = {name.rpartition(".")[0] for name in base.stored} | base.stored.keys()
    return not in_layers or any(name not in stored for name in touched)


# --- the merged model's tensors --------------------------------------------------------------------------------------


def _outputs(base: BaseTensors, changes: Updates, dtype: str | None) -> list[Output]:
    """Every tensor to be written.

    Args:
        base: The base.
        changes: What the adapters do.
        dtype: Of all floating point tensors; None: each keeps its own.
    """
    changed = {output.name: output for parameter in changes for output in _changed(base, changes, parameter, dtype)}
    kept = [name for name in base.stored if name not in base.left_out]
    tensors = [changed.pop(name) if name in changed else _unchanged(name, base.stored[name], dtype) for name in kept]
    return tensors + [output for output in changed.values() if output.name not in base.left_out]


def _changed(base: BaseTensors, changes: Updates, parameter: str, dtype: str | None) -> Iterator[Output]:
    """The tensors on disk that an updated parameter becomes."""
    updates, slices = changes[parameter], base.slices(parameter)
    for where in slices:
        source = base.stored[where.stored]
        yield Output(where.stored, _dtype(source.dtype, dtype), source.shape, source, updates, where)
    if not slices:  # a new head
        shape = base.shape(parameter)
        assert shape is not None
        own = _dtype(_usual_dtype(base), dtype)
        yield Output(parameter, own, shape, None, updates, StoredSlice(parameter))


def _unchanged(name: str, source: StoredTensor, dtype: str | None) -> Output:
    return Output(name, _dtype(source.dtype, dtype), source.shape, source)


def _dtype(own: str, asked: str | None) -> str:
    return asked if asked and own in FLOATS else own


def _usual_dtype(base: BaseTensors) -> str:
    # Of a new score head: that of the first weight, as transformers would load the whole model in one dtype.
    return next(tensor.dtype for tensor in base.stored.values() if tensor.dtype in FLOATS)
