"""Every format a row may have, and every way it is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hftune.data.readers.columns import apply_columns, parse_columns
from hftune.data.readers.files import find_files
from hftune.data.records.conversations import to_conversation
from hftune.data.records.formats import FORMATS, KTO, unknown_format
from hftune.data.records.labelled import to_labelled
from hftune.data.records.preferences import to_preference
from hftune.data.records.prompts import to_prompt
from hftune.data.records.texts import to_text
from hftune.errors import DataError
from hftune.tools.records.recognition import describe_format
from tests.unit.data.helpers import assistant, call, read_rows, row, user

SYSTEM = {"role": "system", "content": "S"}
HG = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]
UA = [user("Q"), assistant("A")]
CALL = '{"name": "f", "arguments": {"x": 1}}'
TOOL = {"name": "f", "description": "d", "parameters": {}}


def test_text() -> None:
    assert to_text(row(text=" 你好 ")) == " 你好 "
    assert to_text(row(content="c")) == "c"
    assert to_text(row(text=None, content="c")) == "c"
    assert to_text(row(messages=[assistant("ms-swift writes text so")])) == "ms-swift writes text so"


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


W = "weight"


def only_calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": call(name, **arguments)["tool_calls"]}


@pytest.mark.parametrize(
    ("value", "messages"),
    [
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
    ],
)  # fmt: skip
def test_conversations_of_other_tools(value: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    assert to_conversation(row(**value)).messages == messages


@pytest.mark.parametrize(
    ("given", "weight"),
    [
        ({"weight": 0.5}, 0.5),
        ({"weight": 0}, 0.0),
        ({"weight": 3}, 3.0),
        ({"loss_scale": 2.0}, 2.0),
        ({"train": False}, 0.0),
        ({"train": True}, 1.0),
        ({"loss": False}, 0.0),
        ({"loss": False, "weight": 0}, 0.0),
        ({"loss": None, "weight": None}, None),
    ],
)
def test_weights_of_turns(given: dict[str, Any], weight: float | None) -> None:
    value = [user("Q"), assistant("A", **given), user("R"), {**assistant("B"), "loss": True}]
    found = to_conversation(row(messages=value)).messages[1]
    assert found == (assistant("A") if weight is None else assistant("A", weight=weight))
    assert not isinstance(found.get(W), bool)


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
    # Strings of numbers, as CSV has them.
    ({"prompt": "Q", "chosen": "C", "rejected": "R", "margin": "2"}, Q, 2.0),
    ({"prompt": "Q", "chosen": "C", "rejected": "R", "chosen_score": 3, "rejected_score": 1}, Q, 2.0),
    ({"prompt": "Q", "chosen": "C", "rejected": "R", "chosen_rating": 3, "rejected_rating": 1}, Q, 2.0),
    # TRL's implicit prompt as JSON in a cell, and Anthropic's dialogues.
    ({"chosen": json.dumps([*Q, *C]), "rejected": json.dumps([*Q, *R])}, Q, None),
    ({"chosen": "\n\nHuman: Q\n\nAssistant: C", "rejected": "\n\nHuman: Q\n\nAssistant: R"}, Q, None),
    # ms-swift: all behind the last question is replaced.
    ({"messages": [*Q, *C], "rejected_response": "R"}, Q, None),
    ({"messages": [SYSTEM, *UA, user("S"), *C], "rejected_response": R}, [SYSTEM, *UA, user("S")], None),
    ({"messages": [*Q, *C], "rejected_messages": [*Q, *R]}, Q, None),
    ({"query": "Q", "response": "C", "rejected_response": "R", "system": "S"}, [SYSTEM, *Q], None),
    # LLaMA-Factory's newest format and its first.
    ({"chosen_messages": [*Q, {**C[0], "loss_weight": 1}], "rejected_messages": [*Q, R[0]]}, Q, None),
    ({"instruction": "Q", "input": "I", "output": ["C", "R"]}, [user("Q\nI")], None),
    # ERNIEKit: the higher number is better; numbers other than 0 and 1 are scores.
    ({"src": ["Q", "R"], "tgt": ["A"], "response": [["C"], ["R"]], "sort": [1, 0]}, [*UA, user("R")], None),
    ({"src": ["Q"], "tgt": [], "response": ["R", "C"], "sort": [1.5, 4]}, Q, 2.5),
    ({"src": ["Q"], "response": [["C"], ["R"]], "sort": [2, 1], "system": "S"}, [SYSTEM, *Q], 1.0),
    # Parquet gives every record all columns.
    ({"prompt": "Q", "chosen": "C", "rejected": "R", "conversations": None, "rejected_response": None}, Q, None),
    ({"chosen": [*Q, assistant("same"), user("more"), *C], "rejected": [*Q, assistant("same"), user("more"), *R]},
     [*Q, assistant("same"), user("more")], None),
]  # fmt: skip


@pytest.mark.parametrize(("value", "prompt", "margin"), PAIRS)
def test_preference(value: dict[str, Any], prompt: list[dict[str, Any]], margin: float | None) -> None:
    preference = to_preference(row(**value))
    assert preference.prompt == prompt
    assert (preference.chosen, preference.rejected, preference.margin) == (C, R, margin)


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
    # A bad answer is not to be learned as if it were good.
    (to_conversation, {"messages": UA, "label": False}, ["labels (KTO)"]),
    (to_conversation, {"conversations": UA, "kto_tag": True}, ["labels (KTO)"]),
    (to_conversation, {"messages": UA, "images": ["a.png"]}, ["images", "text only"]),
    (to_conversation, {"messages": [user("Q"), assistant("A", weight=0)]}, ["every assistant turn has the weight 0"]),
    (to_conversation, {"messages": [user("Q"), assistant("A", weight=True)]}, ['"weight" True']),
    (to_conversation, {"messages": [user("Q"), assistant("A", loss=0.5)]}, ['"loss" 0.5']),
    (to_conversation, {"messages": [user("Q"), assistant("A", weight=float("inf"))]}, ['"weight" inf']),
    (to_conversation, {"messages": [user("Q"), assistant("A", weight=1, loss=False)]}, ["contradicts itself"]),
    (
        to_conversation,
        {"messages": [{**user("Q"), "train": True}, assistant("A")]},
        ['"train" True', "--train_on_inputs"],
    ),
    (
        to_conversation,
        {"messages": [{**user("Q"), "tool_calls": [{"name": "f"}]}]},
        ["turn of user with function calls"],
    ),
    (to_conversation, {"messages": "[{]"}, ['"messages" is not JSON']),
    (
        to_conversation,
        turns(("human", "Q"), ("function_call", '{"name": "f", "name": "g"}')),
        ['"name" is there twice'],
    ),
    (to_conversation, {"src": ["Q", "R", "S"], "tgt": ["A"]}, ["3 questions", "1 answers"]),
    (to_conversation, {"src": ["Q"], "tgt": ["A"], "label": [1, 1]}, ["list of 1 weights"]),
    (
        to_conversation,
        {"conversation": [{"human": "Q", "assistant": ""}]},
        ["conversation[0] is an empty assistant turn"],
    ),
    # Labels.
    (to_labelled, {"prompt": "Q", "completion": "C", "label": "good"}, ['"label" must be true or false']),
    (to_labelled, {"prompt": "Q", "completion": "C", "label": 2}, ['"label" must be true or false']),
    (to_labelled, {"messages": UA[:1], "label": True}, ["no answer"]),
    (to_labelled, {"messages": UA}, ["no format that training on labels (KTO)", '"label": true or false']),
    (to_labelled, {"prompt": "Q", "chosen": "C", "rejected": "R"}, ["run_rm.py or run_dpo.py"]),
    # Preference.
    (to_preference, {"messages": Q, "rejected_response": "R"}, ["no better answer"]),
    (to_preference, {"messages": [*Q, *C], "rejected_response": "C"}, ["are equal"]),
    (to_preference, {"prompt": Q, "chosen": [{**C[0], "weight": 1}], "rejected": C}, ["are equal"]),
    (to_preference, {"prompt": Q, "chosen": [{**C[0], "weight": 0.5}], "rejected": R}, ["the weight 0.5"]),
    (to_labelled, {"messages": [*Q, {**C[0], "loss": False}], "label": True}, ["the weight 0.0"]),
    (to_preference, {"instruction": "Q", "output": ["C"]}, ["found 1 entries"]),
    (to_preference, {"src": ["Q"], "response": [["C"], ["R"]], "sort": [1, 1]}, ["two different numbers"]),
    (to_preference, {"src": ["Q"], "response": [["C"]], "sort": [1]}, ['"response" must hold two answers']),
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


def test_every_refusal_has_a_kind_of_its_own() -> None:
    """Records that are dropped are counted under it, so it must say something and hold nothing of the record."""
    for read, value, _ in REFUSED:
        with pytest.raises(DataError) as caught:
            read(row(3, **value))
        assert caught.value.kind != DataError("").kind, value
        assert len(caught.value.kind) <= 40 and '"' not in caught.value.kind


@pytest.mark.parametrize("script", sorted(FORMATS))
def test_every_format_that_messages_suggest_is_read(script: str) -> None:
    """A record of just the columns that a format names is recognised as that format and read."""
    filling: dict[str, Any] = {
        "messages": [*Q, *C], "conversations": [*Q, *C], "conversation": [{"human": "Q", "assistant": "A"}],
        "src": ["Q"], "tgt": ["A"], "label": True, "kto_tag": True, "sort": [1, 0], "response": "C",
        "rejected_response": "R", "rejected": "R", "response_rejected": "R", "rejected_messages": [*Q, *R],
    }  # fmt: skip
    read = {"run_pt.py": to_text, "run_sft.py": to_conversation, "run_dpo.py": to_preference, KTO: to_labelled}
    for known in FORMATS[script]:
        value = {key: filling.get(key, "T") for key in known.keys}
        if script == "run_dpo.py":
            value |= {"response": ["C", "R"], "tgt": []} if "sort" in known.keys else {}
            value |= {"conversations": Q} if "conversations" in known.keys else {}
            value |= {"chosen": [*Q, *C], "rejected": [*Q, *R]} if known.keys == ("chosen", "rejected") else {}
        if script == "run_pt.py" and "messages" in known.keys:
            value = {"messages": C}
        assert read.get(script, to_prompt)(row(**value))
        assert describe_format(value, script).startswith(known.name) or script == "run_dpo.py"


@pytest.mark.parametrize(
    ("value", "script", "line"),
    [
        ({"conversations": HG, "system": "S", "tools": [TOOL], "id": 1}, "run_sft.py",
         'ShareGPT, because it has "conversations", with system, tools; not used: id'),
        ({"instruction": "Q", "input": "I", "output": "A"}, "run_sft.py",
         'Alpaca, because it has "instruction" and "output", with input'),
        ({"conversations": HG[:1], "chosen": "C", "rejected": "R"}, "run_rm.py",
         'chosen and rejected after ShareGPT, because it has "conversations" and "chosen" and "rejected"'),
        ({"question": "Q", "answer": "A"}, "run_rl.py",
         'question, because it has "question"; for the reward functions: answer'),
        ({"question": "Q", "answer": "A"}, "run_sft.py",
         "no format that run_sft.py reads; it looks like data for run_rl.py (prompts without an answer to learn)"),
        ({"messages": [*Q, *C], "rejected_response": "R"}, "run_dpo.py",
         'messages and rejected_response, because it has "messages" and "rejected_response"'),
        ({"a": 1}, "run_pt.py", "no format that run_pt.py reads"),
    ],
)  # fmt: skip
def test_a_record_is_explained(value: dict[str, Any], script: str, line: str) -> None:
    assert describe_format(value, script) == line


def test_mixed_formats_in_one_folder(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"messages": UA}) + "\n" + json.dumps({"prompt": "Q", "completion": "A"})
    )
    (tmp_path / "b.csv").write_text("query,response\nQ,A\n")
    pq.write_table(pa.Table.from_pylist([{"instruction": "Q", "output": "A"}, {"src": ["Q"], "tgt": ["A"]}],
                   pa.schema({"instruction": pa.string(), "output": pa.string(), "src": pa.list_(pa.string()),
                              "tgt": pa.list_(pa.string())})), tmp_path / "c.parquet")  # fmt: skip
    read = [to_conversation(row_).messages for row_ in read_rows(find_files(str(tmp_path), "--train_file_dir"))]
    assert read == [UA] * 5


def test_samples(samples: Path) -> None:
    for row_ in read_rows(find_files(str(samples / "sft"), "--train_file_dir")):
        assert {"user", "assistant"} <= {message["role"] for message in to_conversation(row_).messages}
    for row_ in read_rows(find_files(str(samples / "preference"), "--train_file_dir")):
        assert to_preference(row_).chosen != to_prompt(row_).messages


@pytest.mark.parametrize(
    ("value", "flag"),
    [
        ({"questoin": "a", "anser": "b"}, "Add --columns question=questoin response=anser. "),
        ({"prompt_": "a", "completions": "b"}, "Add --columns "),
        ({"alpha": "a", "omega": "b"}, ""),
        ({"questoin": "a"}, ""),
        ({"questoin": "a", "anser": "b", "third": "c"}, ""),
    ],
)
def test_keys_that_are_like_known_ones_can_be_renamed(value: dict[str, str], flag: str) -> None:
    problem = unknown_format(value, "data.jsonl:1", "run_sft.py")
    assert str(problem.fix).startswith(flag or "Rename the keys, or")
    if flag:
        columns = re.search(r"--columns (.*?)\. ", str(problem.fix))
        assert columns
        renamed = apply_columns(row(**value), parse_columns(columns[1]))
        assert to_conversation(renamed).messages[-1]["content"] == "b"
