"""Tokens that are added to a model's own, and the rows that they get."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class GrowthArguments:
    """How embeddings take new tokens; what scripts and `hftune vocab` share."""

    add_tokens: str | None = field(
        default=None,
        metadata={
            "help": "Tokens to add, with commas between, or a file with one a line. They are found whole in any text; "
            "for the words of a domain or a language use `hftune vocab extend`."
        },
    )
    add_special_tokens: str | None = field(
        default=None,
        metadata={
            "help": "Special tokens to add, likewise: markers that decoding with skip_special_tokens leaves out."
        },
    )
    pad_vocab_to_multiple_of: int | None = field(
        default=None, metadata={"help": "Round the rows of the embeddings up to a multiple of this, such as 64."}
    )
    # The mean of the pieces starts near what the model knows; a drawn row starts as noise (arXiv:2407.05841).
    init_new_embeddings: str = field(
        default="pieces",
        metadata={
            "help": "Rows of new tokens. pieces: the mean of the rows of the old tokens that spelt it; mean: the mean "
            "of all old rows; normal: drawn from N(0, initializer_range^2).",
            "choices": ["pieces", "mean", "normal"],
        },
    )

    @property
    def adds_tokens(self) -> bool:
        """Whether tokens are named that the tokenizer is to get."""
        return bool(self.add_tokens or self.add_special_tokens)
