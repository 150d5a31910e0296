"""A conversation as a record: it trains with the tokens that were said, and no file of somebody's is harmed."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from hftune.constants import IGNORE_INDEX
from hftune.data.encode import ChatEncoder
from hftune.errors import ArgumentError, DataError
from hftune.tools.chatting.chat import append_record
from tests.unit.data.helpers import row, tokenise_rows
from tests.unit.tools.chatting.scripted import INTERRUPT, chat_with, says, talker, template
from tests.unit.tools.chatting.test_chat import ADD, CALL

RECORD = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}
THOUGHT = "<think>\nHm.\n\nSo.\n</think>\n\n"


TEMPLATES = ["qwen2_5", "qwen3", "qwen3_training", "gptoss"]
CASES = [(name, kind) for name in [*TEMPLATES, "chatml", "llama3_1"] for kind in ("plain", "thoughts", "calls")]


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case[0] in TEMPLATES[:3] or case[1] != "calls"])
def test_a_saved_conversation_trains_what_was_said(name: str, kind: str, tmp_path: Path) -> None:
    """Ids of each answer and before it are those of the model, token by token, in one of the record's rows."""
    said = {"plain": ["Good  day.", "Yes."], "thoughts": [f"{THOUGHT}Good.", f"{THOUGHT}Yes."], "calls": [CALL, "4."]}
    if name == "gptoss":
        final, thought = "<|channel|>final<|message|>", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        said = {"plain": [f"{final}Good.", f"{final}Yes."], "thoughts": [f"{thought}{final}Good."] * 2}
    elif name.startswith("qwen3") and kind != "thoughts":
        # So it was trained to answer without thoughts; without this mark its template would write another text.
        said = {key: [f"<think>\n\n</think>\n\n{text}" for text in texts] for key, texts in said.items()}
    one = says(talker(chat_template=None if name == "chatml" else template(name)), *said[kind])
    ends = {"gptoss": ("<|return|>", "<|call|>"), "llama3_1": ("<|eot_id|>",)}.get(name, ())
    one.tokenizer.add_special_tokens({"additional_special_tokens": [*ends, "<|start|>", "<|channel|>"]})
    one.tokenizer.eos_token = ends[0] if ends else one.tokenizer.eos_token
    one.ends[:] = [one.tokenizer.eos_token_id]
    run = chat_with(one, tools=[ADD] if kind == "calls" else None)
    run("Hello", "/tool 4" if kind == "calls" else "Sure?", f"/save {tmp_path}/r.jsonl")
    (line,) = (tmp_path / "r.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record.get("tools") == ([ADD] if kind == "calls" else None)
    rows = list(tokenise_rows([row(**record)], ChatEncoder(one.tokenizer, max_length=None))[0])
    answers = [(call["prompt"], call["said"]) for call in one.model.calls]
    if name == "gptoss":
        answers[0][1].pop()  # its template ends an earlier answer by another token than the last one
    # Qwen3 writes an empty thought before the last answer alone.
    for prompt, ids in answers[-1:] if name == "qwen3" and kind != "thoughts" else answers:
        whole = [*prompt, *ids]
        assert any(row["input_ids"][: len(whole)] == whole for row in rows)
    last, (prompt, ids) = rows[-1], answers[-1]
    trained = [index for index in last["labels"][len(prompt) :] if index != IGNORE_INDEX]
    empty = last["labels"][len(prompt) : len(prompt) + len(ids)].count(IGNORE_INDEX)
    assert trained[: len(ids) - empty] == ids[empty:]


def test_template_arguments_are_part_of_the_record(tmp_path: Path) -> None:
    from hftune.template_arguments import give_arguments

    one = says(talker(chat_template=template("qwen3")), "Yes.")
    give_arguments(one.tokenizer, {"enable_thinking": False})
    chat = chat_with(one)("Hello", f"/save {tmp_path}/r.jsonl")
    assert json.loads((tmp_path / "r.jsonl").read_text())["chat_template_kwargs"] == {"enable_thinking": False}
    assert chat.speaker.messages[-1] == {"role": "assistant", "content": "Yes."}


def test_a_cut_answer_is_not_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.jsonl"
    run = chat_with(says(talker(), f"One, two{INTERRUPT}", "Three."))
    with pytest.raises(DataError, match="nothing to learn"):
        run("Count.", f"/save {file}")
    assert not file.exists()
    run("Go on.", f"/save {file}")
    assert [message.get("weight") for message in json.loads(file.read_text())["messages"]] == [None, 0, None, None]
    assert "1 cut answers are not trained" in capsys.readouterr().err


def test_records_are_appended(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    assert append_record(file, RECORD) == 1 and append_record(file, RECORD) == 2
    file.write_text(file.read_text().rstrip("\n"))
    assert append_record(file, RECORD) == 3, "also behind a line without an end"
    assert [json.loads(line) for line in file.read_text().splitlines()] == [RECORD] * 3
    others = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    file.write_text(json.dumps(others) + "\n\n")
    assert append_record(file, RECORD) == 2, "records of another format are records"


@pytest.mark.parametrize(
    "theirs",
    [b"# notes\n", b"[1, 2]", b'{"a": 1}\n', b"\x00\x01\xff", b'{"prompt": "a", "chosen": "b", "rejected": "c"}\n'],
)
def test_somebodys_file_is_left_alone(theirs: bytes, tmp_path: Path) -> None:
    file = tmp_path / "theirs.jsonl"
    file.write_bytes(theirs)
    with pytest.raises(ArgumentError, match="no JSONL of conversations"):
        append_record(file, RECORD)
    assert file.read_bytes() == theirs
    link = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / "elsewhere.jsonl")
    for name in (link, tmp_path, tmp_path / "no" / "folder.jsonl", tmp_path / "notes.txt"):
        with pytest.raises(ArgumentError):
            append_record(name, RECORD)
    assert not (tmp_path / "elsewhere.jsonl").exists()


def test_a_disk_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "r.jsonl"
    append_record(file, RECORD)
    before = file.read_bytes()

    def fails(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(ArgumentError, match="No space left"):
            append_record(file, RECORD)
    assert file.read_bytes() == before
    assert append_record(file, RECORD) == 2
