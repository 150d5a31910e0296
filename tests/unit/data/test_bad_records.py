"""Bad records wherever they stand: one error with its place, or dropped and counted; nothing else is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.data.compared_answers import to_preference
from hftune.data.counts import Counts, all_dropped
from hftune.data.encode import ChatEncoder, TextEncoder
from hftune.data.encode_pairs import LabelledEncoder, Limits, PairEncoder
from hftune.data.encode_prompts import PromptEncoder
from hftune.data.encode_rewards import RewardPairEncoder, StepEncoder
from hftune.data.encoder import Encoder, write_tokenised
from hftune.data.files import Row, chunks
from hftune.data.records import to_conversation, to_labelled, to_prompt, to_text
from hftune.errors import DataError
from tests.unit.data.helpers import assistant, make_tokenizer, user
from tests.unit.data.test_chunks import KINDS, read, write
from tests.unit.data.test_text_files import BAD_LINES

TOKENIZER = make_tokenizer()
CHUNK = 4
PAIR = {"prompt": "hello", "chosen": "the answer", "rejected": "no"}
STEPS = {"prompt": "hello", "completions": ["one", "two"], "labels": [True, False]}

ENCODERS: dict[str, tuple[Encoder, dict[str, Any]]] = {
    "text": (TextEncoder(TOKENIZER), {"text": "hello world"}),
    "chat": (ChatEncoder(TOKENIZER, max_length=40), {"messages": [user("hello"), assistant("the answer")]}),
    "chat whole": (ChatEncoder(TOKENIZER, max_length=None), {"messages": [user("hello"), assistant("the answer")]}),
    "weights": (
        ChatEncoder(TOKENIZER, max_length=40, turn_weights=True),
        {"messages": [user("hello"), assistant("the answer")]},
    ),
    "pairs": (PairEncoder(TOKENIZER, limits=Limits(60)), PAIR),
    "prompts": (PromptEncoder(TOKENIZER, max_prompt_length=60), {"prompt": "hello"}),
    "rewards": (RewardPairEncoder(TOKENIZER, limits=Limits(60)), PAIR),
    "labelled": (
        LabelledEncoder(TOKENIZER, limits=Limits(60)),
        {"prompt": "hello", "completion": "the answer", "label": True},
    ),
    "steps": (StepEncoder(TOKENIZER, max_length=60), STEPS),
}

BAD = [line for line, _ in BAD_LINES] + [
    '{"text": "x"}'.encode("utf-16-le"),
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"colour": "red"}',
    b'{"messages": 3, "x": "\\u0000"}',
    b'{"text"\r:\r}',
]

WHERE = {
    "beginning": [0, 1, 2, 3],
    "middle": [4, 5, 6, 7],
    "end": [8, 9, 10, 11],
    "all": list(range(12)),
    "all but one": [*range(5), *range(6, 12)],
}


def written(folder: Path, content: bytes, encoder: Encoder) -> tuple[Counts, int]:
    """What became of a file's records with `--on_bad_record drop`, and how many rows are on disk."""
    file = folder / "d.jsonl"
    file.write_bytes(content)
    out = folder / f"out-{random.random()}"
    out.mkdir()
    counts = write_tokenised(chunks([file], CHUNK), encoder, out, on_bad_record="drop")
    return counts, len(load_from_disk(str(out)))


@pytest.mark.parametrize("name", ENCODERS)
def test_no_record_at_all_is_an_empty_batch(name: str) -> None:
    encoder, _ = ENCODERS[name]
    columns = encoder.encode([], Counts())
    assert {*encoder.schema.names} <= {*columns} and not any(len(column) for column in columns.values())


@pytest.mark.parametrize(
    ("name", "where"), [*(("chat", where) for where in WHERE), *((name, "all but one") for name in ENCODERS)]
)
def test_a_chunk_of_bad_records_is_dropped(tmp_path: Path, name: str, where: str) -> None:
    encoder, record = ENCODERS[name]
    good = json.dumps(record).encode()
    lines = [b"{" if number in WHERE[where] else good for number in range(12)]
    counts, rows = written(tmp_path, b"\n".join(lines), encoder)
    bad = len(WHERE[where])
    assert (counts.rows, counts.used, counts.dropped, rows) == (12, 12 - bad, {"malformed JSON": bad}, 12 - bad)


@pytest.mark.parametrize("bad", BAD, ids=lambda line: ascii(line)[:40])
def test_whatever_is_bad_about_them(tmp_path: Path, bad: bytes) -> None:
    encoder, record = ENCODERS["chat"]
    good = json.dumps(record).encode()
    counts, rows = written(tmp_path, b"\r\n".join([good] * 5 + [bad] * 4 + [good] * 3) + b"\r\n", encoder)
    assert (counts.rows, counts.used, sum(counts.dropped.values()), rows) == (12, 8, 4, 8)
    with pytest.raises(DataError) as caught:
        write_tokenised(chunks([tmp_path / "d.jsonl"], CHUNK), encoder, tmp_path)
    assert caught.value.place == f"{tmp_path / 'd.jsonl'}:6"
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" \t\n", b"\n\r\n"])
@pytest.mark.parametrize("before", [True, False])
def test_600_blank_lines_are_nothing(tmp_path: Path, blank: bytes, before: bool) -> None:
    encoder, record = ENCODERS["chat"]
    good = json.dumps(record).encode() + b"\n"
    content = 600 * blank + good if before else good + 600 * blank
    assert written(tmp_path, b"\xef\xbb\xbf" + content, encoder)[0].used == 1


@settings(max_examples=25)
@given(
    kinds=st.lists(st.sampled_from(["good", "bad", "blank", "latin", "deep"]), min_size=1, max_size=24),
    end=st.sampled_from([b"\n", b"\r\n"]),
    mark=st.booleans(),
)
def test_every_line_is_used_dropped_or_blank(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], end: bytes, mark: bool
) -> None:
    encoder, record = ENCODERS["chat"]
    lines = {"good": json.dumps(record).encode(), "bad": b"{", "blank": b" ", "latin": b"\xff", "deep": b"[" * 2000}
    content = (b"\xef\xbb\xbf" if mark else b"") + b"".join(lines[kind] + end for kind in kinds)
    counts, rows = written(tmp_path_factory.mktemp("lines"), content, encoder)
    bad = sum(kind not in ("good", "blank") for kind in kinds)
    nothing = all(kind == "blank" for kind in kinds)
    assert counts.used == rows == kinds.count("good")
    assert sum(counts.dropped.values()) == bad + nothing  # a file without a record is one fault


def test_a_line_of_12_megabytes(tmp_path: Path) -> None:
    content = b'{"text": "hello world", "filler": "' + b"a " * (6 << 20) + b'"}\n'
    counts, _ = written(tmp_path, content, TextEncoder(TOKENIZER, block_size=64))
    assert counts.rows == 1 and not counts.dropped


def test_when_all_are_bad_the_way_out_is_not_a_length() -> None:
    counts = Counts(rows=3)
    counts.drop("malformed JSON", DataError("malformed JSON: x", place="a.jsonl:1"))
    error = all_dropped(counts, "--max_length")
    assert "a.jsonl:1" in error.cause and "--max_length" not in str(error)
    counts.drop("no trained token")
    assert all_dropped(counts, "--max_length").place == "--max_length"


CONVERTERS = (to_text, to_conversation, to_preference, to_prompt, to_labelled)
KEYS = [
    *("text", "messages", "conversations", "role", "content", "from", "value", "weight", "prompt", "completion"),
    *("chosen", "rejected", "rejected_response", "margin", "instruction", "input", "output", "history", "system"),
    *("tools", "tool_calls", "label", "kto_tag", "src", "tgt", "response", "sort", "question", "answer", "images"),
]
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", " ", "世", "user", "gpt", "{"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)
DAMAGE: dict[str, Callable[[bytes, int], bytes]] = {
    "cut": lambda content, at: content[:at],
    "without its beginning": lambda content, at: content[at:],
    "NULs": lambda content, at: content[:at] + b"\x00\x00" + content[at:],
    "no UTF-8": lambda content, at: content[:at] + b"\xed\xa0\x80\xff" + content[at:],
    "a quote": lambda content, at: content[:at] + b'"' + content[at:],
    "a flipped byte": lambda content, at: content[:at] + bytes([content[at] ^ 0x5A]) + content[at + 1 :],
    "a mark": lambda content, at: b"\xef\xbb\xbf" + content,
    "UTF-16": lambda content, at: content.decode("utf-8", "replace").encode("utf-16"),
}


def check_error(error: DataError, file: str) -> None:
    """The error says what, where and what to do, and has a kind of its own."""
    assert error.cause and "\n" not in error.cause and len(error.cause) < 3000
    assert error.fix and error.kind != "unusable record"
    assert (error.place or "").startswith(file)


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from([*KINDS]), damage=st.sampled_from([*DAMAGE]), at=st.floats(0, 1, exclude_max=True))
def test_every_record_of_a_damaged_file_is_read_or_said(
    tmp_path_factory: pytest.TempPathFactory, name: str, damage: str, at: float
) -> None:
    content = KINDS[name]()
    path = write(tmp_path_factory.mktemp("fuzz"), name, DAMAGE[damage](content, int(at * len(content))))
    rows, errors = read(path)
    assert rows or errors
    for error in errors:
        check_error(error, str(path))
    for row in rows:
        json.dumps(row.value, ensure_ascii=False).encode("utf-8")


def check_usable(made: Any) -> None:
    """Text that can be tokenised: all of it is Unicode, and every message has a role and a text."""
    if isinstance(made, str):
        assert made.strip()
        return
    parts = [getattr(made, name, []) for name in ("messages", "prompt", "chosen", "rejected", "completion")]
    for message in (message for part in parts for message in part):
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert isinstance(message["content"], str)


@settings(max_examples=80, deadline=None)
@given(record=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=5))
def test_every_odd_record_is_used_or_said(record: dict[str, Any]) -> None:
    for convert in CONVERTERS:
        try:
            check_usable(convert(Row(record, "a.jsonl", 1)))
        except DataError as error:
            check_error(error, "a.jsonl:1")
