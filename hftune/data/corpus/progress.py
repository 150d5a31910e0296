"""How far a stream was trained, as a few numbers: what a checkpoint of a streaming run holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Window(NamedTuple):
    """Neighbouring records that are shuffled together: one of an epoch, `start` records of the run before it."""

    epoch: int = 0
    number: int = 0
    start: int = 0


class End(NamedTuple):
    """The first record that a rank has not trained to its end, and how much of it was (examples, in blocks tokens)."""

    position: int = 0
    begun: int = 0


class Origin(NamedTuple):
    """What is known once an example is trained.

    Attributes:
        window: Of its last record.
        end: Where its rank stands then.
        dropped: Records dropped since the example before it.
        tokens: Its tokens with a loss.
    """

    window: Window
    end: End
    dropped: int
    tokens: int


@dataclass
class Progress:
    """Where a rank stands, and what it has dropped and trained since the run began or resumed."""

    window: Window = field(default_factory=Window)
    end: End = field(default_factory=End)
    dropped: int = 0
    tokens: int = 0

    def record(self, origins: Iterable[Origin]) -> None:
        """Count examples as trained, in their order."""
        for origin in origins:
            self.window, self.end = origin.window, origin.end
            self.dropped += origin.dropped
            self.tokens += origin.tokens


@dataclass
class Trained:
    """Which records the ranks of a world have trained: each its own, up to its end.

    Attributes:
        group: Neighbouring records that went to one rank; the next ones went to the next rank.
        ends: By rank.
    """

    group: int
    ends: list[End]

    def end(self, position: int) -> End:
        """Of the rank that a record belonged to."""
        return self.ends[position // self.group % len(self.ends)]
