"""Broken and odd data files, made from a seed: the same on every machine."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

Record = dict[str, Any]
Rng = random.Random

WORDS = [
    "hello",
    "世界",
    "été",
    "🙂",
    "a\u2028b",
    'say "hi"',
    "back\\slash",
    "tab\there",
    "line\nbreak",
    "",
    " ",
    "[",
    "{",
]
ROLES = ["human", "gpt", "user", "assistant", "system", "tool", "function_call", "observation", "narrator", "", None, 7]
ODD: list[Any] = [None, "", " ", 0, -1, 1.5, True, [], {}, [[]], [None], ["x"], {"a": 1}, "text", 10**30, [[1, 2], [3]]]


# --- records ------------------------------------------------------------------------------------------------------


def words(rng: Rng) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 6))) + "."


def turns(rng: Rng, user: str = "user", assistant: str = "assistant") -> list[Record]:
    return [{"role": (user, assistant)[index % 2], "content": words(rng)} for index in range(2 * rng.randint(1, 3))]


def sharegpt(rng: Rng) -> list[Record]:
    return [{"from": turn["role"], "value": turn["content"]} for turn in turns(rng, "human", "gpt")]


def good_record(rng: Rng) -> Record:
    """A record in one of the known formats."""
    prompt = [{"role": "user", "content": words(rng)}]
    call = json.dumps({"name": "f", "arguments": {"x": 1}})
    makers: list[Callable[[], Record]] = [
        lambda: {"text": words(rng)},
        lambda: {"messages": turns(rng)},
        lambda: {"conversations": sharegpt(rng), "system": words(rng)},
        lambda: {
            "conversations": [{"from": "human", "value": "Q"}, {"from": "function_call", "value": call}],
            "tools": "[]",
        },
        lambda: {"instruction": words(rng), "input": words(rng), "output": words(rng), "history": [["q", "a"]]},
        lambda: {"prompt": words(rng), "completion": words(rng)},
        lambda: {"prompt": words(rng), "chosen": words(rng) + "1", "rejected": words(rng) + "2", "margin": 1},
        lambda: {"prompt": prompt, "chosen": [{"role": "assistant", "content": "c"}], "rejected": turns(rng)[1:2]},
        lambda: {"messages": turns(rng), "rejected_response": words(rng) + "3"},
        lambda: {"src": ["q", "r"], "tgt": ["a"], "response": [["x"], ["y"]], "sort": [1, 0]},
        lambda: {"src": ["q"], "tgt": ["a"], "label": [1]},
        lambda: {"question": words(rng), "answer": words(rng)},
        lambda: {"messages": turns(rng), "label": rng.random() < 0.5},
        lambda: {"conversation": [{"human": words(rng), "assistant": words(rng)}]},
    ]
    return rng.choice(makers)()


def bad_record(rng: Rng) -> Any:
    """A record that is wrong somewhere, or is not one at all."""
    record = good_record(rng)
    key = rng.choice(list(record))
    makers: list[Callable[[], Any]] = [
        lambda: {**record, key: rng.choice(ODD)},
        lambda: {name: None for name in record},
        lambda: {"messages": [{"role": rng.choice(ROLES), "content": words(rng)} for _ in range(3)]},
        lambda: {"conversations": [{"from": "system", "value": "only"}]},
        lambda: {"messages": [*turns(rng), {"role": "assistant", "content": rng.choice(ODD)}]},
        lambda: {
            "messages": [{**turn, rng.choice(["weight", "loss", "train"]): rng.choice(ODD)} for turn in turns(rng)]
        },
        lambda: {"messages": turns(rng), "tools": rng.choice([*ODD, "{", '[{"name": 1}]'])},
        lambda: {"messages": [{"role": "assistant", "tool_calls": rng.choice([*ODD, "{"])}]},
        lambda: {"conversations": rng.choice(ODD)},
        lambda: {"prompt": "q", "chosen": rng.choice(ODD), "rejected": rng.choice(ODD)},
        lambda: {"src": rng.choice(ODD), "tgt": rng.choice(ODD), "response": rng.choice(ODD), "sort": rng.choice(ODD)},
        lambda: {**record, "history": rng.choice(ODD), "system": rng.choice(ODD), "images": rng.choice(ODD)},
        lambda: {f"key{index}": index for index in range(rng.choice([0, 1, 400]))},
        lambda: nested(rng.choice([5, 99, 150, 3000])),
        lambda: rng.choice(ODD),
        lambda: [[record]],
        lambda: {**record, "label": rng.choice(ODD), "kto_tag": rng.choice(ODD)},
    ]
    return rng.choice(makers)()


def nested(depth: int) -> Any:
    value: Any = "deep"
    for level in range(depth):
        value = {"text": value} if level % 2 else [value]
    return {"text": value}


def encode(value: Any, rng: Rng) -> str:
    """JSON by hand where json.dumps would not nest so deep, and with the faults that it cannot make."""
    try:
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5, separators=rng.choice([(",", ":"), (", ", " : ")]))
    except RecursionError:
        text = '{"text": ' * 3000 + "1" + "}" * 3000
    fault = rng.random()
    if fault < 0.06:
        return text[: rng.randint(0, max(0, len(text) - 1))]
    if fault < 0.10:
        return text.replace("{", '{"text": "first", "text": "second", ', 1)
    if fault < 0.13:
        return text.replace("{", '{"text": "cut \\ud83d", ', 1)
    if fault < 0.16:
        return text.replace("{", rng.choice(['{"n": NaN, ', '{"n": 1e999, ', '{"n": ' + "9" * 5000 + ", "]), 1)
    if fault < 0.18:
        return text.replace("{", "{'single': 1, ", 1)
    return text


def records(rng: Rng) -> list[Any]:
    share = rng.choice([0.0, 0.3, 1.0])
    return [bad_record(rng) if rng.random() < share else good_record(rng) for _ in range(rng.randint(1, 12))]


# --- files --------------------------------------------------------------------------------------------------------


def jsonl(rng: Rng) -> tuple[str, bytes]:
    lines = [encode(record, rng) for record in records(rng)]
    if rng.random() < 0.04:
        lines.insert(rng.randint(0, len(lines)), json.dumps({"text": "x" * (2 << 20)}))
    if rng.random() < 0.2:
        lines.insert(rng.randint(0, len(lines)), rng.choice(["", "   ", "\t"]))
    end = rng.choice(["\n", "\r\n"])
    text = end.join(lines) + rng.choice(["", end])
    return rng.choice([".jsonl", ".ndjson", ".json"]), text.encode("utf-8", "surrogatepass")


def json_array(rng: Rng) -> tuple[str, bytes]:
    indent = rng.choice(["", " ", "\n  "])
    parts = [indent + encode(record, rng) for record in records(rng)]
    text = (
        rng.choice(["[", "\n[ ", ""])
        + rng.choice([",", " ,\n", ",", "\n"]).join(parts)
        + rng.choice(["]", "]\n", "", "]]"])
    )
    return ".json", text.encode("utf-8", "surrogatepass")


def text(rng: Rng) -> tuple[str, bytes]:
    return ".txt", rng.choice(["\n", "\r\n", "\n\n"]).join(words(rng) for _ in range(rng.randint(1, 20))).encode()


def table(rng: Rng) -> tuple[str, bytes]:
    suffix, delimiter = rng.choice([(".csv", ","), (".tsv", "\t")])
    header = rng.choice(
        [["prompt", "response"], ["text"], ["prompt", "chosen", "rejected"], ["a", "a"], [""], ["messages"]]
    )
    sink = io.StringIO()
    writer = csv.writer(sink, delimiter=delimiter, lineterminator=rng.choice(["\n", "\r\n"]))
    writer.writerow(header)
    for _ in range(rng.randint(0, 12)):
        count = len(header) if rng.random() < 0.8 else rng.randint(0, 5)
        writer.writerow([rng.choice([words(rng), json.dumps(turns(rng))]) for _ in range(count)])
    content = sink.getvalue()
    if rng.random() < 0.2:
        place = rng.randint(0, len(content))
        content = content[:place] + rng.choice(['"', 'x"y', '"\n"', "\x00"]) + content[place:]
    return suffix, content.encode()


def columns(rng: Rng, rows: int) -> dict[str, pa.Array]:
    """Arrow columns that a format might be in, some of types that no text has."""
    far = pa.array([2**62] * rows, pa.timestamp("ms"))
    makers: dict[str, Callable[[], pa.Array]] = {
        "text": lambda: pa.array([words(rng) for _ in range(rows)]),
        "messages": lambda: pa.array([turns(rng) for _ in range(rows)]),
        "prompt": lambda: pa.array([rng.choice([None, words(rng)]) for _ in range(rows)], pa.string()),
        "completion": lambda: (
            pa.array([b"\xff\xfe"] * rows, pa.binary()).view(pa.string())
            if rng.random() < 0.5
            else pa.array([b"bytes"] * rows)
        ),
        "chosen": lambda: pa.array([words(rng) for _ in range(rows)]).dictionary_encode(),
        "rejected": lambda: pa.array([Decimal("1.5")] * rows),
        "content": lambda: rng.choice([far, pa.array([datetime(2020, 1, 1)] * rows)]),
        "label": lambda: pa.array([rng.random() < 0.5 for _ in range(rows)]),
        "conversations": lambda: pa.array([[[("k", "v")]] * 2] * rows, pa.list_(pa.map_(pa.string(), pa.string()))),
        "score": lambda: pa.array([float("nan")] * rows),
    }
    names = rng.sample(list(makers), k=rng.randint(1, 4))
    return {name: makers[name]() for name in names}


def columnar(rng: Rng) -> tuple[str, bytes]:
    table_ = pa.table(columns(rng, rng.choice([0, 1, 5, 40])))
    sink = io.BytesIO()
    kind = rng.choice(["parquet", "stream", "file"])
    if kind == "parquet":
        pq.write_table(table_, sink, row_group_size=7)
    else:
        make = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with make(sink, table_.schema) as writer:
            writer.write_table(table_, max_chunksize=7)
    return ".parquet" if kind == "parquet" else ".arrow", sink.getvalue()


def damage(content: bytes, rng: Rng) -> bytes:
    """Bytes lost, added or changed, or another encoding."""
    place = rng.randint(0, len(content))
    makers: list[Callable[[], bytes]] = [
        lambda: content[:place],
        lambda: content[:place] + b"\x00" * rng.randint(1, 3) + content[place:],
        lambda: content[:place] + rng.choice([b"\xff", b"\xc3", b"\xed\xa0\x80"]) + content[place:],
        lambda: b"\xef\xbb\xbf" + content,
        lambda: content.decode("utf-8", "replace").encode(rng.choice(["utf-16", "gb18030", "utf-32"])),
        lambda: content[place:],
        lambda: bytes(rng.randrange(256) for _ in range(min(len(content), 300))),
        lambda: content.replace(b'"', b"'", 3),
    ]
    return rng.choice(makers)()


def fuzzed_file(seed: int) -> tuple[str, bytes]:
    """A file's name and bytes; about a third of all are damaged as bytes, about a fifth compressed."""
    rng = random.Random(seed)
    make = rng.choices([jsonl, json_array, text, table, columnar], weights=[5, 3, 1, 2, 2])[0]
    suffix, content = make(rng)
    if rng.random() < 0.35:
        content = damage(content, rng)
    if rng.random() < 0.2 and make is not columnar:
        packed, pack = rng.choice([(".gz", partial(gzip.compress, mtime=0)), (".zst", zstandard.compress)])
        suffix, content = suffix + packed, pack(content)
        if rng.random() < 0.4:
            content = damage(content, rng)
    return f"file{suffix}", content
