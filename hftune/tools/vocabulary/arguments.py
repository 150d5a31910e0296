"""The arguments of `hftune vocab`."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.arguments.hub import HubFields
from hftune.arguments.model import GrowthArguments
from hftune.arguments.stages import parse_command
from hftune.distributed import launch


@dataclass
class VocabArguments(HubFields, GrowthArguments):
    """What `hftune vocab` takes: `add`, `extend`, `train`, `merge` and `resize` use some of these each."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Model folder or Hub name whose tokenizer (and weights) grow."}
    )
    tokenizer_name_or_path: str | None = field(
        default=None,
        metadata={"help": "resize: the larger tokenizer; add, extend, merge: where it is not the model's."},
    )
    output_dir: str | None = field(default=None, metadata={"help": "Folder for tokenizer and model."})
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace a finished result of hftune's there."})
    tokenizer_only: bool = field(default=False, metadata={"help": "Write the tokenizer alone, no weights."})
    train_file_dir: str | None = field(
        default=None, metadata={"help": "train, extend: the corpus, any records that a script reads."}
    )
    validation_file_dir: str | None = field(
        default=None, metadata={"help": "Text for the figures; left out: every 20th record of the corpus, held out."}
    )
    vocab_size: int = field(default=32000, metadata={"help": "train: tokens of the new tokenizer."})
    new_tokens: int = field(default=1000, metadata={"help": "extend, merge: at most this many tokens are added."})
    tokenizer_type: str = field(
        default="byte_bpe",
        metadata={
            "help": "train: byte_bpe (GPT-2's kind), bpe or unigram (SentencePiece's, with byte fallback).",
            "choices": ["byte_bpe", "bpe", "unigram"],
        },
    )
    domain_tokenizer: str | None = field(
        default=None,
        metadata={"help": "merge: a tokenizer folder, a tokenizer.json, a SentencePiece .model, or words one a line."},
    )
    min_frequency: int = field(default=2, metadata={"help": "A new token occurs at least this often in the corpus."})
    max_token_length: int = field(default=16, metadata={"help": "Characters of a new token, at most."})
    max_characters: int = field(
        default=20_000_000, metadata={"help": "Characters of the corpus that are learnt from, spread over all of it."}
    )
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with the model."})


# MedicalGPT's build_domain_tokenizer.py and merge_tokenizers.py, ms-swift's and Megatron's words.
VOCAB_ALIASES = {
    "in_file": "train_file_dir",
    "domain_sp_model_name": "output_dir",
    "model_type": "tokenizer_type",
    "base_tokenizer_dir": "model_name_or_path",
    "domain_sp_model_file": "domain_tokenizer",
    "jieba_word_freq_file": "domain_tokenizer",
    "baichuan_vocab_file": "domain_tokenizer",
    "new_special_tokens": "add_special_tokens",
    "make_vocab_size_divisible_by": "pad_vocab_to_multiple_of",
}


def parse_vocab_arguments(argv: list[str]) -> VocabArguments:
    """The arguments of `hftune vocab`, for any of its subcommands."""
    launch.prepare_environment()
    return parse_command(VocabArguments, argv, VOCAB_ALIASES)
