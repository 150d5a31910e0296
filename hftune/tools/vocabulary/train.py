"""Train a tokenizer on a corpus: byte-level BPE, or SentencePiece's BPE and Unigram with their `.model` file."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hftune.errors import ArgumentError
from hftune.tools.vocabulary.kinds import SPACE

END_OF_TEXT, UNKNOWN, BEGIN, END = "<|endoftext|>", "<unk>", "<s>", "</s>"
# What no token crosses: a word with the space before it (marks belong to letters), up to three digits, signs, and runs
# of white space, whose last space goes to the word behind it.
_WORDS = r" ?[\p{L}\p{M}]+| ?\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"


def train_byte_bpe(texts: Iterable[str], size: int, special: list[str], min_frequency: int) -> PreTrainedTokenizerBase:
    """A byte-level BPE tokenizer of `size` tokens, for which no text is unknown. `<|endoftext|>` ends and pads."""
    backend = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        # `use_regex=False`: the split before it has made the words; ByteLevel would cut them again by GPT-2's rule.
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        # They get the first ids, whatever is learnt.
        special_tokens=[END_OF_TEXT, *special],
        # Otherwise bytes that the corpus lacks would be dropped from any text later.
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT)


def train_sentencepiece(texts: Iterable[str], size: int, special: list[str], kind: str, file: Path) -> None:
    """Write a model by SentencePiece's trainer (arXiv:1808.06226) into `file`: byte fallback, no normalisation.

    Raises:
        ArgumentError: The package is missing, or the corpus has not words enough for `size` pieces.
    """
    if importlib.util.find_spec("sentencepiece") is None:
        raise ArgumentError(
            f"--tokenizer_type {kind} needs the package sentencepiece",
            place="--tokenizer_type",
            fix="pip install sentencepiece, or use --tokenizer_type byte_bpe",
        )
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line for text in texts for line in text.split("\n") if line.strip()),
            model_writer=model,
            vocab_size=size,
            model_type=kind,
            user_defined_symbols=special,
            byte_fallback=True,
            split_digits=True,
            # The default (nmt_nfkc) rewrites full-width letters and ligatures: decoded text would not be what was read.
            normalization_rule_name="identity",
            # Runs of spaces are the indentation of code.
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            # In bytes. Longer lines are left out of training; the default is 4192.
            max_sentence_length=1 << 20,
            # Errors only: the trainer writes its progress to the standard error from C++.
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ArgumentError(
            f"SentencePiece cannot make {size} pieces of this corpus: {str(error).splitlines()[-1][:200]}",
            place="--vocab_size",
            fix="lower it, or give a larger corpus",
        ) from error
    file.write_bytes(model.getvalue())


def read_sentencepiece(file: Path) -> Any:
    """The pieces of a `.model` file: a `ModelProto` of the package sentencepiece.

    Raises:
        ArgumentError: The package is missing, or the file is no such model.
    """
    if importlib.util.find_spec("sentencepiece") is None:
        raise ArgumentError(f"{file} needs the package sentencepiece", fix="pip install sentencepiece")
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]  # made at import by protobuf
    try:
        proto.ParseFromString(file.read_bytes())
    except DecodeError as error:
        raise ArgumentError(f"{file} is no SentencePiece model", fix="give a .model file of SentencePiece") from error
    return proto


def from_sentencepiece(proto: Any) -> PreTrainedTokenizerBase:
    """The same pieces as a tokenizer of transformers, for a model that `train_sentencepiece` made."""
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    unigram = proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM
    if unigram:
        backend = Tokenizer(models.Unigram(pieces, unk_id=proto.trainer_spec.unk_id, byte_fallback=True))
    else:
        ids = {piece: number for number, (piece, _) in enumerate(pieces)}
        merges = _merges(pieces, ids)
        backend = Tokenizer(models.BPE(ids, merges, unk_token=UNKNOWN, fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    backend.decoder = decoders.Sequence(
        # The last step takes away the space that the normaliser has put in front.
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    types = proto.SentencePiece.Type
    marked = [piece.piece for piece in proto.pieces if piece.type in (types.CONTROL, types.USER_DEFINED)]
    backend.add_special_tokens([UNKNOWN, *marked])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token=UNKNOWN, bos_token=BEGIN, eos_token=END, pad_token=END
    )


def _merges(pieces: list[tuple[str, float]], ids: dict[str, int]) -> list[tuple[str, str]]:
    """The merges of a SentencePiece model: it joins any two neighbours whose spelling is a piece, best score first."""
    merges = []
    for piece, score in pieces:
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        found = [(ids[a], ids[b], a, b) for a, b in halves if a in ids and b in ids]
        # Of several ways to halve a piece, the one of older halves comes first.
        merges += [(-score, ids[piece], a, b) for _, _, a, b in sorted(found)]
    return [(a, b) for _, _, a, b in sorted(merges, key=lambda one: one[:2])]
