"""Bad records wherever they stand: one error with its place, or dropped and counted; nothing else is lost."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.data.counts import Counts, all_dropped
from hftune.data.encode import ChatEncoder, TextEncoder
from hftune.data.encode_pairs import LabelledEncoder, Limits, PairEncoder
from hftune.data.encode_prompts import PromptEncoder
from hftune.data.encode_rewards import RewardPairEncoder, StepEncoder
from hftune.data.encoder import Encoder, write_tokenised
from hftune.data.files import chunks
from hftune.errors import DataError
from tests.unit.data.helpers import assistant, make_tokenizer, user
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


def test_when_all_are_bad_the_way_out_is_not_a_length() -> None:
    counts = Counts(rows=3)
    counts.drop("malformed JSON", DataError("malformed JSON: x", place="a.jsonl:1"))
    error = all_dropped(counts, "--max_length")
    assert "a.jsonl:1" in error.cause and "--max_length" not in str(error)
    counts.drop("no trained token")
    assert all_dropped(counts, "--max_length").place == "--max_length"
