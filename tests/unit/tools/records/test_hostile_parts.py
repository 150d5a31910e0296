"""Parts of tokenised records that a stranger has made, with digests that fit: each is refused in one message, and
nothing of it reaches the cache."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hftune.digests import contents, sealed, unsealed
from hftune.tools.records.parts import INDEX
from tests.unit.tools.records.test_shards import chat, make_parts, refused, write

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def command(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "cache"))
    file = write(tmp_path / "a.jsonl", [chat(number) for number in range(300)])
    return ["run_sft", "--model_name_or_path", str(tiny_model), "--train_file_dir", str(file)]


def put(name: str, value: Any) -> Change:
    """A change of the first source's entry."""
    return lambda about: about["sources"][0].__setitem__(name, value)


def count(name: str, value: Any) -> Change:
    return lambda about: about["sources"][0]["counts"].__setitem__(name, value)


INDEXES: dict[str, Change] = {
    "of is a text": lambda about: about.update(of="2"),
    "of is half": lambda about: about.update(of=2.5),
    "of is true": lambda about: about.update(part=True, of=True),
    "sources are a number": lambda about: about.update(sources=5),
    "a source is a list": lambda about: about.update(sources=[[]]),
    "key is a list": put("key", [1]),
    "tokenizer is a list": put("tokenizer", ["x"]),
    "columns hold lists": count("columns", [[1]]),
    "settings are a text": put("settings", "abc"),
    "contents lead out": put("contents", {"../../../a.jsonl": [1, "x"]}),
    "contents are absolute": put("contents", {"/etc/passwd": [1, "x"]}),
    "contents are a list": put("contents", [[1]]),
    "counts are a list": put("counts", [1]),
    "an unknown count": count("nothing", 1),
    "rows are a text": count("rows", "5"),
    "rows are negative": count("rows", -5),
    "rows have no end": count("rows", float("inf")),
    "dropped is a list": count("dropped", [1]),
    "dropped counts texts": count("dropped", {"x": "y"}),
    "examples are a number": count("examples", 5),
}


def arrow(file: Path, change: Callable[[dict[str, Any]], Any], **others: Any) -> None:
    """Write the records of a part anew, as columns that were changed."""
    with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as stream:
        columns = stream.read_all().to_pydict()
        schema = stream.schema
    change(columns)
    table = pa.table(columns, schema=None if others.get("free") else schema)
    file.unlink()
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def wrong_offset(file: Path) -> None:
    """Lists that begin behind the end of their values: Arrow believes them, and reads elsewhere in the memory."""
    with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as stream:
        schema, batch = stream.schema, stream.read_next_batch()
    first = batch.column(0)
    offsets = np.array(first.offsets)
    offsets[1] = 0x7F000000  # the first and the last one are looked at by whoever makes an array
    bad = pa.Array.from_buffers(first.type, len(first), [None, pa.py_buffer(offsets)], children=[first.values])
    columns = [bad, *batch.columns[1:]]
    file.unlink()
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


RECORDS: dict[str, Callable[[Path], Any]] = {
    "ids beyond the vocabulary": lambda file: arrow(file, lambda found: found["input_ids"][0].__setitem__(0, 10**6)),
    "negative ids": lambda file: arrow(file, lambda found: found["input_ids"][0].__setitem__(0, -1)),
    "a column more": lambda file: arrow(file, lambda found: found.update(x=[1] * len(found["labels"])), free=True),
    "a column less": lambda file: arrow(file, lambda found: found.pop("labels"), free=True),
    "offsets that lead elsewhere": wrong_offset,
    "no Arrow": lambda file: file.write_bytes(b"no Arrow" * 100),
    "nothing": lambda file: file.write_bytes(b""),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "a second file": lambda file: shutil.copy(file, file.with_name("other.arrow")),
    "no file": lambda file: file.unlink(),
    "no state": lambda file: (file.parent / "state.json").write_text("[" * 5000),
    "a state that leads out": lambda file: (file.parent / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": f"../../../1/records/0/{file.name}"}]})
    ),
}


def test_an_index_of_another_form(command: list[str], tmp_path: Path) -> None:
    parts = make_parts(command, tmp_path / "parts", 2)
    index = parts[1] / INDEX
    original = index.read_text()
    for name, change in INDEXES.items():
        about = unsealed(original)
        change(about)
        index.write_text(json.dumps(sealed(about)))
        assert f"the part {parts[1]} is damaged" in refused(command, parts, tmp_path / "out").cause, name
    about = unsealed(original)
    about["sources"][0].update(key="other", settings={"max_length": "\x1b]52;c;x\x07" * 10_000})
    index.write_text(json.dumps(sealed(about)))
    cause = refused(command, parts, tmp_path / "out").cause
    assert "other records" in cause and "\x1b" not in cause and len(cause) < 5000


def test_records_of_a_stranger(command: list[str], tmp_path: Path) -> None:
    parts = make_parts(command, tmp_path / "parts", 2)
    shutil.copytree(parts[1], tmp_path / "kept")
    entries = sorted((tmp_path / "cache" / "datasets").glob("[0-9a-f]*")) if (tmp_path / "cache").exists() else []
    for name, change in RECORDS.items():
        shutil.rmtree(parts[1])
        shutil.copytree(tmp_path / "kept", parts[1])
        (file,) = (parts[1] / "records" / "0").glob("*.arrow")
        change(file)
        about = unsealed((parts[1] / INDEX).read_text())
        about["sources"][0]["contents"] = contents(parts[1] / "records" / "0")
        (parts[1] / INDEX).write_text(json.dumps(sealed(about)))
        assert f"the part {parts[1]} is damaged" in refused(command, parts, tmp_path / "out").cause, name
    found = sorted((tmp_path / "cache" / "datasets").glob("[0-9a-f]*")) if (tmp_path / "cache").exists() else []
    assert found == entries, "nothing of it is kept"
