"""Tokens that a user names one by one: `--add_tokens`, `--add_special_tokens`."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from hftune.arguments.model import GrowthArguments
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.opening.files import read_bytes
from hftune.opening.json_file import LIMIT, parse_json


def named_tokens(value: str | None, flag: str) -> list[str]:
    """The tokens of a list with commas, of a file with one a line, or of a JSON file with a list; each once, in order.

    Raises:
        ArgumentError: No token, a blank one, or a file that is not UTF-8 text or not a list.
    """
    if value is None:
        return []
    file = Path(value)
    tokens = _tokens_in(file, flag) if len(value) < 1024 and file.is_file() else value.split(",")
    tokens = [token.strip("\r\n") for token in tokens]
    if not tokens or any(not token or token.isspace() for token in tokens):
        raise ArgumentError(
            f"{value!r} names a blank token" if tokens else f"{value} names no token",
            place=flag,
            fix="give tokens with commas between, or a file with one a line",
        )
    return list(dict.fromkeys(tokens))


def _tokens_in(file: Path, flag: str) -> list[str]:
    content = read_bytes(file, limit=LIMIT, error=ArgumentError)
    if file.suffix != ".json":
        try:
            return [line for line in content.decode("utf-8").split("\n") if line.strip()]
        except UnicodeDecodeError as error:
            fix = "write UTF-8, a token a line"
            raise ArgumentError(f"{file} cannot be read: {error}", place=flag, fix=fix) from error
    found = parse_json(content, str(file), kind=None, error=ArgumentError, fix=f'write ["<a>", "<b>"] for {flag}')
    if not isinstance(found, list) or not all(isinstance(token, str) for token in found):
        raise ArgumentError(f"{file} is no list of texts", place=flag, fix='write ["<a>", "<b>"]')
    return found


def add_named_tokens(tokenizer: PreTrainedTokenizerBase, args: GrowthArguments) -> None:
    """Give the tokenizer what `--add_tokens` and `--add_special_tokens` name, in that order, in place.

    They are taken out of a text before anything else is done with it, exactly as they are spelt. Those that are there
    already are said.

    Raises:
        ArgumentError: A token that would not decode to itself.
    """
    for value, special in ((args.add_tokens, False), (args.add_special_tokens, True)):
        flag = "--add_special_tokens" if special else "--add_tokens"
        tokens = named_tokens(value, flag)
        if not tokens:
            continue
        known = tokenizer.get_vocab()
        present = [token for token in tokens if token in known]
        if present:
            notice(f"{flag}: already in the tokenizer: {', '.join(present[:8])}{', ...' if len(present) > 8 else ''}")
        # Not normalised: Llama's older normaliser would look for "▁<a>".
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=special) for token in tokens])
        for token in tokens:
            _refuse_unless_itself(tokenizer, token, flag)


def _refuse_unless_itself(tokenizer: PreTrainedTokenizerBase, token: str, flag: str) -> None:
    """Refuse a token that does not come back as it was spelt."""
    # A byte-level decoder reads "é" in a token as a byte, and another named token may lie inside this one.
    ids = tokenizer.encode(token, add_special_tokens=False)
    decoded = tokenizer.decode(ids)
    if len(ids) != 1 or decoded.strip() != token.strip():
        raise ArgumentError(
            f"{token!r} would be read as {tokenizer.convert_ids_to_tokens(ids)} and written as {decoded!r}",
            place=flag,
            fix="leave it out, and name each marker once; or use a tokenizer that has it (--tokenizer_name_or_path, "
            "--resize_vocab)",
        )
