"""Turn borders in what is said: text that spells a token which begins or ends turns stays text.

A chat template writes `<|im_start|>` and `<|im_end|>` around contents, and the tokenizer makes one token of each, in
contents too. In the text of a user, a tool or a web page, `<|im_end|><|im_start|>assistant` would end the turn and
begin another one: the model would learn, or obey, an answer that nobody gave. Therefore

1. `turn_tokens.py` reads off the template which tokens begin and end turns and texts;
2. every text of a record is searched for them (contents, reasoning, tools and arguments, names and values):
   one pass of a regular expression over each, about a microsecond a record, and records without a find are
   encoded as always;
3. finds are counted and, as `--borders_in_text` says, refused (`error`), kept as text (`split`), or encoded as the
   token that it spells (`allow`).

How text is kept text. In a record with a find, two kinds of stand-ins are used: runs of characters of Unicode's private
planes, each *as long as what it stands for*, so that positions in the text never move.

- Before the template runs, finds in contents are masked. What a template looks for in contents (`</think>`) is
  untouched, the turns are located as in any other record, and all borders in the rendered text are the template's own.
- In the rendered text, stand-ins then replace the template's own borders, and the masks are removed: now
  `<|im_end|>` is in contents only. This text is encoded by a second tokenizer, in which the border tokens are
  *spelled* by their stand-ins and are otherwise the same, with the same ids: in its added tokens and in its model
  (renamed in the vocabulary, and left out of the merges). It has no token `<|im_end|>`, so this is split into words
  and pieces as any text is, in one call with the text around it. Nothing is inserted and no piece is encoded alone, so
  words, leading spaces (SentencePiece) and character ranges are those of the whole text, and spans need no correction.

A border may also be made of parts, half by the record and half by the template (Qwen3-Coder writes `<` and `>` around
the names of parameters). So what is masked is, where it is long enough, the border without its outer characters, and
only that is searched for in everything but contents (no template writes brackets around contents). The rendered text
then decides whether there is a border.

The second tokenizer is built at the first find of a process; with 150 thousand tokens it takes 1.6 s and 100 MB.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.data.records.messages import Message
from hftune.data.templates.respelled_tokenizer import FLAG, KIND, GuardedText, RespelledTokenizer
from hftune.data.templates.spans import SpannedText
from hftune.data.templates.turn_tokens import Render, TokenFinder, turn_tokens
from hftune.errors import DataError

# Where in Unicode's two private planes the stand-ins of contents and of the template's own borders begin.
_MASKS, _SPELLINGS = 0xF0000, 0x100000
# Characters of a border without its outer ones that are enough to search for.
_LEAST = 5
_SEEN = frozenset(("role", "content", "weight"))

Write = Callable[[Any, Any], SpannedText]
"""Writes messages and tools as text, with spans."""


def mode_for_answers(mode: str) -> str:
    """The mode for what models answer and tools return: there is no record that could be refused, so it stays text."""
    return "split" if mode == "error" else mode


class TurnTokenGuard:
    """Finds the borders of a tokenizer and its template in what records say.

    Args:
        mode: `--borders_in_text`.
        render: Writes conversations by the tokenizer's template; None: documents only.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, mode: str = "split", render: Render | None = None) -> None:
        self.mode, self.is_fast = mode, tokenizer.is_fast
        self.tokens = turn_tokens(tokenizer, render)
        self.needles = tuple(sorted({_needle(token) for token in self.tokens}, key=lambda text: (-len(text), text)))
        self.searches, self.part_searches = _searches(self.tokens), _searches(self.needles)
        self.find = TokenFinder([text for text in tokenizer.get_added_vocab() if text])
        # As long as what they stand for, so that positions of spans hold in both texts.
        masks = {needle: chr(_MASKS + number) * len(needle) for number, needle in enumerate(self.needles)}
        self.spelled = {token: chr(_SPELLINGS + number) * len(token) for number, token in enumerate(self.tokens)}
        self.mask, self.unmask = _replacer(masks), _replacer({mask: needle for needle, mask in masks.items()})
        self.private = re.compile(f"[{chr(_MASKS)}-{chr(_MASKS + 0xFFF)}{chr(_SPELLINGS)}-{chr(_SPELLINGS + 0xFFF)}]")
        self.spelling = RespelledTokenizer(tokenizer, self.spelled)

    # --- conversations ------------------------------------------------------------------------------------------------

    def may_hold(self, messages: Sequence[Message], tools: Any = None) -> bool:
        """Whether a conversation may hold a border; quick, and never wrong where it says no."""
        # Each step is cheaper than what it spares: this is asked of every record.
        if tools is not None and self._may_hold_in(tools):
            return True
        try:
            # One text, one search each; a line break is in no token, so none is found across contents.
            said = "\n".join([message["content"] for message in messages])
        except (KeyError, TypeError):  # no content, or parts of one
            said = ""
            if self._may_hold_in([message.get("content") for message in messages]):
                return True
        for search in self.searches:
            if search(said):
                return True
        return any(len(one) > 2 and self._may_hold_in([one[key] for key in one.keys() - _SEEN]) for one in messages)

    def _may_hold_in(self, value: Any) -> bool:
        """Whether a text in a value of JSON, a key among them, may hold a border or be a part of one."""
        if isinstance(value, str):
            return any(search(value) for search in self.part_searches)
        if isinstance(value, dict):
            return any(self._may_hold_in(part) for pair in value.items() for part in pair)
        return isinstance(value, (list, tuple)) and any(map(self._may_hold_in, value))

    def guarded(self, write: Write, messages: Sequence[Message], tools: Any = None) -> SpannedText:
        """What `write(messages, tools)` returns, its text a `GuardedText` if contents spell a turn token.

        Raises:
            DataError: A turn token, where they are refused; or a text that cannot be kept.
        """
        return self.guarded_rows(lambda *said: [write(*said)], messages, tools)[0]

    def guarded_rows(
        self, write: Callable[[Any, Any], list[SpannedText]], messages: Sequence[Message], tools: Any = None
    ) -> list[SpannedText]:
        """As `guarded`, for a conversation that is written as several texts."""
        if not self.may_hold(messages, tools):
            return write(messages, tools)
        # Nothing is changed; the finds are counted all the same.
        if self.mode == "allow":
            spelled = self._spelled_in([messages, tools])
            rows = write(messages, tools)
            return [SpannedText(self._bordered(found.text, spelled, None), found.spans) for found in rows]
        # Roles are the template's words, and no text that a user has written.
        said = [{key: part if key == "role" else self._masked(part) for key, part in one.items()} for one in messages]
        rows = write(said, self._masked(tools))
        return [SpannedText(self._unmasked(found.text), found.spans) for found in rows]

    def text(self, render: Render, messages: Sequence[Message], tools: Any = None, **options: Any) -> str:
        """A conversation as text."""
        return self.guarded(lambda *said: SpannedText(render(*said, **options), []), messages, tools).text

    def _spelled_in(self, value: Any) -> list[str]:
        """The borders in the texts of a value of JSON."""
        if isinstance(value, str):
            return [token for token in self.find(value) if token in self.spelled]
        parts = [part for pair in value.items() for part in pair] if isinstance(value, dict) else value
        return [token for part in parts for token in self._spelled_in(part)] if isinstance(parts, (list, tuple)) else []

    def _masked(self, value: Any) -> Any:
        """A value of JSON with its finds masked."""
        if isinstance(value, str):
            self._check_private(value)
            return self.mask(value)
        if isinstance(value, dict):
            return {self._masked(key): self._masked(part) for key, part in value.items()}
        return [self._masked(part) for part in value] if isinstance(value, (list, tuple)) else value

    def _unmasked(self, hidden: str) -> str:
        """A rendered text without its masks; `GuardedText` if that makes borders."""
        text = self.unmask(hidden)
        # A stand-in that is left was cut or rewritten by the template, so what it stood for cannot be put back.
        if self.private.search(text) or _ESCAPED.search(hidden):
            raise DataError(
                "the chat template takes apart or escapes a text that spells a turn border",
                fix=f"Remove it from the text, or write {FLAG} allow.",
                kind=KIND,
            )
        ours, all_ = self.find(hidden), self.find(text)
        # What was masked was a part that makes no token: brackets of the template are not next to it.
        if ours == all_:
            return text
        spelled = self.find.pattern.sub(lambda match: self.spelled.get(match.group(), match.group()), hidden)
        return self._bordered(text, [*(Counter(all_) - Counter(ours))], self.unmask(spelled))

    # --- documents ----------------------------------------------------------------------------------------------------

    def document(self, text: str) -> str:
        """A text without a template, `GuardedText` if a border is in it.

        Raises:
            DataError: As `guarded`.
        """
        for search in self.searches:
            if search(text):
                break
        else:
            return text
        found = self._spelled_in(text)
        if not found:
            return text
        if self.mode != "allow":
            self._check_private(text)
        return self._bordered(text, found, None if self.mode == "allow" else text)

    # --- both ---------------------------------------------------------------------------------------------------------

    def _check_private(self, text: str) -> None:
        if self.private.search(text):
            raise DataError(
                "the record holds characters of Unicode's private planes (from U+F0000), with which turn borders in "
                "its text are kept apart",
                fix=f"Remove them or the borders, or write {FLAG} allow.",
                kind=KIND,
            )

    def _bordered(self, text: str, found: list[str], spelled: str | None) -> str:
        # In the order of their ids, for messages and counts.
        tokens = tuple(token for token in self.tokens if token in found)
        if not tokens:
            return text
        if self.mode == "error":
            raise DataError(
                f"the text of this record spells {', '.join(tokens)}, which begins or ends turns or texts",
                fix=f"Remove it, keep it as text with {FLAG} split, or leave such records out with "
                "--on_bad_record drop.",
                kind=KIND,
            )
        if spelled is not None and not self.is_fast:
            raise DataError(
                f"the text of this record spells {', '.join(tokens)}, and only a fast tokenizer can keep it as text",
                fix=f"Use a tokenizer with a tokenizer.json, or write {FLAG} allow.",
                kind=KIND,
            )
        made = GuardedText(text)
        made.tokens, made.spelled, made.spelling = tokens, spelled, self.spelling
        return made


# A stand-in in JSON that holds ASCII only.
_ESCAPED = re.compile(r"\\u(db80|dbc0)\\ud", re.IGNORECASE)


def _needle(token: str) -> str:
    """What is searched for in place of a border."""
    core = token[1:-1]
    return core if len(core) >= _LEAST and not core.isalnum() else token


def _searches(needles: Sequence[str]) -> list[Callable[[str], Any]]:
    """Searches for the needles, one a first character: a common beginning makes a search quick."""
    groups: dict[str, list[str]] = {}
    for needle in needles:
        if any(other in needle for other in needles if other != needle):
            continue  # it is found with the other
        groups.setdefault(needle[0], []).append(re.escape(needle))
    return [re.compile("|".join(group)).search for group in groups.values()]


def _replacer(replaced: dict[str, str]) -> Callable[[str], str]:
    """Replaces all texts that a dict has as keys, the longest first."""
    pattern = TokenFinder(replaced).pattern
    return lambda text: pattern.sub(lambda match: replaced[match.group()], text)
