"""What may be found in data: the kinds, and what is written of each finding."""

from __future__ import annotations

from dataclasses import dataclass

UNUSABLE, DUPLICATE, NEAR, TRAINED = "unusable", "duplicate", "near_duplicate", "trained_before"
CONTRADICTION, LEAK, CUT, REFUSAL = "contradiction", "leak", "cut_off", "refusal"
BOILERPLATE, CONTROL, ENCODING = "boilerplate", "control_tokens", "encoding"
SECRET, PERSONAL, LOSS = "secret", "personal", "high_loss"

KINDS: dict[str, tuple[str, bool]] = {
    UNUSABLE: ("cannot be read, or trained by no stage", True),
    DUPLICATE: ("equal to an earlier record", True),
    NEAR: ("nearly equal to an earlier record", False),
    CONTRADICTION: ("judged both ways", True),
    LEAK: ("holds a record of the evaluation data", True),
    TRAINED: ("trained already, by an ancestor of the model", False),
    CUT: ("an answer ends in the middle", False),
    REFUSAL: ("an answer refuses", False),
    BOILERPLATE: ("an assistant of another maker speaks", False),
    CONTROL: ("control tokens of chat templates in the text", True),
    ENCODING: ("decoded from the wrong encoding", True),
    SECRET: ("a token or password", True),
    PERSONAL: ("personal data", False),
    LOSS: ("far less likely under the model than the others", False),
}
"""Kind -> what it means, and whether its records are left out unless something else is asked for."""

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
        reason: A line of words, without secrets and personal data.
    """

    kind: str
    file: str
    line: int
    reason: str

    @property
    def origin(self) -> str:
        """`file:line`, as messages have it."""
        return f"{self.file}:{self.line}" if self.line else self.file
