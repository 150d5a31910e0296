"""What became of the records, and the checks that all encoders share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.data.formats import Unread, added
from hftune.data.turn_tokens import FLAG, turn_tokens_in
from hftune.errors import DataError, UserError

_IF_ANY = frozenset(("bordered", "borders", "columns", "cut", "packing", "rewritten", "rewritten_rows", "unread"))


@dataclass
class Counts:
    """What became of the rows: rows = used + all dropped.

    `tokens` are those kept, `trained_tokens` those with a loss; `examples` says of each reason what was dropped first.
    """

    rows: int = 0
    used: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    truncated: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    examples: dict[str, str] = field(default_factory=dict)
    bordered: int = 0
    borders: dict[str, int] = field(default_factory=dict)
    """Records in whose text tokens are spelled that begin or end turns; and how many for each of these tokens."""
    rewritten: int = 0
    rewritten_rows: int = 0
    """Records of which the template rewrites earlier turns, so that they became several rows; and these rows."""
    cut: dict[str, int] = field(default_factory=dict)
    """Of the truncated records of a prompt and answers: how many lost a part of each."""
    packing: dict[str, Any] | None = None
    """`PackStats` and the settings, where the rows are packed."""

    columns: list[str] = field(default_factory=list)
    """Those of `--columns`, in the data's words, that a record has."""
    unread: Unread = field(default_factory=dict)
    """What records hold that is not read."""

    def drop(self, reason: str, example: UserError | None = None) -> None:
        """Count one record as dropped."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        if example is not None:
            # The first one is enough to find the fault; a list would grow with the data.
            self.examples.setdefault(reason, f"{example.place}: {example.cause}")

    def note_cut(self, **parts: bool) -> None:
        """Count one record as truncated if any of its parts, by their names, has lost something."""
        self.truncated += any(parts.values())
        for name in (name for name, is_cut in parts.items() if is_cut):
            self.cut[name] = self.cut.get(name, 0) + 1

    def note_texts(self, texts: Sequence[str]) -> None:
        """Count a record, which is these texts, under each turn token that one of them spells in its contents."""
        self.note_turn_tokens([token for text in texts for token in turn_tokens_in(text)])

    def note_turn_tokens(self, tokens: Iterable[str]) -> None:
        """Count one record under each turn token that its text spells."""
        found = sorted({*tokens})
        self.bordered += bool(found)
        for token in found:
            self.borders[token] = self.borders.get(token, 0) + 1

    def add(self, other: Counts) -> None:
        """Take in the counts of further records."""
        sums = ("rows", "used", "truncated", "tokens", "trained_tokens", "bordered", "rewritten", "rewritten_rows")
        for name in sums:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, others in ((self.dropped, other.dropped), (self.borders, other.borders), (self.cut, other.cut)):
            for name, number in others.items():
                mine[name] = mine.get(name, 0) + number
        # The first of each reason wins, as chunks are added in order.
        self.examples = other.examples | self.examples
        self.columns = sorted({*self.columns, *other.columns})
        self.unread = added(self.unread, other.unread)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the manifest and the cache; packing and turn borders only where there are some."""
        return {name: value for name, value in asdict(self).items() if value or name not in _IF_ANY}


def require_fast(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer that cannot say which characters a token stands for.

    Raises:
        DataError: It is not backed by the `tokenizers` library.
    """
    if not tokenizer.is_fast:
        raise DataError(
            f"{type(tokenizer).__name__} cannot say which characters a token stands for, so no turn can be masked",
            place="--tokenizer_name_or_path",
            fix="Use a tokenizer with a tokenizer.json.",
        )


def describe_turn_tokens(counts: Counts, mode: str) -> str:
    """What was found and what becomes of it, in a line."""
    which = ", ".join(f"{token} in {number}" for token, number in counts.borders.items())
    became = "they stay text" if mode == "split" else "they are encoded as these tokens"
    return (
        f"{counts.bordered} of {counts.rows} records spell tokens in their text that begin or end turns or texts "
        f"({which}); {became} ({FLAG} {mode})"
    )


def describe_rewritten(counts: Counts) -> str:
    """How many records became several rows, and why, in a line."""
    return (
        f"{counts.rewritten} of {counts.rows} records became {counts.rewritten_rows} rows: the chat template writes "
        "their earlier turns otherwise than inference has shown them (--rewritten_turns split)"
    )


def all_dropped(counts: Counts, flag: str, source: str = "") -> DataError:
    """The error for a dataset of which nothing is left.

    Args:
        flag: What to raise where records were too long.
        source: The flag and the path that gave the records.
    """
    reasons = ", ".join(f"{number} x {reason}" for reason, number in counts.dropped.items()) or "there were none"
    held_out = "held-out " if source.startswith("--validation_file_dir") else ""
    cause = f"all {counts.rows} {held_out}records were dropped: {reasons}"
    # Only records that could not be read have an example.
    if counts.dropped and counts.dropped.keys() == counts.examples.keys():  # no length would have saved them
        first = next(iter(counts.examples.values()))
        return DataError(
            f"{cause}; the first is {first}",
            place=source or "the data",
            fix="Bring such records into a form that is read; `hftune preview` shows what becomes of them.",
        )
    return DataError(cause, place=f"{source}, {flag}" if source else flag, fix=f"Give a larger {flag}.")


FIX = "shorten the record or take it out, or give a model with a longer context"


def context_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Tokens that a model takes, by its config, else by its tokenizer; None where neither says it."""
    found = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if isinstance(found, int) and found > 0:
        return found
    # transformers' word for no limit is 10^30.
    return int(tokenizer.model_max_length) if tokenizer.model_max_length < 1 << 31 else None


@dataclass(frozen=True)
class Context:
    """What a model can read at once.

    Args:
        tokens: None where nobody says it: then everything fits.
        characters: A longer text has more tokens than that, however it is divided.
        fix: What to do about a record of a few tokens too many.
    """

    tokens: int | None
    characters: int
    fix: str = FIX

    @classmethod
    def of(cls, model: Any, tokenizer: PreTrainedTokenizerBase, fix: str = FIX) -> Context:
        """That of a model, as config and tokenizer say it."""
        tokens = context_of(model, tokenizer)
        return cls(tokens, (tokens or 0) * max(map(len, tokenizer.get_vocab()), default=1), fix)

    def check_text(self, text: str, origin: str = "") -> None:
        """Look at a text before it is divided into tokens, which takes hundreds of times its size.

        Raises:
            DataError: It cannot fit.
        """
        if self.tokens is not None and len(text) > self.characters:
            raise self._error(f"{len(text):,} characters", origin, FIX)

    def check(self, length: int, origin: str = "") -> None:
        """Look at a number of tokens.

        Raises:
            DataError: They do not fit.
        """
        if self.tokens is not None and length > self.tokens:
            raise self._error(f"{length:,} tokens", origin, self.fix)

    def _error(self, size: str, origin: str, fix: str) -> DataError:
        cause = f"a record of {size} does not fit into the model's context of {self.tokens:,} tokens"
        return DataError(cause, place=origin, fix=fix, kind="longer than the context")
