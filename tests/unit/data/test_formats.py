"""Every format a row may have, every way it is refused, and what is passed over."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.compared_answers import to_preference
from hftune.data.files import Row
from hftune.data.formats import FORMATS, KTO, added, describe_unread, has_text, note_unread, placed, take_unread
from hftune.data.messages import parse_messages
from hftune.data.records import to_conversation, to_labelled, to_prompt, to_text
from hftune.errors import DataError
from hftune.tools.records.entry import describe_format
from tests.unit.data.helpers import (
    HG,
    SYSTEM,
    UA,
    C,
    Q,
    R,
    assistant,
    make_tokenizer,
    row,
    template,
    tokenize_chat,
    user,
)


def turns(*values: tuple[Any, Any]) -> dict[str, Any]:
    return {"conversations": [{"from": role, "value": value} for role, value in values]}


sft = to_conversation
REFUSED: list[tuple[Any, dict[str, Any], list[str]]] = [
    # Data for another script says so.
    (to_text, {"conversations": HG}, ["run_sft.py", "conversations", '"text"']),
    (to_text, {"prompt": "Q", "chosen": "C", "rejected": "R"}, ["run_rm.py or run_dpo.py"]),
    (sft, {"text": "t"}, ["run_pt.py", "its keys: text"]),
    (sft, {"conversations": HG[:1], "chosen": "C", "rejected": "R"}, ["run_rm.py or run_dpo.py"]),
    (sft, {"problem": "Q", "answer": "A"}, ["run_rl.py"]),
    (to_preference, {"conversations": HG}, ["run_sft.py", "chosen", "run_rm.py and run_dpo.py"]),
    (to_prompt, {"text": "t"}, ["run_pt.py", '"prompt"']),
    # Unknown keys show the nearest format first.
    (sft, {"instuction": "Q", "output": "A"}, ["instuction, output", 'formats: {"instruction"']),
    (sft, {}, ["its keys: none"]),
    (to_text, {"body": "t", "title": ""}, ["body, title (empty: title)"]),
    # Text.
    (to_text, {"text": " \n"}, ["blank"]),
    # Turns.
    (sft, {"conversations": []}, ["an empty list"]),
    (sft, {"conversations": "Q"}, ["found str"]),
    (sft, {"conversations": ["Q"]}, ["conversations[0]", "from/value"]),
    (sft, turns(("human", "Q"), ("narrator", "A")), ["conversations[1]", "'narrator'", "assistant"]),
    (sft, turns(("human", "Q"), ("gpt", " ")), ["conversations[1] is an empty assistant turn"]),
    (sft, turns(("human", "Q"), ("gpt", None)), ["must be text, found NoneType"]),
    (sft, turns(("human", [{"type": "image", "url": "x"}]), ("gpt", "A")), ["images"]),
    (sft, turns(("system", "S"), ("human", "Q")), ["no assistant turn"]),
    (sft, turns(("human", "Q"), ("observation", "1"), ("gpt", "A")), ["follows no assistant turn"]),
    (sft, turns(("human", "Q"), ("function_call", "{no")), ["is not JSON", "Expecting"]),
    (sft, turns(("human", "Q"), ("function_call", '{"name": "f", "arguments": [1]}')), ["an object"]),
    (sft, turns(("human", "Q"), ("function_call", "[]")), ["empty list of function calls"]),
    (sft, {"conversations": [SYSTEM, *UA], "system": "T"}, ["Keep one"]),
    (sft, {"conversations": HG, "tools": "{"}, ['"tools" is not JSON']),
    (sft, {"instruction": "", "input": "", "output": "A"}, ['"instruction" is empty']),
    (sft, {"instruction": "Q", "output": ""}, ["output[0] is an empty assistant turn"]),
    (sft, {"instruction": "Q", "output": "A", "history": ["Q", "A"]}, ["[[question, answer], ...]"]),
    # A bad answer is not to be learned as if it were good.
    (sft, {"messages": UA, "label": False}, ["labels (KTO)"]),
    (sft, {"conversations": UA, "kto_tag": True}, ["labels (KTO)"]),
    (sft, {"messages": UA, "images": ["a.png"]}, ["images", "text only"]),
    (sft, {"messages": [user("Q"), assistant("A", weight=0)]}, ["every assistant turn has the weight 0"]),
    (sft, {"messages": [user("Q"), assistant("A", weight=True)]}, ['"weight" True']),
    (sft, {"messages": [user("Q"), assistant("A", loss=0.5)]}, ['"loss" 0.5']),
    (sft, {"messages": [user("Q"), assistant("A", weight=float("inf"))]}, ['"weight" inf']),
    (sft, {"messages": [user("Q"), assistant("A", weight=1, loss=False)]}, ["contradicts itself"]),
    (sft, {"messages": [{**user("Q"), "train": True}, assistant("A")]}, ['"train" True', "--train_on_inputs"]),
    (sft, {"messages": [{**user("Q"), "tool_calls": [{"name": "f"}]}]}, ["turn of user with function calls"]),
    (sft, turns(("human", "Q"), ("function_call", '{"name": "f", "name": "g"}')), ['"name" is there twice']),
    (sft, {"src": ["Q", "R", "S"], "tgt": ["A"]}, ["3 questions", "1 answers"]),
    (sft, {"src": ["Q"], "tgt": ["A"], "label": [1, 1]}, ["list of 1 weights"]),
    # Labels.
    (to_labelled, {"prompt": "Q", "completion": "C", "label": "good"}, ['"label" must be true or false']),
    (to_labelled, {"messages": UA[:1], "label": True}, ["no answer"]),
    (to_labelled, {"messages": UA}, ["no format that training on labels (KTO)", '"label": true or false']),
    # Preference.
    (to_preference, {"messages": Q, "rejected_response": "R"}, ["no better answer"]),
    (to_preference, {"messages": [*Q, *C], "rejected_response": "C"}, ["are equal"]),
    (to_preference, {"prompt": Q, "chosen": [{**C[0], "weight": 1}], "rejected": C}, ["are equal"]),
    (to_preference, {"prompt": Q, "chosen": [{**C[0], "weight": 0.5}], "rejected": R}, ["the weight 0.5"]),
    (to_labelled, {"messages": [*Q, {**C[0], "loss": False}], "label": True}, ["the weight 0.0"]),
    (to_preference, {"src": ["Q"], "response": [["C"], ["R"]], "sort": [1, 1]}, ["two different numbers"]),
    (to_preference, {"src": ["Q"], "response": [["C"]], "sort": [1]}, ['"response" must hold two answers']),
    (to_preference, {"prompt": "Q", "chosen": "C", "rejected": "C"}, ["are equal"]),
    (to_preference, {"conversations": HG, "chosen": "C", "rejected": "R"}, ["must end with a turn of user or tool"]),
    (to_preference, {"chosen": "C", "rejected": "R"}, ["its keys: chosen, rejected"]),
    (to_preference, {"prompt": "P", "chosen": [*Q, *C], "rejected": [*Q, *R]}, ["do not share the prompt"]),
    (to_preference, {"prompt": "Q", "chosen": "C", "rejected": "R", "margin": "two"}, ['"margin"', "finite"]),
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
    # Records that are dropped are counted under it, so it must say something and hold nothing of the record.
    assert caught.value.kind != DataError("").kind and len(caught.value.kind) <= 40 and '"' not in caught.value.kind


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
    ("value", "text"),
    [("a", True), (" ", False), (None, False), (7, False), ({"a": 1, "b": ["", "c"]}, True), ([{}, {"a": ""}], False)],
)
def test_text(value: Any, text: bool) -> None:
    assert has_text(value) == text


def test_records_are_counted() -> None:
    take_unread()
    read = placed(lambda row: [note_unread("x"), note_unread("x")])
    for line in (1, 3):
        read(Row({}, "f", line))
    found = take_unread()
    assert found == {"x": [2, "f:1"]} and take_unread() == {}
    both = added(found, {"x": [1, "g:1"], "y": [4, "g:2"]})
    assert both == {"x": [3, "f:1"], "y": [4, "g:2"]}
    assert next(describe_unread(both)) == "not read: x, in 3 record(s) (first: f:1)"


def test_names_that_never_end_are_counted_together() -> None:
    take_unread()
    for number in range(50):
        placed(lambda row: note_unread(f"x{row.line}"))(Row({}, "f", number))
    found = take_unread()
    assert len(found) == 21 and found["further fields and columns"] == [30, "f:20"]
    both = added(found, {"x3": [1, "g:1"], "new": [4, "g:2"]})
    assert len(both) == 21 and both["x3"] == [2, "f:3"] and both["further fields and columns"] == [34, "f:20"]


@pytest.mark.parametrize(
    ("turn", "what"),
    [
        (assistant("A", notes="because"), ['"notes" of a turn of assistant']),
        (assistant("A", meta={"by": ["me"]}, id=7, index=None), ['"meta" of a turn of assistant']),
        ({**user("Q"), "reasoning": "so"}, ['"reasoning" of a turn of user']),
        (assistant("A", reasoning={"effort": "high"}), ['"reasoning" of a turn of assistant']),
        ({"from": "gpt", "value": "A", "content": "B"}, ['"content" of a turn of assistant']),
        ({"role": "assistant", "content": "A", "value": "B"}, ['"value" of a turn of assistant']),
        ({"human": "Q", "assistant": "A", "notes": "because"}, ['"notes" of a turn of assistant']),
        ({"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "A"}]},
         ["parts of the type redacted_thinking"]),
        (assistant("A", weight=1, reasoning="", tool_calls=[], name="n", train=True), []),
        ({"from": "gpt", "value": "A", "content": None, "role": None}, []),
    ],
)  # fmt: skip
def test_what_a_turn_holds_and_is_not_read(turn: dict[str, Any], what: list[str]) -> None:
    take_unread()
    parse_messages([turn], "messages")
    assert [*take_unread()] == what


def test_columns_of_thoughts_and_tools_that_no_template_writes() -> None:
    rows = [
        row(1, prompt="Q", completion="A", reasoning="because", thinking=None),
        row(2, messages=[user("Q"), assistant("A")], tools=[{"name": "f"}]),
    ]
    _, counts = tokenize_chat(rows, make_tokenizer(), max_length=None)
    assert counts.unread == {
        'the column "reasoning"': [1, "data.jsonl:1"],
        "tools, which the chat template does not write": [1, "data.jsonl:2"],
    }
    _, counts = tokenize_chat(rows[1:], make_tokenizer(template("qwen3")), max_length=None)
    assert counts.unread == {}


def test_a_run_counts_what_is_not_read() -> None:
    rows = [row(line, messages=[user("Q"), assistant("A", notes="n")]) for line in (1, 2)]
    rows.append(row(3, messages=[user("Q"), assistant("A", reasoning_effort="n")]))
    _, counts = tokenize_chat(rows, make_tokenizer(), max_length=None)
    assert counts.unread == {
        '"notes" of a turn of assistant': [2, "data.jsonl:1"],
        '"reasoning_effort" of a turn of assistant': [1, "data.jsonl:3"],
    }
    assert counts.to_dict()["unread"] == counts.unread
    _, others = tokenize_chat([row(messages=[user("Q"), assistant("A")])], make_tokenizer(), max_length=None)
    assert "unread" not in others.to_dict()
    others.add(counts)
    assert others.unread == counts.unread
