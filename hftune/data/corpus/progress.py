"""Which examples of a stream were trained, as numbers: what a checkpoint of a streaming run holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Origin(NamedTuple):
    """Where an example of a stream comes from, and what is to be counted when it is trained.

    Attributes:
        epoch, portion, example: Its place; examples of a portion are numbered and come in order.
        last: 1 for the last example of its portion.
        dropped: Rows dropped before it since the last example of the portion before; counted with `last`.
        tokens: Its tokens with a loss.
    """

    epoch: int
    portion: int
    example: int
    last: int
    dropped: int
    tokens: int


class Progress:
    """Which portions of each epoch were trained to the end, and how far the others are.

    Attributes:
        done: Portions trained to the end, by epoch.
        begun: Examples trained of other portions, by epoch and portion.
        dropped, tokens: Rows dropped and tokens with a loss, since `resumed` was taken.
        resumed: The same two of all that came before.
    """

    def __init__(self) -> None:
        self.done: dict[int, set[int]] = {}
        self.begun: dict[tuple[int, int], int] = {}
        self.dropped, self.tokens = 0, 0
        self.resumed = {"dropped": 0, "tokens": 0}

    def record(self, origins: Iterable[Origin]) -> None:
        """Count examples as trained."""
        for origin in origins:
            place = origin.epoch, origin.portion
            self.tokens += origin.tokens
            if origin.last:
                self.done.setdefault(origin.epoch, set()).add(origin.portion)
                # What is done need not be known as begun, too: the state's size must not grow with the data.
                self.begun.pop(place, None)
                self.dropped += origin.dropped
            else:
                # Examples of a portion come in order, so one number says which were trained.
                self.begun[place] = origin.example + 1

    def is_done(self, epoch: int, portion: int) -> bool:
        """Whether all of a portion was trained."""
        return portion in self.done.get(epoch, ())

    def totals(self) -> dict[str, int]:
        """Rows dropped and tokens trained, from the beginning of the run on."""
        return {
            "dropped": self.resumed["dropped"] + self.dropped,
            "tokens": self.resumed["tokens"] + self.tokens,
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the numbers of the portions as ranges, so that the size does not grow with the data."""
        # JSON has no keys but texts.
        done = {str(epoch): _ranges(portions) for epoch, portions in sorted(self.done.items())}
        begun = [[epoch, portion, examples] for (epoch, portion), examples in sorted(self.begun.items())]
        return {"done": done, "begun": begun, "totals": self.totals()}


def from_dict(state: dict[str, Any]) -> Progress:
    """What `to_dict` returned, as `Progress`."""
    progress = Progress()
    for epoch, ranges in state["done"].items():
        progress.done[int(epoch)] = {portion for first, last in ranges for portion in range(first, last + 1)}
    progress.begun = {(epoch, portion): examples for epoch, portion, examples in state["begun"]}
    progress.resumed = dict(state["totals"])
    return progress


def merged(ranks: list[Progress]) -> Progress:
    """What several ranks trained since they began with the same state, together."""
    together = Progress()
    # Every rank has resumed from the same state; adding these up would count it once a rank.
    together.resumed = ranks[0].resumed
    for progress in ranks:
        together.dropped += progress.dropped
        together.tokens += progress.tokens
        for epoch, portions in progress.done.items():
            together.done.setdefault(epoch, set()).update(portions)
    for progress in ranks:
        for place, examples in progress.begun.items():
            # A rank still has what another has taken over and finished as begun, as it was in the common state.
            if not together.is_done(*place):
                together.begun[place] = max(examples, together.begun.get(place, 0))
    return together


def _ranges(numbers: set[int]) -> list[list[int]]:
    """{1, 2, 3, 7} as [[1, 3], [7, 7]]."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges
