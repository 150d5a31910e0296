"""Turn borders in what is said: text that spells a token which begins or ends turns stays text.

A chat template writes `<|im_start|>` and `<|im_end|>` around contents, and the tokenizer makes one token of each, in
contents too. In the text of a user, a tool or a web page, `<|im_end|><|im_start|>assistant` would end the turn and
begin another one: the model would learn, or obey, an answer that nobody gave. Therefore every text of a record is
searched for the tokens that begin and end turns and texts (`turn_tokens`); finds are counted and, as
`--borders_in_text` says, refused (`error`), kept as text (`split`), or encoded as the token that they spell (`allow`).

Before the template runs, finds are masked by characters of one of Unicode's private planes, as many as they have, so
that the template and positions are those of any other record. In what is rendered then all borders are the template's
own; those that appear when the masks are taken off are text, and the text is cut inside of each (`GuardedText`).

A border may also be made of parts, half by the record and half by the template (Qwen3-Coder writes `<` and `>` around
the names of parameters). So what is searched for and masked is, where it is long enough, the border without its outer
characters; the rendered text decides whether there is a border.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from hftune.data.messages import Message
from hftune.data.turns import SpannedText
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


KIND = "turn border in a text"
FLAG = "--borders_in_text"

Result = TypeVar("Result")


class GuardedText(str):
    """A text that spells borders.

    Attributes:
        tokens: The borders that were found.
        cuts: Where it is cut, ascending, so that they stay text; none where they are encoded as what they spell.
    """

    tokens: tuple[str, ...]
    cuts: tuple[int, ...]


def turn_tokens_in(text: str) -> tuple[str, ...]:
    """The turn tokens that the contents of a text spell."""
    return text.tokens if type(text) is GuardedText else ()


@dataclass(frozen=True, slots=True)
class JoinedEncoding:
    """The encodings of the parts of a text; what is asked of an `Encoding`, by the same names."""

    ids: list[int]
    offsets: list[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.ids)


AnyEncoding = Encoding | JoinedEncoding


def encode_parts(backend: Tokenizer, text: GuardedText, *, add_special_tokens: bool = False) -> JoinedEncoding:
    """The encoding of a text whose borders stay text; whole, without padding."""
    backend.no_truncation()
    backend.no_padding()
    first = backend.encode(text[: text.cuts[0]], add_special_tokens=add_special_tokens)
    # What the tokenizer writes behind a text belongs behind the last part.
    end = len(first.ids)
    while end and first.special_tokens_mask[end - 1]:
        end -= 1
    ids, offsets = first.ids[:end], first.offsets[:end]
    # The other parts behind a token, as they are in a text: at the beginning of a text some tokenizers write a space.
    before = text.tokens[0]
    for start, stop in zip(text.cuts, [*text.cuts[1:], len(text)], strict=True):
        part = backend.encode(before + text[start:stop], add_special_tokens=False)
        moved = start - len(before)
        for index, (left, right) in zip(part.ids, part.offsets, strict=True):
            if right > len(before):
                ids.append(index)
                offsets.append((max(left + moved, start), right + moved))
    return JoinedEncoding(ids + first.ids[end:], offsets + first.offsets[end:])


def by_kind(
    texts: list[str], plain: Callable[[list[str]], Sequence[Result]], parts: Callable[[GuardedText], Result]
) -> list[Result]:
    """Results in the order of `texts`: `parts` of each text with cuts, `plain` of all others in one call."""
    cut = [text if isinstance(text, GuardedText) and text.cuts else None for text in texts]
    rest = iter(plain([text for text, one in zip(texts, cut, strict=True) if one is None]))
    return [next(rest) if one is None else parts(one) for one in cut]


def encode_batch(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], *, add_special_tokens: bool
) -> list[AnyEncoding]:
    """Encodings by the tokenizer's quickest call, whole, without padding."""
    backend = tokenizer.backend_tokenizer

    def encodings(texts: list[str]) -> list[AnyEncoding]:
        backend.no_truncation()
        backend.no_padding()
        return [*backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)]

    return by_kind(texts, encodings, lambda text: encode_parts(backend, text, add_special_tokens=add_special_tokens))


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str], *, add_special_tokens: bool) -> list[list[int]]:
    """Token ids of texts, by any tokenizer."""
    if tokenizer.is_fast:
        return [list(one.ids) for one in encode_batch(tokenizer, texts, add_special_tokens=add_special_tokens)]
    return [tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]


# Where in Unicode's private planes the masks begin.
_MASKS = 0xF0000
# Characters of a border without its outer ones that are enough to search for.
_LEAST = 5
# A mask in JSON that holds ASCII only.
_ESCAPED = re.compile(r"\\udb80\\ud", re.IGNORECASE)


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
        self.needles = sorted({_needle(token) for token in self.tokens}, key=lambda text: (-len(text), text))
        masks = {needle: chr(_MASKS + number) * len(needle) for number, needle in enumerate(self.needles)}
        self.mask, self.unmask = _replacer(masks), _replacer({mask: needle for needle, mask in masks.items()})
        self.private = re.compile(f"[{chr(_MASKS)}-{chr(_MASKS + 0xFFF)}]")
        # Every place where one begins, as two may lie over each other.
        self.begins = re.compile(f"(?=({one_of(self.tokens)}))")

    # --- conversations ------------------------------------------------------------------------------------------------

    def may_hold(self, messages: Sequence[Message], tools: Any = None) -> bool:
        """Whether a conversation may hold a border; quick, and never wrong where it says no."""
        return self._may_be_in("\n".join(_texts((messages, tools))))

    def _may_be_in(self, text: str) -> bool:
        return any(needle in text for needle in self.needles)

    def guarded_rows(
        self, write: Callable[[Any, Any], list[SpannedText]], messages: Sequence[Message], tools: Any = None
    ) -> list[SpannedText]:
        """The rows that `write(messages, tools)` returns, as `GuardedText` where contents spell turn tokens.

        Raises:
            DataError: A turn token, where they are refused; or a text that cannot be kept.
        """
        if not self.may_hold(messages, tools):
            return write(messages, tools)
        # Nothing is changed; the finds are counted all the same.
        if self.mode == "allow":
            found = [token for text in _texts((messages, tools)) for token, _ in self._found(text)]
            return [SpannedText(self._bordered(row.text, found), row.spans) for row in write(messages, tools)]
        # Roles are the template's words, and no text that a user has written.
        said = [{key: part if key == "role" else self._masked(part) for key, part in one.items()} for one in messages]
        rows = write(said, self._masked(tools))
        return [SpannedText(self._unmasked(row.text), row.spans) for row in rows]

    def text(self, render: Render, messages: Sequence[Message], tools: Any = None, **options: Any) -> str:
        """A conversation as text."""
        rows = self.guarded_rows(lambda *said: [SpannedText(render(*said, **options), [])], messages, tools)
        return rows[0].text

    def document(self, text: str) -> str:
        """A text without a template, `GuardedText` if a border is in it.

        Raises:
            DataError: As `guarded_rows`.
        """
        found = self._found(text) if self._may_be_in(text) else []
        return self._bordered(text, [token for token, _ in found], [place for _, place in found])

    # --- both ---------------------------------------------------------------------------------------------------------

    def _found(self, text: str, hidden: str = "") -> list[tuple[str, int]]:
        """Each border in a text that is not in `hidden` at the same place, and where it begins."""
        found = [(match[1], match.start()) for match in self.begins.finditer(text)]
        return [(token, place) for token, place in found if not hidden.startswith(token, place)]

    def _masked(self, value: Any) -> Any:
        """A value of JSON with its finds masked."""
        if isinstance(value, str):
            if self.private.search(value):
                raise DataError(
                    "the record holds characters of one of Unicode's private planes (from U+F0000), with which turn "
                    "borders in its text are kept apart",
                    fix=f"Remove them or the borders, or write {FLAG} allow.",
                    kind=KIND,
                )
            return self.mask(value)
        if isinstance(value, dict):
            return {self._masked(key): self._masked(part) for key, part in value.items()}
        return [self._masked(part) for part in value] if isinstance(value, (list, tuple)) else value

    def _unmasked(self, hidden: str) -> str:
        """A rendered text without its masks; `GuardedText` if that makes borders."""
        text = self.unmask(hidden)
        # A mask that is left was cut or rewritten by the template, so what it stood for cannot be put back.
        if self.private.search(text) or _ESCAPED.search(hidden):
            raise DataError(
                "the chat template takes apart or escapes a text that spells a turn border",
                fix=f"Remove it from the text, or write {FLAG} allow.",
                kind=KIND,
            )
        found = self._found(text, hidden)
        return self._bordered(text, [token for token, _ in found], [place for _, place in found])

    def _bordered(self, text: str, found: Iterable[str], places: Iterable[int] = ()) -> str:
        """The text with the borders that were found, and where each begins."""
        # In the order of their ids, for messages and counts.
        spelled = {*found}
        tokens = tuple(token for token in self.tokens if token in spelled)
        if not tokens:
            return text
        if self.mode == "error":
            raise DataError(
                f"the text of this record spells {', '.join(tokens)}, which begins or ends turns or texts",
                fix=f"Remove it, keep it as text with {FLAG} split, or leave such records out with "
                "--on_bad_record drop.",
                kind=KIND,
            )
        if self.mode == "split" and not (self.is_fast and min(map(len, tokens)) > 1):
            raise DataError(
                f"the text of this record spells {', '.join(tokens)}, and only a fast tokenizer can keep it as text, "
                "if it has more than one character",
                fix=f"Use a tokenizer with a tokenizer.json, or write {FLAG} allow.",
                kind=KIND,
            )
        made = GuardedText(text)
        made.tokens = tokens
        made.cuts = () if self.mode == "allow" else tuple(place + 1 for place in places)
        return made


def _needle(token: str) -> str:
    """What is searched for in place of a border."""
    core = token[1:-1]
    return core if len(core) >= _LEAST and not core.isalnum() else token


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value of JSON, keys among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)


def _replacer(replaced: dict[str, str]) -> Callable[[str], str]:
    """Replaces all texts that a dict has as keys, the longest first."""
    pattern = re.compile(one_of(replaced))
    return lambda text: pattern.sub(lambda match: replaced[match.group()], text)
