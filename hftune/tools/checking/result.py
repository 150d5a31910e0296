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
        median_loss: Of all records under the model; None without one.
        worst: The records with the highest losses.
    """

    sources: list[Source]
    examples: dict[str, list[Finding]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    dropped_kinds: set[str] = field(default_factory=set)
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
