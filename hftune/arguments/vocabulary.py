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


@dataclass
class VocabularyArguments(GrowthArguments):
    """The same on the scripts, before training. Names: ms-swift's and LLaMA-Factory's are aliases."""

    resize_vocab: bool = field(
        default=False,
        metadata={
            "help": "Give the model the rows that a larger --tokenizer_name_or_path needs; added tokens imply it."
        },
    )

    @property
    def grows(self) -> bool:
        """Whether the embeddings may get other rows than the checkpoint has."""
        return self.adds_tokens or self.resize_vocab or self.pad_vocab_to_multiple_of is not None


@dataclass
class NewRowsArguments:
    """What of a grown vocabulary is trained; mixed into the arguments of adapters."""

    train_new_tokens_only: bool = field(
        default=False,
        metadata={
            "help": "Train the rows of the new tokens and nothing else. They are saved as an adapter of these rows, to "
            "be merged like LoRA (which trains them in any case)."
        },
    )
