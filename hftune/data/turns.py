"""Where in the text of a conversation the assistant speaks.

A template is a program, so a span is only trusted when it was proven. Each bound of a turn is found in one of two ways:

1. by prefixes: the conversation rendered up to the turn (with the generation prompt), or through it, is compared
   character for character with the whole text;
2. by a probe: the whole conversation rendered again with the turn replaced by a word that occurs nowhere else. What is
   before and after that word must be before and after the turn, too.

The first fails where a template renders a turn by what follows it: Qwen3 drops the reasoning of earlier turns, Phi-3
closes only the last turn with EOS, gpt-oss ends only the last turn with <|return|>. Where both fail, or where a
part of the turn is not in the span found, the record is refused: a wrong mask would train on the wrong text unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

from hftune.data.messages import Message
from hftune.data.rendering import Renderer
from hftune.errors import DataError, shown
from hftune.template_arguments import FLAG


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text that is trained: the characters from `start` to before `end`.

    Its loss is multiplied by `weight`, which is above 0: what is not trained is no span.
    """

    start: int
    end: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class SpannedText:
    """A text and its spans, sorted and disjoint."""

    text: str
    spans: list[Span]


MASK, TRAIN, DROP_THOUGHTS = "mask", "train", "drop"
"""Of empty thoughts: they belong to the prompt, are trained, or are left out of the text (`--empty_thoughts`)."""

_REWRITTEN = "turns rewritten by the chat template"
_LAST_ONLY = "Train on the last turn only (--train_on_last_turn), split the record into one record a turn"


class TurnFinder:
    """Renders one conversation and finds its turns.

    Args:
        empty_thoughts: "mask": a turn begins behind the empty thoughts that the template writes before its answer.
        beginnings: What is rendered already, as `beginning` asks for it.

    Raises:
        DataError: The template refuses the conversation.
    """

    def __init__(
        self,
        messages: list[Message],
        renderer: Renderer,
        tools: list[dict[str, Any]] | None = None,
        *,
        empty_thoughts: str = MASK,
        beginnings: dict[tuple[int, bool], str | None] | None = None,
    ) -> None:
        self.empty_thoughts = empty_thoughts
        self.messages, self.renderer, self.tools = messages, renderer, tools
        # Rendering is what takes the time, and neighbouring turns ask for the same beginnings.
        self.beginnings: dict[tuple[int, bool], str | None] = {} if beginnings is None else beginnings
        text = self.beginnings.get((len(messages), False))
        self.text = text = renderer(messages, tools) if text is None else text
        self.beginnings[len(messages), False] = text
        self.found: dict[int, Span] = {}
        self.thoughts = renderer.thoughts
        # A number that does not occur: a record may speak of hftune, or hold a probe of an earlier run.
        self.probe = next(word for number in count(7) if (word := f"HFTUNE{number}PROBE") not in text)

    def trained_turns(self, *, last_turn_only: bool = False) -> list[int]:
        """The assistant turns with a weight other than 0, or the last assistant turn if it has one."""
        turns = [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]
        # A turn that is not trained need not be located: templates rewrite earlier turns, and it may be one of those.
        return [index for index in (turns[-1:] if last_turn_only else turns) if self._weight(index) != 0]

    def _weight(self, index: int) -> float:
        return float(self.messages[index].get("weight", 1.0))

    def span(self, index: int) -> Span:
        """Where one assistant turn is: its content with the terminator of the template (such as <|im_end|>), without
        white space after that.

        Raises:
            DataError: The template drops a part of the turn, or rewrites it so that it cannot be located exactly.
        """
        if index not in self.found:
            start, end = self._bounds(index)
            if self.empty_thoughts == MASK:
                start = min(self.thoughts.end(self.text, start), end)
            self.found[index] = Span(start, end, self._weight(index))
        return self.found[index]

    def exact_span(self, index: int) -> Span | None:
        """Where one assistant turn is; None where it cannot be located, or is asked in another way by inference."""
        try:
            span = self.span(index)
        except DataError:
            return None
        return span if self._is_exact(index, span.start) else None

    def required_span(self, index: int) -> Span:
        """Where one assistant turn is, behind what inference would be given.

        Raises:
            DataError: As `span`; or something else is before it.
        """
        span = self.span(index)
        if not self._is_exact(index, span.start):
            raise self._inexact(index, span.start)
        return span

    def _is_exact(self, index: int, start: int) -> bool:
        """Whether the text before `start` is the generation prompt of turn `index`, as inference would have it."""
        prompt = self.beginning(index, prompt=True)
        # Nothing is before the first turn; what a template refuses to ask is asked by nobody.
        if prompt is None:
            return True
        if self.text.startswith(prompt) and len(prompt) <= start:
            # Between the prompt and the turn: white space; a header, where a template has no generation prompt at all;
            # or empty thoughts, of which a model is given the whole where thinking is off.
            between = self.text[len(prompt) : start].strip()
            return not (between and self.renderer.asks) or self.thoughts.end(self.text, len(prompt)) == start
        # Or it is the prompt with thinking switched off, where the template has a switch.
        return any(
            self.text[:start] == render.prompt(self.messages[:index], self.tools) for render in self.thoughts.off
        )

    def upto(self, count: int) -> TurnFinder:
        """The finder for the first `count` messages, which shares what is rendered already."""
        if count == len(self.messages):
            return self
        return TurnFinder(
            self.messages[:count],
            self.renderer,
            self.tools,
            empty_thoughts=self.empty_thoughts,
            beginnings=self.beginnings,
        )

    def checked(self, spans: list[Span]) -> list[Span]:
        """The spans, if their ends can be trusted and none reaches into another.

        Raises:
            DataError: They cannot.
        """
        self._check_ends(spans)
        # Two turns cannot overlap, so one of them was found in the wrong place.
        if any(second.start < first.end for first, second in pairwise(spans)):
            raise DataError(
                "this chat template rewrites earlier turns: two turns overlap", fix=_fix(_LAST_ONLY), kind=_REWRITTEN
            )
        return spans

    def _check_ends(self, spans: list[Span]) -> None:
        """An end of text right behind a turn is the turn's own: without it a model does not learn to stop."""
        eos = self.renderer.tokenizer.eos_token
        if eos and any(self.text[span.end :].lstrip().startswith(str(eos)) for span in spans):
            raise DataError(
                f"this chat template writes {eos} behind a turn, and it cannot be told whether it ends the turn",
                fix="Take it out of the record, or give another template with --chat_template.",
                kind=_REWRITTEN,
            )

    def beginning(self, count: int, *, prompt: bool = False) -> str | None:
        """The first `count` messages as text, with the generation prompt if asked; None where they are refused."""
        key = count, prompt
        if key not in self.beginnings:
            said = self.messages[:count]
            self.beginnings[key] = self.renderer.or_none(said, self.tools, prompt=prompt) if said else None
        return self.beginnings[key]

    def _bounds(self, index: int) -> tuple[int, int]:
        """(start, end) of the assistant turn `index`, trimmed and checked."""
        # Prefixes first: they are exact where they hold, and need no look at the content.
        start, upto = self._start_by_prefix(index), self.beginning(index + 1)
        end = len(upto) if upto is not None and self.text.startswith(upto) else None
        if start is None or end is None:
            body_start, body_end = self._by_probe(index)
            start = body_start if start is None else start
            end = body_end if end is None else end
        if start is None or end is None or end <= start:
            raise self._rewritten(index, "the turn is not where the conversation up to it ends")
        end = self._trimmed(index, start, end)
        self._check_nothing_lost(index, self.text[start:end])
        return start, end

    def _start_by_prefix(self, index: int) -> int | None:
        """Where the generation prompt before the turn ends."""
        prefix = self.beginning(index, prompt=True)
        if prefix is None or not self.text.startswith(prefix):
            return None
        # Without a generation prompt the prefix would end before the turn's header, which must not be trained.
        return len(prefix) if self._is_prompted(index, prefix) else None

    def _is_prompted(self, index: int, prompt: str) -> bool:
        """Whether the template has a generation prompt for turn `index`."""
        # It depends on who spoke before (DeepSeek has none after a tool), so it is asked once for each role, of the
        # first record that has it.
        role, known = self.messages[index - 1]["role"], self.renderer.prompted
        if role not in known:
            known[role] = prompt != self.beginning(index)
        return known[role]

    def _by_probe(self, index: int) -> tuple[int | None, int | None]:
        """Where the turn's body starts, and where its terminator ends, by replacing the turn."""
        probe = {"role": "assistant", "content": self.probe}
        replaced = [*self.messages[:index], probe, *self.messages[index + 1 :]]
        # Exactly once: a template that shows the probe in two places says nothing about either.
        parts = (self.renderer.or_none(replaced, self.tools) or "").split(self.probe)
        if len(parts) != 2:
            return None, None
        before, after = parts
        start = len(before) if self.text.startswith(before) else None
        end = None
        if self.text.endswith(after):
            end = len(self.text) - len(after) + self._terminator(replaced[: index + 1], after)
        return start, end

    def _terminator(self, upto: list[Message], after: str) -> int:
        """How many characters of `after`, the text that follows a turn's body, still belong to that turn."""
        closing = self._behind_probe(upto)
        eos = str(self.renderer.tokenizer.eos_token or "")
        # Phi-3 closes the last turn with <|end|> and EOS, all others with <|end|> alone.
        for candidate in (closing.rstrip(), closing.rstrip().removesuffix(eos).rstrip()):
            if candidate and after.startswith(candidate):
                return len(candidate)
        # An earlier turn is closed by another token than the last one (gpt-oss). It is the turn's own if a further
        # token that opens a turn follows it whoever speaks next; a template that closes no turn has only the opener.
        shared = common_start(after, self._behind_probe(upto, prompt=True))
        known = [token for token in self.renderer.tokenizer.get_added_vocab() if token and shared.startswith(token)]
        token = max(known, default="")  # the longest, as all of them begin alike
        return len(token) if shared[len(token) :].strip() else 0

    def _behind_probe(self, messages: list[Message], *, prompt: bool = False) -> str:
        """What is written behind the probe that a part of the conversation holds; nothing where that is refused."""
        return (self.renderer.or_none(messages, self.tools, prompt=prompt) or "").rpartition(self.probe)[2]

    def _trimmed(self, index: int, start: int, end: int) -> int:
        """`end` without white space after the terminator, but never inside the content itself."""
        body = self.text[start:end]
        closed = body.rstrip()
        # The white space before a token such as <|im_end|> belongs to what was said.
        if closed.endswith(self.renderer.special_texts):
            return start + len(closed)
        content = self.messages[index]["content"]
        if content.strip() and content in body:
            return start + max(len(closed), body.rindex(content) + len(content))
        return start + len(closed)

    def _check_nothing_lost(self, index: int, body: str) -> None:
        """Everything the turn says must be in its span; templates drop reasoning and calls they do not know."""
        for name, part in _parts(self.messages[index]):
            if part in body:
                continue
            if self._is_earlier(index):
                raise self._rewritten(index, f"it drops the {name} of that turn")
            raise DataError(
                f"this chat template drops the {name} of turn {index + 1} (assistant), which would not be trained",
                fix=_fix(f"Remove the {name} from the record"),
                kind="turn cut by the chat template",
            )

    def _is_earlier(self, index: int) -> bool:
        """Whether a user speaks after the turn, from where on templates may treat it as history."""
        return any(message["role"] == "user" for message in self.messages[index:])

    def _rewritten(self, index: int, why: str) -> DataError:
        where = f"turn {index + 1} (assistant) cannot be located exactly, {why}"
        if self._is_earlier(index):
            return DataError(
                f"this chat template rewrites earlier turns: {where}", fix=_fix(_LAST_ONLY), kind=_REWRITTEN
            )
        return DataError(
            f"this chat template writes the last turn differently from its own generation prompt: {where}",
            fix=_fix(f"Change the turn (often its reasoning), or give {FLAG} with which the template asks so"),
            kind=_REWRITTEN,
        )

    def _inexact(self, index: int, start: int) -> DataError:
        """The error for a turn that begins in another way than inference would have it begin."""
        prompt = self.beginning(index, prompt=True) or ""
        shared = len(common_start(self.text[:start], prompt))
        asked, written = shown(repr(prompt[shared:])), shown(repr(self.text[shared : start + 20]))
        where = "" if not self._is_earlier(index) else ", as it rewrites earlier turns"
        return DataError(
            f"this chat template asks for turn {index + 1} (assistant) with {asked} where it writes {written} in the "
            f"conversation{where}: what would be trained is not what the model is asked",
            fix=_fix(f"Give {FLAG} with which the template asks as it writes, or --rewritten_turns keep"),
            kind=_REWRITTEN,
        )


def _fix(first: str) -> str:
    """What to do about a record that the template does not write whole."""
    return (
        f"{first}; or leave such records out with --on_bad_record drop; or give a template that writes them, as "
        "--chat_template FILE.jinja."
    )


def common_start(left: str, right: str) -> str:
    """What two texts begin with alike."""
    pairs = enumerate(zip(left, right, strict=False))
    return left[: next((at for at, (one, other) in pairs if one != other), min(len(left), len(right)))]


def _parts(message: Message) -> list[tuple[str, str]]:
    """(name, text) of what an assistant turn says: reasoning, answer and the names of functions called."""
    # Templates that know reasoning cut it out of the content by these marks, so it is checked apart.
    thinking, closed, answer = message["content"].rpartition("</think>")
    reasoning = [thinking.rpartition("<think>")[2] if closed else "", str(message.get("reasoning_content") or "")]
    calls = [call["function"]["name"] for call in message.get("tool_calls") or []]
    parts = [("reasoning", text.strip()) for text in reasoning]
    parts += [("content", answer.strip()), *(("function call", name) for name in calls)]
    return [(name, text) for name, text in parts if text]
