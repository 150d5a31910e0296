"""Records of any format to the texts that a reward model scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.data.preferences.step_encoder import StepEncoder, last_tokens
from hftune.data.readers.base import Row
from hftune.data.records.conversations import to_conversation
from hftune.data.records.formats import pair_format
from hftune.data.records.messages import Message, without_weight
from hftune.data.records.preferences import to_preference
from hftune.data.records.solutions import Solution, is_stepwise, to_solutions
from hftune.data.templates.guarded_text import token_ids, turn_tokens_in
from hftune.data.templates.proposals import require_chat_template
from hftune.data.templates.rendering import Renderer
from hftune.data.templates.turn_token_guard import TurnTokenGuard
from hftune.data.tokenizing.context import Context
from hftune.data.tokenizing.counts import require_fast
from hftune.errors import DataError
from hftune.template_arguments import TemplateArguments

CHOSEN, REJECTED, SINGLE = "_chosen", "_rejected", ""


@dataclass
class Scored:
    """One conversation on its way through the model.

    `name` is what its score is called by in the record: `score` and this. `ends` are the places of the tokens at which
    steps are scored; None: the conversation is, at its end. `outputs` are raw scores, one a step. `turn_tokens` are
    those that it spells in its contents.
    """

    name: str
    ids: list[int]
    ends: list[int] | None
    truncated: bool = False
    outputs: list[float] | None = None
    turn_tokens: tuple[str, ...] = ()


class ScoringEncoder:
    """Makes conversations of records.

    Args:
        tokenizer: The reward model's, with its chat template.
        steps: Whether steps are scored.
        separator: Between the steps of an answer.
        max_length: Tokens that are kept of a conversation, its end; None: all.
        borders_in_text: What becomes of turn tokens that contents spell, a mode of `TurnTokenGuard`.
        context: What the model can read; None: everything.

    Raises:
        DataError: A tokenizer without a chat template, or (for steps) without character offsets.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        steps: bool,
        separator: str = "\n",
        max_length: int | None = None,
        borders_in_text: str = "split",
        context: Context | None = None,
    ) -> None:
        self.context = context or Context(None, 0)
        require_chat_template(tokenizer)
        if steps:
            require_fast(tokenizer)
        self.tokenizer, self.steps, self.separator, self.max_length = tokenizer, steps, separator, max_length
        self.render = Renderer(tokenizer)
        self.guard = TurnTokenGuard(tokenizer, borders_in_text, self.render)
        self.encoder = (
            StepEncoder(
                tokenizer,
                max_length=2**30,
                step_separator=separator,
                labelled_only=False,
                borders_in_text=borders_in_text,
            )
            if steps
            else None
        )

    def __call__(self, row: Row) -> list[Scored]:
        """The conversations of a record: two of a preference pair, one of any other.

        Raises:
            DataError: In no format that hftune reads, without an answer, or longer than the model's context.
        """
        if pair_format(row.value) or (isinstance(row.value.get("output"), list) and "instruction" in row.value):
            pair = to_preference(row)
            answers = ((CHOSEN, pair.chosen), (REJECTED, pair.rejected))
            return [
                self._one(name, pair.prompt, answer, pair.tools, row.origin, pair.template_arguments)
                for name, answer in answers
            ]
        if is_stepwise(row.value):
            # PRM800K gives one for each alternative; the last is the path that was gone.
            return [self.solution(SINGLE, solution) for solution in to_solutions(row)[-1:]]
        said = to_conversation(row)
        messages = list(said.messages)
        last = max(number for number, message in enumerate(messages) if message["role"] == "assistant")
        arguments = said.template_arguments
        return [self._one(SINGLE, messages[:last], messages[last:], said.tools, row.origin, arguments)]

    def _one(
        self,
        name: str,
        prompt: list[Message],
        answer: list[Message],
        tools: Any,
        origin: str,
        arguments: TemplateArguments,
    ) -> Scored:
        if self.steps:
            parts = [part for part in str(answer[-1].get("content") or "").split(self.separator) if part.strip()]
            steps = [part.strip() for part in parts]
            if not steps:
                raise DataError("the answer has no steps", place=origin, fix="Remove the record.", kind="no steps")
            labels: list[float | None] = [None] * len(steps)
            return self.solution(name, Solution(prompt + answer[:-1], steps, labels, tools, origin, arguments))
        try:
            render = self.render.given(arguments)
            said = render.reads.said([without_weight(message) for message in prompt + answer], tools)
            text = self.guard.text(render, said, tools)
        except DataError as error:
            raise error.at(origin) from error
        self.context.check_text(text, origin)
        (ids,) = token_ids(self.tokenizer, [text], add_special_tokens=False)
        return self._cut(Scored(name, ids, None, turn_tokens=turn_tokens_in(text)), origin)

    def solution(self, name: str, solution: Solution) -> Scored:
        """An answer in steps; scored as a whole where steps are not."""
        if self.encoder is None:
            answer: Message = {"role": "assistant", "content": self.separator.join(solution.steps)}
            more = solution.template_arguments
            return self._one(name, solution.prompt, [answer], solution.tools, solution.origin, more)
        parsed = self.encoder.text_of(solution, "")
        self.context.check_text(parsed.said.text, solution.origin)
        encoding = self.encoder.encodings([parsed.said.text])[0][0]
        ends = last_tokens(encoding, parsed.said)
        scored = Scored(name, list(encoding.ids), ends, turn_tokens=turn_tokens_in(parsed.said.text))
        return self._cut(scored, solution.origin)

    def _cut(self, one: Scored, origin: str) -> Scored:
        """Without its beginning, where it is too long; steps in there have no score of their own."""
        # The end stays, where the score is read.
        over = len(one.ids) - self.max_length if self.max_length else 0
        self.context.check(len(one.ids) - max(0, over), origin)
        if over <= 0:
            return one
        ends = None if one.ends is None else [end - over for end in one.ends if end >= over]
        return replace(one, ids=one.ids[over:], ends=ends, truncated=True)
