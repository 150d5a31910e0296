"""The words of another vocabulary, as plain text, the most useful first."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hftune.errors import ArgumentError
from hftune.models.loading.from_pretrained import pretrained, reporting_damage
from hftune.opening.json_file import LARGE, read_json
from hftune.tools.vocabulary.kinds import SPACE, kind_of
from hftune.tools.vocabulary.train import read_sentencepiece

FLAG = "--domain_tokenizer"


def domain_tokens(given: str, *, trust_remote_code: bool = False) -> list[str]:
    """Texts of the tokens of a tokenizer folder, a `tokenizer.json`, a SentencePiece `.model` or a list of words.

    In the order of their ids or lines: that in which they were learnt. Special tokens, bytes and pieces of characters
    are left out. A list has a word a line, with whatever stands behind it (a frequency, jieba's tags) left out.

    Raises:
        ArgumentError: Nothing there, or nothing that can be read.
    """
    path = Path(given).expanduser()
    # What is no file here may be a name on the Hub.
    if path.is_dir() or not path.exists():
        return _texts(_tokenizer(given, trust_remote_code))
    if path.name.endswith(".json"):
        return _texts(_fast(path))
    if path.name.endswith(".model"):
        proto = read_sentencepiece(path)
        # Control tokens, single bytes and the unknown token are no text.
        normal = proto.SentencePiece.Type.NORMAL
        return [piece.piece.replace(SPACE, " ") for piece in proto.pieces if piece.type == normal]
    return _listed(path)


def _tokenizer(given: str, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    try:
        return pretrained(AutoTokenizer, given, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        cause = f"no tokenizer could be loaded from {given}: {str(error).splitlines()[0]}"
        raise ArgumentError(cause, place=FLAG, fix="give a folder, a tokenizer.json, a .model or a list") from error


def _fast(file: Path) -> PreTrainedTokenizerBase:
    content = read_json(file, limit=LARGE, error=ArgumentError, fix=f"give {FLAG} a tokenizer.json")
    # Another JSON would come back as an error of the Rust parser that names no file.
    if "model" not in content:
        raise ArgumentError(f"{file} is no tokenizer.json", place=FLAG, fix="give a file that `tokenizers` wrote")
    with reporting_damage(file):
        return PreTrainedTokenizerFast(tokenizer_file=str(file))


def _texts(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    kind = kind_of(tokenizer)
    added = set(tokenizer.get_added_vocab())  # `<tool>` and the like, which are no words
    known = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda one: one[1]) if token not in added]
    return [text for text in map(kind.text_of, known) if text]


def _listed(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except ValueError as error:
        raise ArgumentError(f"{file} is not UTF-8: {error}", place=FLAG, fix="write a word a line") from error
    words = [line.split()[0] for line in lines if line.strip()]
    if not words:
        raise ArgumentError(f"{file} names no word", place=FLAG, fix="write a word a line")
    return words
