"""All that a check has found, as terminal, page and summary show it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hftune.tools.checking.findings import Finding
from hftune.tools.checking.sources import Source


@dataclass
class Result:
    """All that was found.

    Attributes:
        sources: What was read, with its counts.
        examples: The first findings of each kind.
        left_out: Records that are left out, by the first kind that is the reason.
        kept: Records that are left.
        dropped_kinds: Kinds whose records are left out.
    """

    sources: list[Source]
    examples: dict[str, list[Finding]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    dropped_kinds: set[str] = field(default_factory=set)

    @property
    def checked(self) -> list[Source]:
        """The sources that the check is about."""
        return [source for source in self.sources if not source.is_ancestor]
