"""`hftune vocab`: tokens and rows, before training.

hftune vocab add    --model_name_or_path MODEL --add_tokens "<ref>,<box>" --output_dir OUT     single tokens, as spelt
hftune vocab extend --model_name_or_path MODEL --train_file_dir CORPUS --new_tokens 1000 --output_dir OUT
hftune vocab train  --train_file_dir CORPUS --vocab_size 32000 --tokenizer_type bpe --output_dir DOMAIN
hftune vocab merge  --model_name_or_path MODEL --domain_tokenizer DOMAIN --new_tokens 20000 --output_dir OUT
hftune vocab resize --model_name_or_path MODEL --pad_vocab_to_multiple_of 64 --output_dir OUT

extend learns words from a corpus of any format that the scripts read, as merges behind those that the tokenizer has;
merge takes those of another tokenizer (a folder, a tokenizer.json, a SentencePiece .model) or a list of words.
OUT is a model folder like any other: hftune pt --model_name_or_path OUT. --tokenizer_only leaves the weights out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from hftune.errors import ArgumentError, raise_together
from hftune.models.vocabulary.added_tokens import add_named_tokens, named_tokens
from hftune.preflight.rules.vocabulary import check_growth
from hftune.tools.vocabulary.arguments import VocabArguments
from hftune.tools.vocabulary.build import Result, load_base_tokenizer, with_content, write_result
from hftune.tools.vocabulary.corpus import read_corpus, tokens_per_character
from hftune.tools.vocabulary.domain import domain_tokens
from hftune.tools.vocabulary.extend import extend_from_corpus, extend_from_tokens
from hftune.tools.vocabulary.train import from_sentencepiece, read_sentencepiece, train_byte_bpe, train_sentencepiece
from hftune.visible import say


def run(name: str, args: VocabArguments) -> Path:
    """Run a subcommand; returns the folder that it made.

    Raises:
        UserError: What is missing or cannot be read; nothing is left behind then.
    """
    problems = list(check_growth(args))
    for flag in NEEDS[name]:
        if getattr(args, flag) is None:
            problems.append(ArgumentError(f"hftune vocab {name} needs it", place=f"--{flag}", fix=f"give --{flag}"))
    raise_together(problems)
    folder = COMMANDS[name](args)
    say(f"{folder}: {_what_next(args)}")
    return folder


def _what_next(args: VocabArguments) -> str:
    if args.model_name_or_path and not args.tokenizer_only:
        return f"a model of its tokenizer's size; train it with --model_name_or_path {args.output_dir}"
    return "a tokenizer; give it to hftune vocab merge --domain_tokenizer, or to a model with hftune vocab resize"


def add(args: VocabArguments) -> Path:
    """Add tokens as they are spelt, next to the vocabulary."""
    if not args.adds_tokens:
        raise ArgumentError("no token was named", place="--add_tokens / --add_special_tokens", fix="name some")
    return _grown(args, "add", lambda tokenizer, folder: Result(tokenizer))


def resize(args: VocabArguments) -> Path:
    """Add rows for a larger tokenizer, or up to a multiple."""
    # Without --tokenizer_name_or_path the model's own: then only the multiple adds rows.
    larger = load_base_tokenizer(args, named=True)
    return write_result(args, "resize", lambda folder: Result(larger), _own_tokenizer(args))


def extend(args: VocabArguments) -> Path:
    """Add words of a corpus, learnt as merges (BPE) or pieces (Unigram)."""
    # Read before anything is loaded or written: a bad record stops the command early.
    learnt, held_out = read_corpus(str(args.train_file_dir), args.validation_file_dir, args.max_characters)

    def make(tokenizer: PreTrainedTokenizerBase, folder: Path) -> Result:
        content = extend_from_corpus(
            tokenizer,
            learnt,
            args.new_tokens,
            min_frequency=args.min_frequency,
            max_length=args.max_token_length,
        )
        grown = with_content(tokenizer, content, folder, trust_remote_code=args.trust_remote_code)
        return Result(grown, content, _figures(tokenizer, grown, held_out))

    return _grown(args, "extend", make)


def merge(args: VocabArguments) -> Path:
    """Add words of another tokenizer or of a list."""
    domain = domain_tokens(str(args.domain_tokenizer), trust_remote_code=args.trust_remote_code)
    # Words need no corpus: without --validation_file_dir there are no figures.
    held_out: list[str] = []
    if args.validation_file_dir:
        _, held_out = read_corpus(args.validation_file_dir, args.validation_file_dir, args.max_characters)

    def make(tokenizer: PreTrainedTokenizerBase, folder: Path) -> Result:
        content = extend_from_tokens(tokenizer, domain, args.new_tokens)
        grown = with_content(tokenizer, content, folder, trust_remote_code=args.trust_remote_code)
        return Result(grown, content, _figures(tokenizer, grown, held_out) if held_out else {})

    return _grown(args, "merge", make)


def train(args: VocabArguments) -> Path:
    """Train a new tokenizer on a corpus."""
    learnt, held_out = read_corpus(str(args.train_file_dir), args.validation_file_dir, args.max_characters)
    special = named_tokens(args.add_special_tokens, "--add_special_tokens")

    def make(folder: Path) -> Result:
        if args.tokenizer_type == "byte_bpe":
            tokenizer = train_byte_bpe(learnt, args.vocab_size, special, args.min_frequency)
        else:
            file = folder / "tokenizer.model"
            train_sentencepiece(learnt, args.vocab_size, special, args.tokenizer_type, file)
            tokenizer = from_sentencepiece(read_sentencepiece(file))
        after = tokens_per_character(tokenizer, held_out)
        say(f"tokens per character on held-out text: {after:.3f}")
        return Result(
            tokenizer, None, {"tokens_per_character": {"after": after}, "characters": sum(map(len, held_out))}
        )

    # No base: a new tokenizer has no model that could grow.
    return write_result(args, "train", make, None)


def _grown(args: VocabArguments, command: str, make: Callable[[PreTrainedTokenizerBase, Path], Result]) -> Path:
    """Write the result of `make` on the model's tokenizer; tokens that are named one by one come last."""

    def whole(folder: Path) -> Result:
        result = make(load_base_tokenizer(args, named=True), folder)
        if args.adds_tokens:
            add_named_tokens(result.tokenizer, args)
            # Its tokenizer.json lacks the tokens that were added just now: it is saved from the tokenizer.
            result.content = None
        return result

    return write_result(args, command, whole, _own_tokenizer(args))


def _own_tokenizer(args: VocabArguments) -> PreTrainedTokenizerBase | None:
    """The tokenizer of the model; None where no model was named."""
    return load_base_tokenizer(args) if args.model_name_or_path else None


def _figures(before: PreTrainedTokenizerBase, after: PreTrainedTokenizerBase, texts: list[str]) -> dict[str, object]:
    old, new = tokens_per_character(before, texts), tokens_per_character(after, texts)
    say(f"tokens per character on {sum(map(len, texts))} held-out characters: {old:.3f} before, {new:.3f} after")
    saved = 1 - new / old if old else 0.0
    return {
        "tokens_per_character": {"before": old, "after": new, "saved": saved},
        "characters": sum(map(len, texts)),
    }


COMMANDS: dict[str, Callable[[VocabArguments], Path]] = {
    "add": add,
    "extend": extend,
    "train": train,
    "merge": merge,
    "resize": resize,
}
NEEDS = {
    "add": ("output_dir",),
    "extend": ("train_file_dir", "output_dir"),
    "train": ("train_file_dir", "output_dir"),
    "merge": ("domain_tokenizer", "output_dir"),
    "resize": ("model_name_or_path", "output_dir"),
}
