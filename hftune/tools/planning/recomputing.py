"""Which layers of a miniature are recomputed: those that are like the recomputed ones of the whole model."""

from __future__ import annotations

from dataclasses import replace

from hftune.arguments.recomputation import Recomputation
from hftune.models.kernels.activation_checkpointing import Recomputing
from hftune.models.miniature import Miniature
from hftune.tools.planning.tracing import Part, Profile


def marks(plan: Recomputation | None, count: int) -> list[bool]:
    """Whether something is recomputed in each of so many layers."""
    chosen = set(plan.layers(count)) if plan is not None else set()
    return [number in chosen for number in range(count)]


def switch_on(miniature: Miniature, plan: Recomputation | None, marked: list[bool], *, reentrant: bool) -> None:
    """Let the layers of a miniature be recomputed as those of the whole model will be.

    Args:
        marked: One for each layer of the whole model.
        reentrant: With torch's older way, unless the plan has a word of its own.
    """
    places = [str(place) for place in range(len(miniature.layers)) if marked[miniature.kinds.index(place)]]
    if plan is None or not places:
        return
    model = miniature.model
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    here = replace(plan, every=1, which=",".join(places))
    Recomputing(plain, here, reentrant=reentrant, offload=False).switch(plain, on=True)


def offloaded(profile: Profile, marked: list[bool]) -> tuple[Profile, float]:
    """The profile where what recomputed layers keep lies in the machine's memory, and the bytes there."""
    kinds = {kind for kind, mark in zip(profile.kinds, marked, strict=True) if mark}
    away = float(sum(profile.kept[kind] for kind in profile.kinds if kind in kinds))

    def moved(kind: int, part: Part, sign: int) -> Part:
        kept = profile.kept[kind] if kind in kinds else 0
        return Part(part.rise + (kept if sign > 0 else 0), part.change + sign * kept)

    return replace(
        profile,
        kept=tuple(0 if kind in kinds else kept for kind, kept in enumerate(profile.kept)),
        forward=tuple(moved(kind, part, -1) for kind, part in enumerate(profile.forward)),
        backward=tuple(moved(kind, part, 1) for kind, part in enumerate(profile.backward)),
    ), away
