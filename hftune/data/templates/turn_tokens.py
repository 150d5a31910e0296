"""Which tokens of a tokenizer begin and end turns: read off what the chat template writes, not off their names.

Conversations whose contents are plain words are rendered, with and without system text and the generation prompt. An
added token that the template writes before, between or behind contents is a border, and so is what encloses a tool's
result, by its name. BOS, EOS and padding are borders of every tokenizer, and tokens that other models end texts with.

Never borders are marks that answers hold by design, and that data holds as text: those of reasoning, and tags
such as `<tool_call>` and `<tool_response>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.errors import DataError

_THOUGHT = re.compile(r"think|thought|reason", re.IGNORECASE)
_TAG = re.compile(r"</?(?=\w*(tool|func|call|answer|response|param|arg))\w+>", re.IGNORECASE)
# Tokens that end or begin a text in any model, whether the template at hand writes them or not.
_ENDS = re.compile(r"<\W*((end|begin|start)[_▁]?of[_▁]?(text|sentence|turn|message)|(eot|eom|eos|bos)(_id)?)\W*>")
# What stands around a tool's result, or ends the turn before it (gpt-oss).
_RESULT = re.compile(r"tool[_▁ ]?(result|output)|observation|<\|(call|tool|tool_response|function)\|>", re.IGNORECASE)

_USER, _ANSWER = {"role": "user", "content": "HFTUNEASKED"}, {"role": "assistant", "content": "HFTUNESAID"}
_PLAIN: list[list[dict[str, Any]]] = [
    [_USER],
    [_USER, _ANSWER],
    [_USER, _ANSWER, _USER, _ANSWER],
    [{"role": "system", "content": "HFTUNESYSTEM"}, _USER, _ANSWER, _USER],
]

Render = Callable[..., str]
"""As `rendering.Renderer`."""


def turn_tokens(tokenizer: PreTrainedTokenizerBase, render: Render | None) -> tuple[str, ...]:
    """The texts of the tokens that begin and end turns and texts, in the order of their ids.

    Args:
        render: Writes a conversation by the tokenizer's template; None for a tokenizer without one.
    """
    # Only added tokens are found in a text by the tokenizer; words of the vocabulary are pieces like any other.
    added = {text: index for text, index in tokenizer.get_added_vocab().items() if text.strip()}
    ends = {str(token) for token in (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) if token}
    written: set[str] = set()
    if render is not None:
        written = _written(added, render) | {text for text in added if _RESULT.search(text)}
        written = {text for text in written if not _THOUGHT.search(text) and not _TAG.fullmatch(text)}
    found = (text for text in added if text in ends or text in written or _ENDS.fullmatch(text))
    return tuple(sorted(found, key=added.__getitem__))


def one_of(texts: Iterable[str]) -> str:
    """A pattern for any of some texts, the longest at each place, as a tokenizer finds its added tokens."""
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)"


def _written(added: dict[str, int], render: Render) -> set[str]:
    """The added tokens that the template writes around turns."""
    pattern = re.compile(one_of(added))
    found: set[str] = set()
    # With and without a system text, one and two rounds: templates write other tokens in each.
    for messages in _PLAIN:
        try:
            for prompt in (False, True):
                found.update(pattern.findall(render(messages, None, add_generation_prompt=prompt)))
        except DataError:
            continue  # a conversation that the template refuses
    return found
