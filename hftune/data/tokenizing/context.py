"""How much a model can read at once, asked of a text before it becomes tokens and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.errors import DataError

LONGER = "longer than the context"
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

    def check_text(self, text: str, origin: str) -> None:
        """Look at a text before it is divided into tokens, which takes hundreds of times its size.

        Raises:
            DataError: It cannot fit.
        """
        if self.tokens is not None and len(text) > self.characters:
            raise self._error(f"{len(text):,} characters", origin, FIX)

    def check(self, length: int, origin: str) -> None:
        """Look at a number of tokens.

        Raises:
            DataError: They do not fit.
        """
        if self.tokens is not None and length > self.tokens:
            raise self._error(f"{length:,} tokens", origin, self.fix)

    def _error(self, size: str, origin: str, fix: str) -> DataError:
        cause = f"a record of {size} does not fit into the model's context of {self.tokens:,} tokens"
        return DataError(cause, place=origin, fix=fix, kind=LONGER)
