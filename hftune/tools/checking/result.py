"""What may be found in data, and all that a check has found, as terminal, page and summary show it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hftune.tools.checking.sources import Source

UNUSABLE, DUPLICATE, NEAR, TRAINED = "unusable", "duplicate", "near_duplicate", "trained_before"
LEAK, CUT, REFUSAL, BOILERPLATE = "leak", "cut_off", "refusal", "boilerplate"
CONTROL, ENCODING, SECRET, LOSS = "control_tokens", "encoding", "secret", "high_loss"

KINDS: dict[str, str] = {
    UNUSABLE: "cannot be read, or trained by no stage",
    DUPLICATE: "equal to an earlier record",
    NEAR: "nearly equal to an earlier record",
    LEAK: "holds a record of the evaluation data",
    TRAINED: "trained already, by an ancestor of the model",
    CUT: "an answer ends in the middle",
    REFUSAL: "an answer refuses",
    BOILERPLATE: "an assistant of another maker speaks",
    CONTROL: "control tokens of chat templates in the text",
    ENCODING: "decoded from the wrong encoding",
    SECRET: "a token or password",
    LOSS: "far less likely under the model than the others",
}
"""Kind -> what it means."""

_BITS = {kind: 1 << number for number, kind in enumerate(KINDS)}


def mask_of(kinds: set[str]) -> int:
    """Kinds as a set of bits."""
    return sum(_BITS[kind] for kind in kinds)


def kinds_in(mask: int) -> list[str]:
    """The kinds that a set of bits holds."""
    return [kind for kind, bit in _BITS.items() if mask & bit]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about one record.

    Attributes:
        kind: A key of `KINDS`.
        file: Where the record is.
        line: Its line, as `Row` counts; 0 for a whole file.
        reason: A line of words, without secrets.
    """

    kind: str
    file: str
    line: int
    reason: str

    @property
    def origin(self) -> str:
        """`file:line`, as messages have it."""
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass
class Result:
    """All that was found.

    Attributes:
        sources: What was read, with its counts.
        examples: The first findings of each kind.
        left_out: Records that are left out, by the first kind that is the reason.
        kept: Records that are left.
        dropped: Kinds whose records are left out.
        median_loss: Of all records under the model; None without one.
        worst: The records with the highest losses.
    """

    sources: list[Source]
    examples: dict[str, list[Finding]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    dropped: set[str] = field(default_factory=set)
    median_loss: float | None = None
    worst: list[tuple[str, float]] = field(default_factory=list)

    @property
    def checked(self) -> list[Source]:
        """The sources that the check is about."""
        return [source for source in self.sources if not source.is_ancestor]

    @property
    def files(self) -> list[str]:
        """All files, by their numbers."""
        return [str(file) for source in self.sources for file in source.files]

    @property
    def owners(self) -> list[Source]:
        """The source of each of them."""
        return [source for source in self.sources for _ in source.files]
