"""Which tokens of a tokenizer begin and end turns: read off what the chat template writes, not off their names.

Conversations whose contents are words that occur nowhere else are rendered, with and without system text, tools and
the generation prompt. An added token that the template writes before, between or behind contents of plain text is a
border. In a conversation with calls of a tool the template also writes marks that belong into an answer, so there only
that counts which ends the turn before a tool's result, and what opens and closes a result where no border does.

BOS, EOS and padding are borders of every tokenizer, and tokens that other models end texts with.

Never borders are marks that answers hold by design, and that data holds as text: those of reasoning, and tags
such as `<tool_call>` and `<tool_response>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.errors import DataError

_THOUGHT = re.compile(r"think|thought|reason", re.IGNORECASE)
_MARK = re.compile(r"tool|func|call|answer|response|param|arg|think|thought|reason", re.IGNORECASE)
_TAG = re.compile(r"</?(?=\w*(tool|func|call|answer|response|param|arg))\w+>", re.IGNORECASE)
# Tokens that end or begin a text in any model, whether the template at hand writes them or not.
_ENDS = re.compile(r"<\W*((end|begin|start)[_▁]?of[_▁]?(text|sentence|turn|message)|(eot|eom|eos|bos)(_id)?)\W*>")

_ASKED, _SAID, _SYSTEM, _RESULT, _ARGUMENT = (f"HFTUNE{name}" for name in ("ASKED", "SAID", "SYSTEM", "RESULT", "ARG"))

_USER, _ANSWER = {"role": "user", "content": _ASKED}, {"role": "assistant", "content": _SAID}
_PLAIN: list[list[dict[str, Any]]] = [
    [_USER],
    [_USER, _ANSWER],
    [_USER, _ANSWER, _USER, _ANSWER],
    [{"role": "system", "content": _SYSTEM}, _USER, _ANSWER, _USER],
]
_CALL = {"id": "HFTUNE001", "type": "function", "function": {"name": "get", "arguments": {"x": _ARGUMENT}}}
_CALLED = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_TOOL = {"role": "tool", "name": "get", "tool_call_id": "HFTUNE001", "content": _RESULT}
_WITH_CALLS: list[dict[str, Any]] = [_USER, _CALLED, _TOOL, _ANSWER]
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get",
            "description": "d",
            "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "e"}}},
        },
    }
]

Render = Callable[..., str]
"""As `rendering.Renderer`."""


def turn_tokens(tokenizer: PreTrainedTokenizerBase, render: Render | None) -> tuple[str, ...]:
    """The texts of the tokens that begin and end turns and texts, in the order of their ids.

    Args:
        render: Writes a conversation by the tokenizer's template; None for a tokenizer without one.
    """
    # Only added tokens are found in a text by the tokenizer; words of the vocabulary are spelled like any other.
    added = {text: index for text, index in tokenizer.get_added_vocab().items() if text.strip()}
    found = {text for text in added if _ENDS.fullmatch(text)}
    found |= {str(token) for token in (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) if token}
    if render is not None:
        found |= _written(TokenFinder(added), render)
    # A text that is no token of its own (a word of the vocabulary at most) is spelled like any other.
    return tuple(sorted((text for text in found if text in added), key=added.__getitem__))


class TokenFinder:
    """Finds some tokens in a text: the longest at each place, as a tokenizer does with its added ones."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.pattern = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")

    def __call__(self, text: str) -> list[str]:
        """The tokens in the text, in their order."""
        return self.pattern.findall(text)


def _written(tokens: TokenFinder, render: Render) -> set[str]:
    """What the template writes around turns."""
    borders: set[str] = set()
    closers: set[str] = set()
    # With and without a system text, one and two rounds: templates write other tokens in each.
    for messages in _PLAIN:
        for text in _rendered(render, messages, None):
            borders |= _no_marks(tokens(text))
        # What follows the last answer closes turns, and opens none.
        if messages[-1] is _ANSWER:
            for text in _rendered(render, messages, None)[:1]:
                closers.update(tokens(text.rpartition(_SAID)[2]))
    found = set(borders)
    # Some templates write calls only where tools are offered.
    for tools in (_TOOLS, None):
        for text in _rendered(render, _WITH_CALLS, tools):
            found |= _around_result(text, tokens, borders, closers)
    return found


def _rendered(render: Render, messages: list[dict[str, Any]], tools: Any) -> list[str]:
    """A conversation without and with the generation prompt; nothing where the template refuses it."""
    try:
        return [render(messages, tools, add_generation_prompt=prompt) for prompt in (False, True)]
    except DataError:
        return []


def _no_marks(found: Iterable[str]) -> set[str]:
    return {token for token in found if not _THOUGHT.search(token) and not _TAG.fullmatch(token)}


def _around_result(text: str, tokens: TokenFinder, borders: set[str], closers: set[str]) -> set[str]:
    """What ends the turn of a call, and what opens and closes a tool's result, where no border of other turns does."""
    _, called, rest = text.partition(_ARGUMENT)
    between, answered, behind = rest.partition(_RESULT)
    if not called or not answered:
        return set()
    before, after = tokens(between), tokens(behind.partition(_SAID)[0])
    ended = _end_of_call(before, borders - closers)
    opened = _opened(before, borders, closers)
    closed = takewhile(lambda token: token not in borders, after) if opened else ()
    return ended | opened | _no_marks(closed)


def _end_of_call(found: list[str], openers: set[str]) -> set[str]:
    """The token before the next turn opens, such as <|call|> of gpt-oss."""
    first = next((place for place, token in enumerate(found) if token in openers), 0)
    return _no_marks(found[max(0, first - 1) : first])


def _opened(found: list[str], borders: set[str], closers: set[str]) -> set[str]:
    """What opens a result: behind the token that closes a turn anything; where nothing closes it, what is no mark."""
    known = [place for place, token in enumerate(found) if token in borders]
    if not known:
        return {token for token in found if not _MARK.search(token) and re.search(r"\w", token)}
    return set(found[known[-1] + 1 :]) if found[known[-1]] in closers else set()
