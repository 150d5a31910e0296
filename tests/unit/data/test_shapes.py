"""The same three conversations in every shape that public sets have become the same rows, by templates of all families.

A conversation with thoughts, one with thoughts and a call, and one with two calls at once. What they become is held
against transformers: before each trained turn is what inference would be given, and behind it what the template writes.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from hftune.data.counts import Counts
from hftune.data.encode import ChatEncoder
from tests.unit.data.helpers import assistant, make_tokenizer, row, slow_if_alike, template, tokenize_pairs, user

NAMES = ["qwen3", "qwen3_5_think", "qwen3_6", "glm4moe", "gptoss"]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "c"}, "days": {"type": "integer", "description": "d"}},
    "required": ["city"],
}
BARE = [{"name": "get_weather", "description": "Weather.", "parameters": SCHEMA}]
OFFERED = [{"type": "function", "function": BARE[0]}]
ANTHROPIC = [{"name": "get_weather", "description": "Weather.", "input_schema": SCHEMA}]
ROME, OSLO = {"city": "Rome", "days": 2}, {"city": "Oslo", "days": 2}
SYSTEM = "Be kind."

Record = dict[str, Any]


def calls(*arguments: dict[str, Any], written: bool = False) -> list[dict[str, Any]]:
    """Calls as OpenAI has them, the arguments as text if asked."""
    made = [
        {"name": "get_weather", "arguments": json.dumps(one, ensure_ascii=False) if written else one}
        for one in arguments
    ]
    return [
        {"id": f"call0000{number}", "type": "function", "function": one} for number, one in enumerate(made, start=1)
    ]


def result(content: str, number: int) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call0000{number}", "content": content}


def bare(city: dict[str, Any]) -> str:
    return json.dumps({"name": "get_weather", "arguments": city})


def named(thoughts: str, *, written: bool = True, content: Any = None) -> list[Record]:
    """OpenAI's form, with thoughts under this name and `content` for none."""
    said = [
        [user("wie?"), assistant("eins.", **{thoughts: "hm ja"})],
        [
            {"role": "system", "content": SYSTEM},
            user("Rom?"),
            assistant(content, tool_calls=calls(ROME, written=written), **{thoughts: "erst holen"}),
            result("zwanzig", 1),
            assistant("Es sind 20.", **{thoughts: "nun sagen"}),
            user("und?"),
            assistant("zwei.", **{thoughts: "oh so"}),
        ],
        [
            user("Rom und Oslo?"),
            assistant(content, tool_calls=calls(ROME, OSLO, written=written)),
            result("zwanzig", 1),
            result("vier", 2),
            assistant("Rom."),
        ],
    ]
    return [{"messages": one} | ({"tools": OFFERED} if number else {}) for number, one in enumerate(said)]


def part(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, kind: text}


def use(city: dict[str, Any], number: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "get_weather", "input": city}


def used(text: Any, number: int) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": text}


def thinking(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": "EqQB"}


def anthropic() -> list[Record]:
    said: list[list[dict[str, Any]]] = [
        [user("wie?"), assistant([thinking("hm ja"), part("text", "eins.")])],
        [
            user("Rom?"),
            assistant([thinking("erst holen"), use(ROME, 1)]),
            user([used("zwanzig", 1)]),
            assistant([thinking("nun sagen"), part("text", "Es sind 20.")]),
            user([part("text", "und?")]),
            assistant([thinking("oh so"), part("text", "zwei.")]),
        ],
        [
            user("Rom und Oslo?"),
            assistant([use(ROME, 1), use(OSLO, 2)]),
            user([used([part("text", "zwanzig")], 1), used("vier", 2)]),
            assistant([{"type": "redacted_thinking", "data": "EmwK"}, part("text", "Rom.")]),
        ],
    ]
    first, second, third = ({"messages": one} for one in said)
    return [first, {**second, "tools": ANTHROPIC, "system": SYSTEM}, {**third, "tools": ANTHROPIC}]


def think(thoughts: str, text: str = "") -> str:
    return f"<think>\n{thoughts}\n</think>\n\n{text}"


def turns(*said: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"from": speaker, "value": text} for speaker, text in said]


def sharegpt(**more: Any) -> list[Record]:
    """LLaMA-Factory's and MedicalGPT's tools: calls as speakers, thoughts in their text."""
    return [
        {"conversations": turns(("human", "wie?"), ("gpt", think("hm ja", "eins.")))},
        {
            "conversations": turns(
                ("human", "Rom?"),
                ("function_call", think("erst holen", bare(ROME))),
                ("observation", "zwanzig"),
                ("gpt", think("nun sagen", "Es sind 20.")),
                ("human", "und?"),
                ("gpt", think("oh so", "zwei.")),
            ),
            "system": SYSTEM,
            "tools": json.dumps(BARE),
        },
        {
            "conversations": turns(
                ("human", "Rom und Oslo?"),
                ("function_call", f"[{bare(ROME)}, {bare(OSLO)}]"),
                ("observation", "zwanzig"),
                ("observation", "vier"),
                ("gpt", "Rom."),
            ),
            "tools": json.dumps(BARE),
        },
    ]


def in_text(call: Any, answer: Any, join: str = "\n", results: str = "user") -> list[Record]:
    """Calls and results in texts, as a model has written them and its template has shown them."""
    return [
        {"messages": [user("wie?"), assistant(think("hm ja", "eins."))]},
        {
            "messages": [
                {"role": "system", "content": SYSTEM},
                user("Rom?"),
                assistant(think("erst holen", call(ROME))),
                {"role": results, "content": answer("zwanzig")},
                assistant(think("nun sagen", "Es sind 20.")),
                user("und?"),
                assistant(think("oh so", "zwei.")),
            ],
            "tools": OFFERED,
        },
        {
            "messages": [
                user("Rom und Oslo?"),
                assistant(join.join([call(ROME), call(OSLO)])),
                {"role": results, "content": "\n".join([answer("zwanzig"), answer("vier")])},
                assistant("Rom."),
            ],
            "tools": json.dumps(OFFERED),
        },
    ]


def tagged(city: dict[str, Any]) -> str:
    return f"<tool_call>\n{bare(city)}\n</tool_call>"


def coder(city: dict[str, Any]) -> str:
    given = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in city.items())
    return f"<tool_call>\n<function=get_weather>\n{given}</function>\n</tool_call>"


def glm(city: dict[str, Any]) -> str:
    given = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in city.items())
    return f"<tool_call>get_weather\n{given}</tool_call>"


def responded(text: str) -> str:
    return f"<tool_response>\n{text}\n</tool_response>"


def react(city: dict[str, Any]) -> str:
    return f"Action: get_weather\nAction Input: {json.dumps(city)}\n"


SHAPES: dict[str, list[Record]] = {
    "OpenAI": named("reasoning_content"),
    "OpenAI, arguments as objects": named("reasoning_content", written=False, content=""),
    "vLLM, OpenRouter": named("reasoning"),
    "gpt-oss": named("thinking"),
    "Anthropic": anthropic(),
    "Hermes": in_text(tagged, responded, results="tool"),
    "Qwen in text": in_text(tagged, responded),
    "ReAct in text": in_text(react, responded, join=""),
    "ShareGPT": sharegpt(),
}
EXPECTED = named("reasoning_content", written=False, content="")


def rows_of(encoder: ChatEncoder, record: Record) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of the rows that a record is trained as."""
    made = encoder.encode([encoder.parse(row(**record))], Counts(rows=1))
    return [(ids.tolist(), labels.tolist()) for ids, labels in zip(made["input_ids"], made["labels"], strict=True)]


@pytest.mark.parametrize("name", slow_if_alike(NAMES))
def test_all_shapes_become_the_same_rows(name: str) -> None:
    encoder = ChatEncoder(make_tokenizer(template(name)), max_length=None)
    expected = [rows_of(encoder, record) for record in EXPECTED]
    for shape, records in SHAPES.items():
        for number, (record, rows) in enumerate(zip(records, expected, strict=True)):
            # Parsing must not change what it is given.
            before = json.dumps(record)
            assert rows_of(encoder, record) == rows, (shape, number, encoder.tokenizer.decode(rows[0][0]))
            assert json.dumps(record) == before


CALLS = {
    "qwen": lambda city: f'<tool_call>\n{{"name": "get_weather", "arguments": {json.dumps(city)}}}\n</tool_call>',
    "qwen3_": coder,
    "glm": lambda city: glm(city),
    "gptoss": lambda city: f"to=functions.get_weather<|channel|>commentary json<|message|>{json.dumps(city)}<|call|>",
}


@pytest.mark.parametrize("name", slow_if_alike(NAMES))
def test_pairs_of_medicalgpt(name: str) -> None:
    """Answers that are calls in a text, and calls as speakers in the prompt."""
    tokenizer = make_tokenizer(template(name))
    call = next(form for family, form in reversed(CALLS.items()) if name.startswith(family))
    asked = turns(("human", "Rom?"))
    rows = [
        row(conversations=asked, tools=json.dumps(BARE), chosen=react(ROME), rejected="Sonnig."),
        row(conversations=[*asked, *turns(("function_call", bare(ROME)), ("observation", "zwanzig"))],
            tools=json.dumps(BARE), chosen="Es sind 20.", rejected="20."),
    ]  # fmt: skip
    dataset, counts = tokenize_pairs(rows, tokenizer, max_length=4096)
    assert counts.used == 2
    chosen, rejected = tokenizer.decode(dataset[0]["chosen_ids"]), tokenizer.decode(dataset[0]["rejected_ids"])
    assert call(ROME) in chosen and "Sonnig." in rejected
    assert call(ROME) in tokenizer.decode(dataset[1]["prompt_ids"])
