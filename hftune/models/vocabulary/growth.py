"""How a base's vocabulary grew before training, as `hftune.json` records it, and which tokens are new."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from hftune.errors import ManifestError, shown

# A hundred times the largest vocabulary there is; see `_numbers`.
_MOST_TOKENS = 10_000_000


@dataclass(frozen=True)
class Growth:
    """From the rows of a base to those of the model that is trained.

    Args:
        base_rows: Rows of the base's embeddings.
        rows: Rows of the result; those behind the highest token id are padding.
        ids: Ids of the new tokens, ascending. Some may be below `base_rows`: padding of the base becomes tokens.
    """

    base_rows: int
    rows: int
    ids: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"ids": spans(self.ids)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Growth:
        """The opposite of `to_json`."""
        return cls(**value | {"ids": _numbers(value["ids"])})


def recorded_growth(manifest: dict[str, Any] | None) -> Growth | None:
    """The growth that an adapter's `hftune.json` records: what its base needs before the adapter fits; or None."""
    value = ((manifest or {}).get("vocabulary") or {}).get("growth")
    if not value or (manifest or {}).get("kind") != "adapter":
        return None
    try:
        return Growth.from_json(value)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _damaged("growth", error) from error


def new_tokens(manifest: dict[str, Any] | None) -> list[int]:
    """Ids of the tokens that a folder's `hftune.json` says were added; later stages may train only them."""
    spans = ((manifest or {}).get("vocabulary") or {}).get("new_tokens") or []
    try:
        return _numbers(spans)
    except (TypeError, ValueError) as error:
        raise _damaged("new_tokens", error) from error


def _numbers(spans: list[list[int]]) -> list[int]:
    """The opposite of `_spans`. A manifest may come from anywhere: ten digits there must not fill the memory."""
    if sum(last - first for first, last in spans) > _MOST_TOKENS or not all(first <= last for first, last in spans):
        raise ValueError("no vocabulary has such spans of tokens")
    return [number for first, last in spans for number in range(first, last + 1)]


def _damaged(name: str, why: object) -> ManifestError:
    cause = f"the manifest's vocabulary.{name} is not as hftune writes it: {shown(why)}"
    return ManifestError(cause, place="hftune.json", fix="copy the folder again from where it is whole")


def spans(ids: list[int]) -> list[list[int]]:
    """Ascending ids as [first, last] of each run: [[5, 7], [9, 9]] for 5, 6, 7, 9."""
    # In a run, ids and their places grow alike, so that their difference stays the same.
    runs = groupby(enumerate(ids), lambda pair: pair[1] - pair[0])
    numbers = ([number for _, number in run] for _, run in runs)
    return [[run[0], run[-1]] for run in numbers]
