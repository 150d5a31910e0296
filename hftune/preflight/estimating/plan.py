"""Puts a plan together: the memory in use at each moment of a step, and the moment with the most."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hftune.preflight.estimating.parts import PARTS, Head, Moment
from hftune.preflight.estimating.profiles import Profile, backward_peaks, forward_levels
from hftune.preflight.memory import Free, Need, Setup


@dataclass(frozen=True)
class Plan:
    """The memory that a run will need in each process.

    Args:
        moment: That at which the most lives where the process trains.
        host: Bytes in the machine's memory in addition.
        context: Bytes that the device's driver and libraries take, which no allocator counts.
        untraced: Why activations could not be traced; None: they were.
        moments: All that were compared.
    """

    moment: Moment
    host: float
    context: float
    untraced: str | None = None
    moments: tuple[Moment, ...] = field(default=(), repr=False)

    @property
    def device(self) -> float:
        """The most bytes in use at a time on the device that the process trains on."""
        return self.moment.total + self.context

    def needed(self, setup: Setup) -> float:
        """The bytes on the device; on a CPU the machine's as well, since both are one memory."""
        return self.device + (self.host if setup.on_cpu else 0.0)

    def fits(self, free: Free, setup: Setup) -> bool:
        """Whether it fits, on the device and for all processes of the machine together."""
        if setup.on_cpu:
            return self.needed(setup) * setup.local_processes <= free.host
        return self.device <= free.device and self.host * setup.local_processes <= free.host


def moments(
    standing: dict[str, float],
    profile: Profile,
    head: Head,
    *,
    layer_gradients: float,
    tail_gradients: float,
    grows: bool,
    reference: float | None,
    at_work: float,
    optimizer_extra: float,
) -> Iterable[Moment]:
    """The moments of a step that may be its peak.

    Args:
        standing: Bytes in use all the time where the process trains, by part: gradients are all of them, weights those
            of a reference model too.
        profile: Of the layers.
        head: What is not traced of head and loss.
        layer_gradients: Bytes of the gradients of a layer, as they appear.
        tail_gradients: Of the head.
        grows: Whether gradients appear in the backward pass and go with the step; else they stay between micro steps.
        reference: Bytes that a forward pass of the reference takes on top of what the policy has kept; None: none runs.
        at_work: Bytes while a layer is at work: a weight that is made whole of packed ones, tokens sent to experts.
        optimizer_extra: Bytes while the optimizer runs, above its states and gradients.
    """
    peak, end = forward_levels(profile)
    # Gradients that stay are there from the second micro step on, which is the one that needs most.
    early = 0.0 if grows else standing["gradients"]

    def at(name: str, activations: float, loss: float = 0.0, gradients: float = early, **more: float) -> Moment:
        return Moment(name, {**standing, "gradients": gradients, "activations": activations, "loss": loss, **more})

    yield at("forward pass", peak + at_work)
    yield at("loss", end, head.forward)
    if reference is not None:
        # The policy's activations wait while the reference runs, so both count at once.
        yield at("reference", profile.all_kept + reference, head.kept)
        yield at("loss of the reference", profile.all_kept, head.kept + head.forward)
    # The head, the layers from last to first, the embeddings.
    levels = list(backward_peaks(profile))
    yield at("backward pass, head", levels[0], head.kept + head.backward)
    gradients = early
    for level in levels[1:-1]:
        if grows:
            # The head's gradient exists before the last layer's. Layers have an average share, whose sum may round up.
            gradients = min(standing["gradients"], (gradients or tail_gradients) + layer_gradients)
        yield at("backward pass, layers", level + at_work, 0.0, gradients)
    yield at("backward pass, embeddings", levels[-1], 0.0, standing["gradients"])
    # The backward pass has freed all activations by then.
    yield at("optimizer", 0.0, 0.0, standing["gradients"], optimizer=standing["optimizer"] + optimizer_extra)


def highest(
    found: Iterable[Moment], need: Need, setup: Setup, pinned: float, context: float, untraced: str | None
) -> Plan:
    """The plan: the moment at which the most is in use, and what the machine's memory must hold.

    Args:
        need: For what lies in the machine's memory, and for loading.
        pinned: Bytes in the machine's memory beyond that.
        context: See `Plan`.
        untraced: See `Plan`.
    """
    every, host = list(found), need.host + pinned
    # Loading is over before the first step, so it is one more moment and adds to none.
    if setup.on_cpu or not need.loads_on_host:
        every.append(Moment("loading", dict.fromkeys(PARTS, 0.0) | {"weights": need.loading}))
    else:
        host = max(host, need.loading)
    return Plan(max(every, key=lambda one: one.total), host, context, untraced, tuple(every))
