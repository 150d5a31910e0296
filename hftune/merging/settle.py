"""What becomes of every tensor of the base, or why peft has to do the merge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from hftune.errors import ArgumentError, ManifestError, UserError, raise_together
from hftune.logging import notice
from hftune.merging.changes import Changes, misfits
from hftune.merging.quantised import dequantise_stored, requantise
from hftune.merging.recipes import Base, Spec, Unknown, grown, specs_of
from hftune.merging.resolve import Outputs, resolve
from hftune.merging.skeleton import Skeleton, build_skeleton, quantised_linears
from hftune.merging.tensors import NAMES
from hftune.weight_files import StoredTensor, stored_tensors

if TYPE_CHECKING:
    from hftune.merging.plan import Plan
    from hftune.models.vocabulary.growth import Growth


def settle(plan: Plan) -> Plan:
    """Find every tensor's change, or why peft has to do it.

    Raises:
        UserError: The adapter does not fit the base.
    """
    plan.unknown = plan.base.unknown or next(
        (reason for adapter in plan.adapters if (reason := adapter.unknown()) is not None), None
    )
    if plan.unknown is None:
        try:
            plan.outputs = _outputs(plan)
        except Unknown as error:
            plan.unknown = str(error)
    problems = plan.outputs.problems if plan.outputs else list(_only_ours(plan))
    raise_together(problems)
    return plan


def _only_ours(plan: Plan) -> Iterator[UserError]:
    """What peft's way of merging does not have."""
    if plan.dequantise:
        yield ArgumentError(f"--merge_base dequantized cannot be used: {plan.unknown}", fix="use --merge_base original")
    if any(adapter.weight != 1.0 for adapter in plan.adapters):
        yield ArgumentError(f"--adapter_weights cannot be used: {plan.unknown}", fix="merge one adapter")


def _outputs(plan: Plan) -> Outputs:
    stored = stored_tensors(plan.base.folder)
    empty = [name for name, tensor in stored.items() if 0 in tensor.shape]
    if empty:
        raise ManifestError(
            f"the base in {plan.base.name} is empty: {empty[0]} has size 0 (and {len(empty) - 1} more)",
            place="--base_model_name_or_path",
            fix="it was saved without gathering ZeRO-3's shards; save it again from a checkpoint of its run",
        )
    base = Base(dequantise_stored(stored, plan.config, plan.base.name))
    if _needs_skeleton(plan, base.tensors):
        base.skeleton = _skeleton(plan, base.tensors)
    if plan.dequantise:
        _dequantise(plan, base)
    if plan.scores is not None and base.skeleton is not None and base.skeleton.unused:
        base.dropped = set(base.skeleton.unused)
        notice(f"a reward model has no {', '.join(base.skeleton.unused)}; not written")
    changes = Changes([[(adapter.weight, specs_of(adapter, base)) for adapter in level] for level in plan.levels])
    fits = list(zip(plan.adapters, (specs for level in changes.levels for _, specs in level), strict=True))
    grew = _grown_parameters(plan.growth, base)
    raise_together(problem for adapter, specs in fits for problem in misfits(adapter, specs, base, grew))
    _check_weights(plan, base, changes)
    if grew:
        changes.levels.insert(0, [(1.0, grew)])
    tying = any(adapter.config.get("ensure_weight_tying") for adapter in plan.adapters)
    dtype = NAMES[getattr(torch, plan.dtype)] if plan.dtype else None
    return resolve(base, changes, dtype=dtype, weight_tying=tying)


def _needs_skeleton(plan: Plan, tensors: dict[str, Any]) -> bool:
    """Whether names alone do not tell: heads and embeddings (which may be tied), experts, weights stored as (in, out).

    A layer's own linear modules, which is what most adapters have, are stored under the names they have in memory.
    """
    if plan.scores is not None or plan.dequantise or plan.growth is not None:
        return True
    if any(a.config.get("fan_in_fan_out") for a in plan.adapters):
        return True
    touched = [part.module for adapter in plan.adapters for part in adapter.parts]
    touched += [name for adapter in plan.adapters for name in adapter.replaced]
    in_layers = all(any(piece.isdigit() for piece in name.split(".")) for name in touched)
    stored = {name.rpartition(".")[0] for name in tensors} | tensors.keys()
    return not in_layers or any(name not in stored for name in touched) or _any_targets_parameters(plan)


def _grown_parameters(growth: Growth | None, base: Base) -> dict[str, list[Spec]]:
    """Embeddings and head (and its bias) with the rows that training gave them."""
    if growth is None:
        return {}
    assert base.skeleton is not None
    named = [name for name in (base.skeleton.embedding, *base.skeleton.heads) if name and base.shape(name)]
    return {name: [grown(growth, base.shape(name) or ())] for name in named}


def _any_targets_parameters(plan: Plan) -> bool:
    return any(adapter.config.get("target_parameters") for adapter in plan.adapters)


def _skeleton(plan: Plan, tensors: dict[str, Any]) -> Skeleton:
    return build_skeleton(
        plan.base.folder, tensors, scores=plan.scores, head=plan.head, trust_remote_code=plan.trust_remote_code
    )


def _dequantise(plan: Plan, base: Base) -> None:
    assert base.skeleton is not None and plan.quantised is not None
    linears = quantised_linears(base.skeleton.model, eight_bit=plan.quantised.bits == 8)
    names = [piece.stored for name in linears for piece in base.pieces(f"{name}.weight")]
    whole = {name: tensor for name, tensor in base.tensors.items() if isinstance(tensor, StoredTensor)}
    base.tensors |= requantise({name: whole[name] for name in names if name in whole}, plan.quantised)


def _check_weights(plan: Plan, base: Base, changes: Changes) -> None:
    """Tensors that are not in the base cannot be blended."""
    for level in changes.levels:
        if len(level) == 1 and level[0][0] == 1.0:
            continue
        grown = [
            name
            for _, specs in level
            for name, found in specs.items()
            if (not base.pieces(name) and not (base.skeleton and name in base.skeleton.tied))
            or any(spec.shape and spec.shape != base.shape(name) for spec in found)
        ]
        if grown:
            raise ManifestError(
                f"{grown[0]} is not in the base (or of another size), so it cannot be blended with weights",
                place="--adapter_weights",
                fix="merge the adapter that brings it alone",
            )
