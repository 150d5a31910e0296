"""What is before each trained turn is what inference would be given there, token by token; or the record is refused.

On every template that TRL ships, with thinking as the template has it, on and off.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from hftune.constants import IGNORE_INDEX
from hftune.data.counts import Counts
from hftune.data.encode import ChatEncoder
from hftune.errors import DataError
from hftune.template_arguments import give_arguments, names_read
from tests.unit.data.helpers import TEMPLATES, make_tokenizer, row, slow_if_alike, template, tokenize_pairs

NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer", "description": "n"}}, "required": ["x"]}
TOOLS = [{"type": "function", "function": {"name": "get", "description": "Gets.", "parameters": SCHEMA}}]
CALL = [{"id": "abcdefghi", "type": "function", "function": {"name": "get", "arguments": {"x": 1}}}]
RESULT = {"role": "tool", "name": "get", "tool_call_id": "abcdefghi", "content": "zwanzig"}
SYSTEM = {"role": "system", "content": "Be kind."}


def ask(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def say(content: str, thoughts: str = "", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content} | ({"reasoning_content": thoughts} if thoughts else {}) | more


CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], Any]] = {
    "plain": ([ask("wie?"), say("eins.")], None),
    "system": ([SYSTEM, ask("wie?"), say("eins.")], None),
    "turns": ([ask("wie?"), say("eins."), ask("und?"), say("zwei."), ask("dann?"), say("drei.")], None),
    "tools": ([ask("wie?"), say("", tool_calls=CALL), RESULT, say("Es sind 20.")], TOOLS),
    "thoughts": ([ask("wie?"), say("eins.", "hm ja")], None),
    "thoughts in turns": ([ask("wie?"), say("eins.", "hm ja"), ask("und?"), say("zwei.", "oh so")], None),
    "some thoughts": ([ask("wie?"), say("eins."), ask("und?"), say("zwei.", "oh so"), ask("?"), say("drei.")], None),
    "thoughts with tools": (
        [SYSTEM, ask("wie?"), say("", "erst holen", tool_calls=CALL), RESULT, say("Es sind 20.", "nun sagen"),
         ask("und?"), say("zwei.", "oh so")],
        TOOLS,
    ),
}  # fmt: skip
SIMPLE = ("plain", "system", "turns")
# Without thoughts and calls a conversation has a row, if the template writes what it says.
REASONS = ("turn cut by the chat template", "refused by the chat template", "turns rewritten by the chat template")
# Of each template: how it is asked to think.
MODES: dict[str, dict[str, bool]] = {"as it is": {}, "on": {"enable_thinking": True}, "off": {"enable_thinking": False}}


def rows_of(tokenizer: Any, kind: str, **settings: Any) -> list[dict[str, list[int]]]:
    """The rows that a conversation is trained as."""
    messages, tools = CONVERSATIONS[kind]
    encoder = ChatEncoder(tokenizer, max_length=None, **settings)
    made = encoder.encode([encoder.parse(row(messages=messages, tools=tools))], Counts(rows=1))
    return [
        {name: list(map(int, made[name][number])) for name in ("input_ids", "labels")}
        for number in range(len(made["length"]))
    ]


def prompts_of(tokenizer: Any, kind: str, mode: dict[str, bool]) -> list[list[int]]:
    """What inference is given at each turn of the assistant, by transformers alone."""
    messages, tools = CONVERSATIONS[kind]
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    return [
        tokenizer.apply_chat_template(
            messages[:turn], tools=tools, add_generation_prompt=True, return_dict=True, **mode
        )["input_ids"]
        for turn in turns
    ]


def runs(row: dict[str, list[int]]) -> list[tuple[int, int]]:
    """The trained parts of a row."""
    trained = [label != IGNORE_INDEX for label in row["labels"]]
    begins = [place for place, one in enumerate(trained) if one and (place == 0 or not trained[place - 1])]
    ends = [place + 1 for place, one in enumerate(trained) if one and not [*trained, False][place + 1]]
    return list(zip(begins, ends, strict=True))


def ways_of(name: str) -> list[str]:
    """The modes in which a template can be used."""
    return [mode for mode, given in MODES.items() if names_read(template(name)) >= given.keys()]


@pytest.mark.parametrize("name", slow_if_alike(NAMES))
def test_before_each_turn_is_what_inference_is_given(name: str) -> None:
    """In one way of those that the template has; all ways are tried by the slow test."""
    check(name, random.Random(f"{name} 28").choice(ways_of(name)))


def check(name: str, mode: str) -> None:
    """What is trained of every conversation is behind what is asked, or the record is refused."""
    tokenizer = give_arguments(make_tokenizer(template(name)), MODES[mode])
    for kind, (messages, tools) in CONVERSATIONS.items():
        turns = [message for message in messages if message["role"] == "assistant"]
        try:
            rows = rows_of(tokenizer, kind)
        except DataError as error:
            assert error.cause and error.fix and error.kind in REASONS[: 3 if kind not in SIMPLE else 2], kind
            continue
        asked = prompts_of(tokenizer, kind, MODES[mode])
        # With thinking off a model is given the empty thoughts; a turn without thoughts is what it says then.
        off = prompts_of(tokenizer, kind, {"enable_thinking": False})
        trained = [(one["input_ids"], *run) for one in rows for run in runs(one)]
        assert len(trained) == len(turns), kind
        others = [message["content"] for message in messages if message["role"] != "assistant"]
        texts = [tokenizer.decode(ids[begin:end]) for ids, begin, end in trained]
        assert not [text for text in texts if any(other in text for other in others)], kind
        for turn, prompt, empty in zip(turns, asked, off, strict=True):
            parts = [turn["content"], turn.get("reasoning_content") or "", "get" if "tool_calls" in turn else ""]
            said = [one for one in trained if all(part in tokenizer.decode(one[0][one[1] : one[2]]) for part in parts)]
            assert len(said) == 1, kind
            ((ids, begin, _),) = said
            assert_served(tokenizer, ids[:begin], prompt, None if parts[1] else empty)
        # DPO shows the last turn, as chosen and as rejected, behind the same prompt.
        thoughts = turns[-1].get("reasoning_content")
        pair = {"prompt": messages[:-1], "chosen": [turns[-1]], "rejected": [say("nein.", "nie" if thoughts else "")]}
        ids = list(tokenize_pairs([row(**pair, tools=tools)], tokenizer, max_length=9999)[0][0]["prompt_ids"])
        assert_served(tokenizer, ids, asked[-1], None if thoughts else off[-1])


def assert_served(tokenizer: Any, before: list[int], prompt: list[int], empty: list[int] | None) -> None:
    """The prompt is before an answer; or, without thoughts, the one of thinking off, or the prompt and empty ones."""
    if before in (prompt, empty):
        return
    # No switch in the template, or another one: the prompt, and empty thoughts or white space behind it.
    rest = tokenizer.decode(before[len(prompt) :])
    assert before[: len(prompt)] == prompt, tokenizer.decode(before)
    assert not rest.strip() or (empty is not None and is_empty(tokenizer.decode(prompt) + rest)), repr(rest)


def is_empty(text: str) -> bool:
    """Whether a text ends with empty thoughts."""
    return "".join(text.split()).endswith(("<think></think>", "<|channel>thought<channel|>"))
