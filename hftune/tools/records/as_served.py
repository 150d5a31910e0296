"""`hftune preview --as-served`: whether each trained turn is behind the ids that a server would give the model there.

Read back from the ids that are trained: a turn is where its labels are, whatever found them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from hftune.arguments.data import DataArguments
from hftune.constants import IGNORE_INDEX
from hftune.data.compared_answers import to_preference
from hftune.data.counts import Counts
from hftune.data.encode import ChatEncoder
from hftune.data.encode_pairs import LabelledEncoder, PairEncoder
from hftune.data.encode_rewards import RewardPairEncoder
from hftune.data.messages import Message
from hftune.data.readers.columns import apply_columns, parse_columns
from hftune.data.readers.files import Row, chunks
from hftune.data.readers.hub import data_files
from hftune.data.readers.specs import parse_sources
from hftune.data.records import Conversation, to_conversation, to_labelled
from hftune.data.rendering import Renderer
from hftune.data.turn_tokens import token_ids
from hftune.errors import ArgumentError, DataError
from hftune.visible import say, visible

SERVED, OFF, OTHER = "as served", "as served with thinking off", "not as served"
UNASKED = "asked by nobody, as the template refuses its prompt or nothing is before it"
REFUSED = "refused"
_SHOWN = 12  # tokens from a difference on
_LINES = 20


def check_served(encoder: Any, data_args: DataArguments) -> None:
    """Say of each record of the training data whether its turns are as served, and how many are.

    Raises:
        DataError: One is not.
    """
    check, lines, first = ServedCheck(encoder), data_args.preview or _LINES, ""
    for number, row in enumerate(_rows(data_args)):
        for line in check(row):
            differs = OTHER in line
            first = first or (line if differs else "")
            if number < lines or (differs and check.counts[OTHER] <= lines):
                say(line)
    say("; ".join(f"{number} {name}" for name, number in check.counts.items()))
    if first:
        fix = "Leave out --rewritten_turns keep and --train_on_inputs, or give a template with a generation prompt."
        raise DataError(f"{check.counts[OTHER]} trained turns are not behind what a server gives: {first}", fix=fix)


def _rows(data_args: DataArguments) -> Iterator[Row | DataError]:
    columns = parse_columns(data_args.columns)
    given = data_args.train_file_dir or data_args.dataset_name
    if not given:
        raise ArgumentError("no records to compare", place="--as-served", fix="give --train_file_dir")
    for source in parse_sources(given, flag="--train_file_dir"):
        for chunk in chunks(data_files(source.path, "--train_file_dir")):
            for row in chunk.rows():
                try:
                    yield apply_columns(row, columns) if isinstance(row, Row) else row
                except DataError as error:
                    yield error


class ServedCheck:
    """Compares what one encoder makes of records with what a server would be asked.

    Raises:
        ArgumentError: An encoder whose records have no turns that a server is asked for.
    """

    def __init__(self, encoder: Any) -> None:
        if not isinstance(encoder, (ChatEncoder, PairEncoder)) or isinstance(encoder, RewardPairEncoder):
            fix = "give run_sft or run_dpo; RL asks as a server does, and a reward model reads what it will score"
            raise ArgumentError("nothing here answers a prompt", place="--as-served", fix=fix)
        self.encoder: Any = encoder.without_limit() if isinstance(encoder, ChatEncoder) else encoder
        self.thoughts = encoder.finder.render.thoughts
        self.counts: Counter[str] = Counter()

    def __call__(self, row: Row | DataError) -> Iterator[str]:
        """A line for each trained turn of a record; its verdict is counted."""
        try:
            if isinstance(row, DataError):
                raise row
            made = self.encoder.encode([self.encoder.parse(row)], Counts(rows=1))
            said, begins = self._asked(row, made)
        except DataError as error:
            self.counts[REFUSED] += 1
            yield f"{error.place}: {REFUSED}, {error.cause}"
            return
        turns = self._prompts(said)[-len(begins) :]  # the last ones, where not all are trained
        for number, (before, is_cut) in enumerate(begins, start=1):
            verdict, why = self._verdict(before, turns, min(number, len(turns)) - 1, is_cut)
            self.counts[verdict] += 1
            yield f"{row.origin}: turn {number} of {len(begins)}, behind {len(before)} tokens: {verdict}{why}"

    def _asked(self, row: Row, made: dict[str, list[Any]]) -> tuple[Conversation, list[tuple[list[int], bool]]]:
        """The conversation, and the ids before each trained turn with whether their start may be cut."""
        if isinstance(self.encoder, ChatEncoder):
            rows = zip(made["input_ids"], made["labels"], strict=True)
            return to_conversation(row), [(before, False) for ids, labels in rows for before in _before(ids, labels)]
        begins = [([int(token) for token in ids], True) for ids in made["prompt_ids"]]
        if isinstance(self.encoder, LabelledEncoder):
            one = to_labelled(row)
            return Conversation([*one.prompt, *one.completion], one.tools, one.template_arguments), begins
        pair = to_preference(row)
        return Conversation([*pair.prompt, *pair.chosen], pair.tools, pair.template_arguments), begins

    def _prompts(self, said: Conversation) -> list[list[tuple[str, list[int]]]]:
        """What a server is asked at each trained turn: its prompt, and those of thinking off; [] for nothing."""
        render = self.encoder.finder.render.given(said.template_arguments)
        turns = []
        messages = render.reads.said(said.messages, said.tools)
        for index, message in enumerate(messages):
            if message["role"] == "assistant" and message.get("weight") != 0:
                ways = ((SERVED, render), *((OFF, other) for other in render.thoughts.off))
                ids = [(verdict, self._ids(way, messages[:index], said.tools)) for verdict, way in ways]
                turns.append([(verdict, one) for verdict, one in ids if one])
        return turns

    def _ids(self, render: Renderer, messages: list[Message], tools: Any) -> list[int]:
        if not messages:
            return []
        try:
            text = self.encoder.finder.guard.text(render, messages, tools, add_generation_prompt=True)
        except DataError:  # nobody can ask this
            return []
        (ids,) = token_ids(self.encoder.tokenizer, [text], add_special_tokens=False)
        return ids

    def _verdict(
        self, before: list[int], turns: list[list[tuple[str, list[int]]]], number: int, is_cut: bool
    ) -> tuple[str, str]:
        decode = self.encoder.tokenizer.decode
        for verdict, prompt in (one for turn in turns for one in turn):
            if before == prompt:
                return verdict, ""
            if is_cut and len(before) < len(prompt) and prompt[-len(before) :] == before:
                return verdict, ", but for its start (--max_prompt_length)"
            # Without a switch in the template, empty thoughts behind the prompt are what thinking off is.
            text, given = decode(before), len(decode(prompt))
            if before[: len(prompt)] == prompt and self.thoughts.end(text, given) == len(text):
                return OFF, ""
        if not turns[number]:
            return UNASKED, ""
        prompt = turns[number][0][1]
        alike = _shared(before, prompt)
        ours, served = (decode(ids[alike : alike + _SHOWN]) for ids in (before, prompt))
        return OTHER, visible(f"; from token {alike + 1} on trained behind {ours!r}, served {served!r}")


def _before(ids: Any, labels: Any) -> Iterator[list[int]]:
    """The ids before each trained part of a row."""
    start = 0
    for trained, part in groupby(labels, key=lambda label: label != IGNORE_INDEX):
        if trained:
            yield [int(token) for token in ids[:start]]
        start += len(list(part))


def _shared(left: list[int], right: list[int]) -> int:
    """How many tokens two texts share at their start."""
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
