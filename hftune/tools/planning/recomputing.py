"""Recomputation in a miniature: its layers are recomputed where those that they stand for are."""

from __future__ import annotations

from dataclasses import replace

from hftune.arguments.recomputation import Recomputation
from hftune.models.kernels.activation_checkpointing import Recomputing
from hftune.models.miniature import Miniature
from hftune.tools.planning.tracing import Part, Profile


def marks(plan: Recomputation | None, count: int) -> list[bool]:
    """Whether something is recomputed, for each of `count` layers."""
    chosen = set(plan.layers(count)) if plan is not None else set()
    return [number in chosen for number in range(count)]


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
