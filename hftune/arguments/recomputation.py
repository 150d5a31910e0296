"""Activation checkpointing: what is computed again in the backward pass instead of being kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from hftune.arguments.option import option
from hftune.checks import refuse
from hftune.errors import ArgumentError
from hftune.opening.json_file import parse_json

FULL, ATTENTION, MLP = "full", "attention", "mlp"
PARTS = (FULL, ATTENTION, MLP)
AUTO = "auto"
_FLAG, _WHICH = "--activation_checkpointing", "--activation_checkpointing_layers"

OPTIONS = ("use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop")
"""Of `torch.utils.checkpoint.checkpoint`; all that may stand in --gradient_checkpointing_kwargs next to our own."""

_KWARGS = ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
_YES, _NO = ("true", "yes", "1", "on"), ("false", "no", "0", "off", "none")


@dataclass(frozen=True)
class Recomputation:
    """Which layers recompute what, resolved from all flags.

    Args:
        parts: `("full",)`, or some of "attention" (the module with its projections) and "mlp".
        every: One of this many layers, the first included.
        which: Further restricts the layers: "0-3,7", "not 0,1", or a share such as "1/3".
        offload: Keep what is saved for recomputing in the memory of the machine, not on the accelerator.
        options: For torch's `checkpoint`; `use_reentrant` is False unless it is there.
    """

    parts: tuple[str, ...] = (FULL,)
    every: int = 1
    which: str | None = None
    offload: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def layers(self, count: int) -> list[int]:
        """Numbers, from 0, of the layers in which something is recomputed, of `count`.

        Raises:
            ArgumentError: A layer is named that there is not.
        """
        if self.which is None:
            return list(range(0, count, self.every))
        if "/" in self.which or "." in self.which:
            return _spread(share_of(self.which), count)
        excluded = self.which.startswith("not ")
        named = numbered(self.which.removeprefix("not "))
        beyond = [number for number in named if number >= count]
        if beyond:
            raise ArgumentError(
                f"there is no layer {beyond[0]}: the model has {count}, from 0 to {count - 1}",
                place=_WHICH,
                fix="name layers that there are",
            )
        return [number for number in range(count) if (number in named) != excluded]

    @property
    def takes_routers(self) -> bool:
        """Whether a mixture's routers run twice where something is recomputed."""
        return bool({FULL, MLP} & set(self.parts))

    def __str__(self) -> str:
        which = f"of layers {self.which}" if self.which else f"of every {self.every} layers" if self.every > 1 else ""
        words = [", ".join(self.parts), which, "kept on the CPU" if self.offload else ""]
        return " ".join(word for word in words if word)


@dataclass
class RecomputationFields:
    """Which activations are recomputed, in every stage. `gradient_checkpointing` is transformers' older name."""

    activation_checkpointing: str | None = option(
        None,
        "What is computed again in the backward pass instead of being kept: full (whole layers), attention "
        "(with its projections), mlp, both joined by a comma, auto (as few whole layers as the plan says that "
        "memory needs) or none. Left out: full, unless --gradient_checkpointing False. Losses stay the same.",
    )
    gradient_checkpointing: bool = option(
        True, "Recompute activations in the backward pass: less memory, about 20%% slower."
    )
    activation_checkpointing_every: int = option(
        1, "Recompute in one of this many layers only: less time, more memory."
    )
    activation_checkpointing_layers: str | None = option(
        None, "Layers that are recomputed: 0-3,7 or 'not 0,1' or a share, spread evenly: 1/3."
    )
    activation_checkpointing_offload: bool = option(
        False, "Keep what is saved for recomputing in the memory of the machine, not on the accelerator."
    )
    recomputation: Recomputation | None = field(
        default=None, init=False, repr=False, metadata={"help": "All of this, resolved; None: nothing is recomputed."}
    )

    recomputes_least: bool = field(
        default=False, init=False, repr=False, metadata={"help": "Layers are still to be chosen by the plan."}
    )

    def resolve_recomputation(self) -> None:
        """Make one decision of all fields, and leave to transformers and TRL what they can read without harm.

        Raises:
            ArgumentError: Unknown parts, layers or options, or fields that contradict each other.
        """
        given = self._given_options()
        # Ours may stand among the kwargs; torch's `checkpoint` does not take them.
        every, offload = given.pop("every_n_layers", None), given.pop("offload", None)
        self.activation_checkpointing_every = int(every or self.activation_checkpointing_every)
        self.activation_checkpointing_offload |= bool(offload)
        unknown = [name for name in given if name not in OPTIONS]
        if unknown:
            raise ArgumentError(
                f"torch's checkpoint takes no {unknown[0]}",
                place="--gradient_checkpointing_kwargs",
                fix=f"use {', '.join(OPTIONS)}; what is recomputed: {_FLAG}, {_FLAG}_every, {_FLAG}_offload",
            )
        parts = self._parts()
        self._check_details(parts)
        self._take(self._resolved(parts, given) if parts else None)
        # transformers passes the rest on to torch's `checkpoint`, which refuses names of ours.
        for name in _KWARGS:
            if hasattr(self, name):
                setattr(self, name, given or None)

    def recompute_share(self, share: Fraction) -> None:
        """Resolve `--activation_checkpointing auto`: so many of the layers, spread evenly; 0: none, 1: all."""
        assert self.recomputation is not None
        # A share of 1 is written as all layers, which reads and compares like the default.
        which = None if share in (0, 1) else str(share)
        self.recomputes_least, self.activation_checkpointing_layers = False, which
        self._take(replace(self.recomputation, which=which) if share else None)

    def _take(self, recomputation: Recomputation | None) -> None:
        self.recomputation = recomputation
        # transformers from 5.23 on asks for this name first, the versions before for the other; TRL for the other.
        self.activation_checkpointing = ",".join(recomputation.parts) if recomputation else None
        self.gradient_checkpointing = recomputation is not None

    def _resolved(self, parts: tuple[str, ...], options: dict[str, Any]) -> Recomputation:
        return Recomputation(
            parts,
            self.activation_checkpointing_every,
            self.activation_checkpointing_layers,
            self.activation_checkpointing_offload,
            dict(options),
        )

    def _given_options(self) -> dict[str, Any]:
        for name in _KWARGS:
            given = getattr(self, name, None)
            if isinstance(given, str):
                given = _from_json(given)
            if given:
                return dict(given)
        return {}

    def _parts(self) -> tuple[str, ...]:
        asked = "" if self.activation_checkpointing is None else str(self.activation_checkpointing).lower()
        if not asked:
            # The older switch decides alone where only it was given.
            return (FULL,) if self.gradient_checkpointing else ()
        if asked in _NO:
            return ()
        self.recomputes_least = asked == AUTO
        parts = (FULL,) if asked in (*_YES, AUTO) else tuple(dict.fromkeys(asked.replace(" ", ",").split(",")))
        for part in parts:
            if part not in PARTS:
                raise ArgumentError(
                    f"{part!r} cannot be recomputed by itself", place=_FLAG, fix=f"use {', '.join(PARTS)}, auto or none"
                )
        # A checkpoint within a checkpoint computes the inner part three times.
        if len(parts) > 1 and FULL in parts:
            raise ArgumentError(
                f"{', '.join(parts)}: one lies within another", place=_FLAG, fix="leave the smaller one out"
            )
        # Its default is True, so False was said by somebody.
        if not self.gradient_checkpointing:
            raise ArgumentError(
                f"{_FLAG} {asked} and --gradient_checkpointing False contradict each other", fix="leave one of them out"
            )
        return parts

    def _check_details(self, parts: tuple[str, ...]) -> None:
        which = self.activation_checkpointing_layers
        if which is not None:
            # Read for its errors: how many layers there are is not known yet.
            _ = share_of(which) if "/" in which or "." in which else numbered(which.removeprefix("not "))
        refuse(__package__, "recomputation", self, SimpleNamespace(parts=parts))


def _from_json(text: str) -> Any:
    flag = "--gradient_checkpointing_kwargs"
    return parse_json(text, flag, kind=None, error=ArgumentError, fix="write '{\"name\": value}'")


def numbered(text: str) -> set[int]:
    """`0-3,7` as {0, 1, 2, 3, 7}.

    Raises:
        ArgumentError: Something else.
    """
    found: set[int] = set()
    for piece in text.replace(" ", "").split(","):
        first, dash, last = piece.partition("-")
        # No model has a million layers, of which the set would have to be made.
        if not all(re.fullmatch("[0-9]{1,6}", number) for number in (first, *([last] if dash else []))):
            raise ArgumentError(
                f"{text!r} names no layers", place=_WHICH, fix="write 0-3,7 or 'not 0,1' or a share such as 1/3"
            )
        found.update(range(int(first), int(last or first) + 1))
    return found


def share_of(text: str) -> Fraction:
    """`1/3` or `0.33` as a fraction from above 0 to 1.

    Raises:
        ArgumentError: Something else.
    """
    try:
        # With bounded denominators the sums in `_spread` stay exact and small.
        share = Fraction(text).limit_denominator(1000)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise ArgumentError(f"{text!r} is no share of the layers", place=_WHICH, fix="write 1/3 or 0.5, up to 1")
    return share


def _spread(share: Fraction, count: int) -> list[int]:
    """Layers spread evenly, as fms-fsdp chooses them: in the middle of each stretch of 1 / share layers.

    The layer with number i from 0 is taken when (i + 1) * share reaches the next of 1/2, 3/2, 5/2, ...
    """
    taken: list[int] = []
    for number in range(count):
        # Fractions, not floats: with 1/3 of 24 layers rounding would move a layer now and then.
        if (number + 1) * share >= len(taken) + Fraction(1, 2):
            taken.append(number)
    return taken
