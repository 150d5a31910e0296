"""Conversations, texts, labelled answers and prompts of every format, in one form."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.records import read_answer, read_question, to_conversation, to_labelled, to_prompt, to_text
from hftune.errors import DataError
from tests.unit.data.helpers import HG, SYSTEM, TOOL, UA, C, Q, assistant, call, row, user

CALL = '{"name": "f", "arguments": {"x": 1}}'


def only_calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": call(name, **arguments)["tool_calls"]}


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
    # ms-swift.
    ({"conversation": [{"human": "Q", "assistant": "A"}], "system": "S"}, [SYSTEM, *UA]),
    ({"conversations": [{"from": "user", "value": "Q"}, {"from": "bot", "value": "A"}]}, UA),
    ({"messages": [user("Q"), {"role": "tool_call", "content": CALL}, {"role": "tool-call", "content": CALL},
                   {"role": "tool_response", "content": "1"}, {"role": "tool_response", "content": "2"},
                   assistant("A")]},
     [user("Q"), assistant("", tool_calls=call("f", x=1)["tool_calls"] * 2), {"role": "tool", "content": "1"},
      {"role": "tool", "content": "2"}, assistant("A")]),
    ({"messages": [user("Q"), assistant("so"), {"role": "tool_call", "content": CALL}]},
     [user("Q"), assistant("so", tool_calls=call("f", x=1)["tool_calls"])]),
    ({"query": "R", "response": "B", "history": '[["Q", "A"]]'}, [*UA, user("R"), assistant("B")]),
    ({"query": "R", "response": "B", "history": UA}, [*UA, user("R"), assistant("B")]),
    # Real ShareGPT records have users who say nothing, to make a cut answer go on.
    ({"conversations": [*HG, {"from": "human", "value": ""}, HG[1]]}, [*UA, user(""), assistant("A")]),
    # ERNIEKit.
    ({"src": ["Q", "R"], "tgt": ["A", "B"], "label": [0, 1], "system": "S"},
     [SYSTEM, user("Q"), assistant("A", weight=0.0), user("R"), assistant("B", weight=1.0)]),
    ({"src": "Q", "tgt": ["A"]}, UA),
    # MedicalGPT's converter, Dolly.
    ({"input": "Q", "output": "A"}, UA),
    ({"instruction": "Q", "response": "A"}, UA),
    ({"question": "Q", "response": "A"}, UA),
    ({"question": "Q", "answer": "A"}, UA),
    # OpenAI: calls before 2024, and without arguments.
    ({"messages": [user("Q"),
                   {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}},
                   {"role": "function", "name": "f", "content": "1"}, assistant("A")]},
     [user("Q"), call("f"), {"role": "tool", "content": "1", "name": "f"}, assistant("A")]),
    ({"messages": [user("Q"), assistant("A", reasoning_content="because")]},
     [user("Q"), assistant("A", reasoning_content="because")]),
    # LLaMA-Factory (v1) and Anthropic write a turn in parts.
    ({"messages": [{"role": "user", "content": [{"type": "text", "value": "Q"}], "loss_weight": 0.0},
                   {"role": "assistant", "loss_weight": 0.5, "content": [
                       {"type": "reasoning", "value": "because"}, {"type": "text", "value": "A"},
                       {"type": "tool_call", "value": CALL}]}]},
     [user("Q"), assistant("A", reasoning_content="because", weight=0.5, **only_calls("f", x=1))]),
    ({"messages": [user("Q"), {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "because"}, {"type": "tool_use", "name": "f", "input": {"x": 1}}]}]},
     [user("Q"), assistant("", reasoning_content="because", **only_calls("f", x=1))]),
    # Tables: JSON in cells, and null for the columns of other records.
    ({"messages": '[{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]'}, UA),
    ({"conversations": None, "messages": None, "prompt": "Q", "completion": "A", "text": None}, UA),
    ({"messages": [{"role": "user", "content": "Q", "from": None, "train": None}, assistant("A", tool_calls=None)]},
     UA),
]  # fmt: skip


@pytest.mark.parametrize(("value", "messages"), SFT)
def test_conversation(value: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    conversation = to_conversation(row(7, **value))
    assert conversation.messages == messages
    assert conversation.tools is None


def test_an_input_belongs_to_its_instruction_alone() -> None:
    value = {"instruction": "do", "prompt": "ask", "input": "this"}
    assert read_question(row(**value), "instruction") == [user("do\nthis")]
    assert read_question(row(**value), "prompt") == [user("ask")]
    with pytest.raises(DataError, match='"instruction" is empty'):
        read_question(row(instruction=" ", input=""), "instruction")


@pytest.mark.parametrize("value", ["A", assistant("A"), [assistant("A")], {"from": "gpt", "value": "A"}])
def test_an_answer(value: Any) -> None:
    assert read_answer(row(response=value), "response") == [assistant("A")]


def test_text() -> None:
    assert to_text(row(text=" 你好 ")) == " 你好 "
    assert to_text(row(content="c")) == "c"
    assert to_text(row(text=None, content="c")) == "c"
    assert to_text(row(messages=[assistant("ms-swift writes text so")])) == "ms-swift writes text so"


@pytest.mark.parametrize(
    ("value", "prompt", "label"),
    [
        ({"prompt": "Q", "completion": "C", "label": True}, Q, True),
        ({"prompt": Q, "completion": C, "label": False}, Q, False),
        ({"messages": [SYSTEM, *UA, *Q, *C], "label": 1}, [SYSTEM, *UA, *Q], True),
        ({"conversations": [*Q, *C], "kto_tag": False}, Q, False),
        ({"instruction": "Q", "input": "I", "output": "C", "kto_tag": "true"}, [user("Q\nI")], True),
        ({"prompt": "Q", "completion": "C", "label": 1.0}, Q, True),
        ({"query": "Q", "response": "C", "label": "0", "history": [["Q", "A"]]}, [*UA, *Q], False),
    ],
)
def test_labelled(value: dict[str, Any], prompt: list[dict[str, Any]], label: bool) -> None:
    labelled = to_labelled(row(**value, tools=[TOOL]))
    assert (labelled.prompt, labelled.completion, labelled.label) == (prompt, C, label)
    assert labelled.tools == [{"type": "function", "function": TOOL}]


@pytest.mark.parametrize(
    ("value", "messages", "extra"),
    [
        ({"prompt": "Q", "answer": 4}, Q, {"answer": 4}),
        ({"prompt": [SYSTEM, *Q], "solution": "x"}, [SYSTEM, *Q], {"solution": "x"}),
        ({"question": "Q", "answer": "4", "level": 2}, Q, {"answer": "4", "level": 2}),
        ({"instruction": "Q", "input": "I", "output": "A"}, [user("Q\nI")], {"output": "A"}),
        ({"query": "Q", "response": "A"}, Q, {"response": "A"}),
        ({"conversations": HG, "id": 1}, Q, {"id": 1}),
        ({"problem": "Q", "solution": "x", "ground_truth": "4"}, Q, {"solution": "x", "ground_truth": "4"}),
        ({"prompt": Q, "reward_model": {"ground_truth": "4"}}, Q, {"reward_model": {"ground_truth": "4"}}),
        ({"src": ["Q"], "tgt": ["A"], "answer": 1}, Q, {"answer": 1}),
        ({"src": '["Q", "R"]', "tgt": "A"}, [*UA, user("R")], {}),
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
