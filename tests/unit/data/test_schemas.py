"""Every format a row may have, and every way it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hftune.data.schemas import to_conversation, to_preference, to_prompt, to_text
from hftune.data.sources import find_files, read_rows
from hftune.errors import DataError
from tests.unit.data.helpers import assistant, call, row, user

SYSTEM = {"role": "system", "content": "S"}
HG = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]
UA = [user("Q"), assistant("A")]
CALL = '{"name": "f", "arguments": {"x": 1}}'
TOOL = {"name": "f", "description": "d", "parameters": {}}


def test_text() -> None:
    assert to_text(row(text=" 你好 ")) == " 你好 "
    assert to_text(row(content="c")) == "c"


SFT: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({"conversations": HG}, UA),
    ({"conversations": HG, "system": "S"}, [SYSTEM, *UA]),
    ({"conversations": HG, "system_prompt": "S", "system": ""}, [SYSTEM, *UA]),
    ({"conversations": [{"from": "system", "value": "S"}, *HG], "system": "S"}, [SYSTEM, *UA]),
    ({"conversations": UA}, UA),
    ({"conversations": [{"from": "user", "value": "Q"}, {"from": "chatgpt", "value": "A"}]}, UA),
    ({"conversations": [{"from": "Human", "value": "Q"}, {"from": "model", "value": "A"}]}, UA),
    ({"messages": [SYSTEM, *UA]}, [SYSTEM, *UA]),
    ({"messages": [user("Q"), assistant("A", weight=0), user("R"), assistant("B")]},
     [user("Q"), assistant("A", weight=0), user("R"), assistant("B")]),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}]}, assistant("A")]}, UA),
    ({"instruction": "Q", "input": "", "output": "A"}, UA),
    ({"instruction": "Q", "output": "A"}, UA),
    ({"instruction": "Q", "input": "I", "output": "A"}, [user("Q\nI"), assistant("A")]),
    ({"instruction": "", "input": "I", "output": "A", "system": "S"}, [SYSTEM, user("I"), assistant("A")]),
    ({"instruction": "R", "output": "B", "history": [["Q", "A"]], "system": "S"},
     [SYSTEM, *UA, user("R"), assistant("B")]),
    ({"instruction": "Q", "output": "A", "history": []}, UA),
    ({"prompt": "Q", "completion": "A"}, UA),
    ({"prompt": "Q", "response": "A"}, UA),
    ({"query": "Q", "response": "A"}, UA),
    ({"prompt": [SYSTEM, user("Q")], "completion": [assistant("A")]}, [SYSTEM, *UA]),
    ({"conversations": [HG[0], {"from": "function_call", "value": CALL}, {"from": "observation", "value": "1"}, HG[1]]},
     [user("Q"), call("f", x=1), {"role": "tool", "content": "1"}, assistant("A")]),
    ({"conversations": [HG[0], {"from": "function_call", "value": f"[{CALL}]"}, {"from": "tool", "value": "1"}, HG[1]]},
     [user("Q"), call("f", x=1), {"role": "tool", "content": "1"}, assistant("A")]),
    ({"messages": [user("Q"), {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"}, assistant("A")]},
     [user("Q"), assistant("", tool_calls=[
         {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}, "id": "c1"}]),
      {"role": "tool", "content": "1", "tool_call_id": "c1"}, assistant("A")]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "messages"), SFT)
def test_conversation(value: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    conversation = to_conversation(row(7, **value))
    assert conversation.messages == messages
    assert (conversation.tools, conversation.origin) == (None, "data.jsonl:7")


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ([TOOL], [{"type": "function", "function": TOOL}]),
        ('[{"name": "f"}]', [{"type": "function", "function": {"name": "f"}}]),
        ([{"type": "function", "function": TOOL}], [{"type": "function", "function": TOOL}]),
        ("", None),
        ("[]", None),
        ([], None),
        (None, None),
    ],
)
def test_tools(tools: Any, expected: Any) -> None:
    assert to_conversation(row(conversations=HG, tools=tools)).tools == expected


Q, C, R = [user("Q")], [assistant("C")], [assistant("R")]
PAIRS: list[tuple[dict[str, Any], list[dict[str, Any]], float | None]] = [
    ({"conversations": HG[:1], "chosen": "C", "rejected": "R"}, Q, None),
    ({"conversations": HG[:1], "system": "S", "chosen": "C", "rejected": "R"}, [SYSTEM, *Q], None),
    ({"conversations": HG[:1], "chosen": {"from": "gpt", "value": "C"}, "rejected": {"from": "gpt", "value": "R"}},
     Q, None),
    ({"conversations": HG[:1], "chosen": C[0], "rejected": R[0]}, Q, None),
    ({"messages": Q, "chosen": C, "rejected": R}, Q, None),
    ({"question": "Q", "response_chosen": "C", "response_rejected": "R"}, Q, None),
    ({"system": "S", "history": [["H", "A"]], "question": "Q", "response_chosen": "C", "response_rejected": "R"},
     [SYSTEM, user("H"), assistant("A"), *Q], None),
    ({"system": "", "history": None, "question": "Q", "response_chosen": "C", "response_rejected": "R"}, Q, None),
    ({"prompt": "Q", "chosen": "C", "rejected": "R", "margin": 2}, Q, 2.0),
    ({"prompt": Q, "chosen": C, "rejected": R, "score_chosen": 4.5, "score_rejected": 2}, Q, 2.5),
    ({"prompt": "Q", "chosen": "C", "rejected": "R", "score_chosen": 4.5}, Q, None),
    ({"instruction": "Q", "input": "I", "chosen": "C", "rejected": "R"}, [user("Q\nI")], None),
    ({"chosen": [*Q, *C], "rejected": [*Q, *R]}, Q, None),
    ({"prompt": "Q", "chosen": [*Q, *C], "rejected": [*Q, *R]}, Q, None),
    ({"prompt": "Q", "chosen": [SYSTEM, *Q, *C], "rejected": [SYSTEM, *Q, *R]}, [SYSTEM, *Q], None),
    ({"chosen": [*Q, assistant("same"), user("more"), *C], "rejected": [*Q, assistant("same"), user("more"), *R]},
     [*Q, assistant("same"), user("more")], None),
]  # fmt: skip


@pytest.mark.parametrize(("value", "prompt", "margin"), PAIRS)
def test_preference(value: dict[str, Any], prompt: list[dict[str, Any]], margin: float | None) -> None:
    preference = to_preference(row(**value))
    assert preference.prompt == prompt
    assert (preference.chosen, preference.rejected, preference.margin) == (C, R, margin)


@pytest.mark.parametrize(
    ("value", "messages", "extra"),
    [
        ({"prompt": "Q", "answer": 4}, Q, {"answer": 4}),
        ({"prompt": [SYSTEM, *Q], "solution": "x"}, [SYSTEM, *Q], {"solution": "x"}),
        ({"question": "Q", "answer": "4", "level": 2}, Q, {"answer": "4", "level": 2}),
        ({"instruction": "Q", "input": "I", "output": "A"}, [user("Q\nI")], {"output": "A"}),
        ({"query": "Q", "response": "A"}, Q, {"response": "A"}),
        ({"conversations": HG, "id": 1}, Q, {"id": 1}),
        ({"messages": [*UA, user("R"), assistant("B"), assistant("C")]}, [*UA, user("R")], {}),
        ({"conversations": HG[:1], "chosen": "C", "rejected": "R"}, Q, {"chosen": "C", "rejected": "R"}),
    ],
)
def test_prompt(value: dict[str, Any], messages: list[dict[str, Any]], extra: dict[str, Any]) -> None:
    prompt = to_prompt(row(**value))
    assert (prompt.messages, prompt.extra) == (messages, extra)


def test_prompts_do_not_share_messages_with_the_row() -> None:
    source = row(conversations=UA)
    to_prompt(source)
    assert source.value["conversations"] == UA


def turns(*values: tuple[Any, Any]) -> dict[str, Any]:
    return {"conversations": [{"from": role, "value": value} for role, value in values]}


REFUSED: list[tuple[Any, dict[str, Any], list[str]]] = [
    # Data for another script says so.
    (to_text, {"conversations": HG}, ["run_sft.py", "conversations", '"text"']),
    (to_text, {"prompt": "Q", "chosen": "C", "rejected": "R"}, ["run_rm.py or run_dpo.py"]),
    (to_text, {"question": "Q", "answer": "A"}, ["run_rl.py"]),
    (to_conversation, {"text": "t"}, ["run_pt.py", "its keys: text"]),
    (to_conversation, {"conversations": HG[:1], "chosen": "C", "rejected": "R"}, ["run_rm.py or run_dpo.py"]),
    (to_conversation, {"question": "Q", "response_chosen": "C", "response_rejected": "R"}, ["run_dpo.py"]),
    (to_conversation, {"question": "Q", "answer": "A"}, ["run_rl.py"]),
    (to_preference, {"conversations": HG}, ["run_sft.py", "chosen", "run_rm.py and run_dpo.py"]),
    (to_preference, {"text": "t"}, ["run_pt.py"]),
    (to_prompt, {"text": "t"}, ["run_pt.py", '"prompt"']),
    # Unknown keys show the nearest format first.
    (to_conversation, {"instuction": "Q", "output": "A"}, ["instuction, output", 'formats: {"instruction"']),
    (to_conversation, {}, ["its keys: none"]),
    (to_text, {"body": "t", "title": ""}, ["body, title (empty: title)"]),
    # Text.
    (to_text, {"text": " \n"}, ["blank"]),
    (to_text, {"text": 3}, ["must be text, found int"]),
    # Turns.
    (to_conversation, {"conversations": []}, ["an empty list"]),
    (to_conversation, {"conversations": "Q"}, ["found str"]),
    (to_conversation, {"conversations": ["Q"]}, ["conversations[0]", "from/value"]),
    (to_conversation, turns(("human", "Q"), ("narrator", "A")), ["conversations[1]", "'narrator'", "assistant"]),
    (to_conversation, turns(("human", "Q"), (None, "A")), ["unknown role None"]),
    (to_conversation, turns(("human", "Q"), ("gpt", " ")), ["conversations[1] is an empty assistant turn"]),
    (to_conversation, turns(("human", "Q"), ("gpt", None)), ["must be text, found NoneType"]),
    (to_conversation, turns(("human", [{"type": "image", "url": "x"}]), ("gpt", "A")), ["images"]),
    (to_conversation, turns(("system", "S"), ("human", "Q")), ["no assistant turn"]),
    (to_conversation, turns(("human", "Q"), ("observation", "1"), ("gpt", "A")), ["follows no assistant turn"]),
    (to_conversation, turns(("human", "Q"), ("function_call", "{no")), ["is not JSON", "Expecting"]),
    (to_conversation, turns(("human", "Q"), ("function_call", '{"arguments": {}}')), ["without a name"]),
    (to_conversation, turns(("human", "Q"), ("function_call", '{"name": "f", "arguments": [1]}')), ["an object"]),
    (to_conversation, turns(("human", "Q"), ("function_call", "[]")), ["empty list of function calls"]),
    (to_conversation, {"messages": [user("Q"), assistant("A", weight=-2)]}, ['"weight" -2']),
    (to_conversation, {"conversations": [SYSTEM, *UA], "system": "T"}, ["Keep one"]),
    (to_conversation, {"conversations": HG, "tools": "{"}, ['"tools" is not JSON']),
    (to_conversation, {"conversations": HG, "tools": [3]}, ["without a name"]),
    (to_conversation, {"instruction": "", "input": "", "output": "A"}, ['"instruction" is empty']),
    (to_conversation, {"instruction": "Q", "output": ""}, ["output[0] is an empty assistant turn"]),
    (to_conversation, {"instruction": "Q", "output": "A", "history": ["Q", "A"]}, ["[[question, answer], ...]"]),
    # Preference.
    (to_preference, {"prompt": "Q", "chosen": "C", "rejected": "C"}, ["are equal"]),
    (to_preference, {"prompt": "Q", "chosen": "C", "rejected": ""}, ["rejected[0] is an empty"]),
    (to_preference, {"conversations": HG, "chosen": "C", "rejected": "R"}, ["must end with a turn of user or tool"]),
    (to_preference, {"chosen": "C", "rejected": "R"}, ["its keys: chosen, rejected"]),
    (to_preference, {"chosen": [*Q, *C], "rejected": [user("other"), *R]}, ["user", "continue the same prompt"]),
    (to_preference, {"prompt": "P", "chosen": [*Q, *C], "rejected": [*Q, *R]}, ["do not share the prompt"]),
    (to_preference, {"prompt": "Q", "chosen": "C", "rejected": "R", "margin": "two"}, ['"margin"', "finite"]),
    (to_preference, {"prompt": "Q", "chosen": "C", "rejected": "R", "margin": float("nan")}, ["finite"]),
    # Prompts.
    (to_prompt, {"prompt": ""}, ['"prompt" is empty']),
    (to_prompt, {"messages": [SYSTEM]}, ["must end with a turn of user or tool", "system"]),
    (to_prompt, {"messages": [assistant("A")]}, ["found nothing"]),
]


@pytest.mark.parametrize(("read", "value", "words"), REFUSED)
def test_refused(read: Any, value: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        read(row(3, **value))
    assert caught.value.place == "data.jsonl:3"
    message = str(caught.value)
    assert not [word for word in words if word not in message], message


def test_samples(samples: Path) -> None:
    for row_ in read_rows(find_files(str(samples / "sft"), "--train_file_dir")):
        assert {"user", "assistant"} <= {message["role"] for message in to_conversation(row_).messages}
    for row_ in read_rows(find_files(str(samples / "preference"), "--train_file_dir")):
        assert to_preference(row_).chosen != to_prompt(row_).messages
