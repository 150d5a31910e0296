"""The real script on data as it lies about: formats and kinds of files mixed in one folder, and what is wrong in it."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tests.conftest import CHATS


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """The same conversations as ShareGPT, messages, Alpaca, ERNIEKit and prompt/response, four records of each."""
    folder = tmp_path / "data folder"
    folder.mkdir()
    pairs = [(chat["messages"][0]["content"], chat["messages"][1]["content"]) for chat in CHATS[:20]]
    sharegpt = [{"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]} for q, a in pairs[:4]]
    (folder / "a.json").write_text(json.dumps(sharegpt, indent=2))
    # One of them with a note that nothing reads.
    question, answer = CHATS[4]["messages"]
    chats = [{"messages": [question, {**answer, "notes": "because"}]}, *CHATS[5:8]]
    lines = "".join(json.dumps(chat) + "\n" for chat in chats).encode()
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    erniekit = "".join(json.dumps({"src": [q], "tgt": [a]}) + "\n" for q, a in pairs[8:12]).encode()
    (folder / "c.jsonl.zst").write_bytes(zstandard.compress(erniekit))
    with open(folder / "d.csv", "w", newline="") as stream:
        csv.writer(stream).writerows([("prompt", "response"), *pairs[12:16]])
    table = pa.Table.from_pylist([{"instruction": q, "output": a} for q, a in pairs[16:20]])
    pq.write_table(table, folder / "e.parquet")
    (folder / "README.md").write_text("Not data.")
    (folder / "notes.docx").write_text("Not data either.")
    return folder


def flags(model: Path, data: Path, out: Path) -> list[str]:
    given = {"model_name_or_path": model, "train_file_dir": data, "output_dir": out, "max_steps": 1, "max_length": 128}
    return ["--use_cpu", *(part for name, value in given.items() for part in (f"--{name}", str(value)))]


def test_one_folder_of_many_formats(run: Callable, tiny_model: Path, mixed: Path, tmp_path: Path) -> None:
    finished = run("run_sft.py", *flags(tiny_model, mixed, tmp_path / "out"), warm=True).check()
    assert "1 file(s) in" in finished.output and "notes.docx" in finished.output
    counts = json.loads((tmp_path / "out" / "hftune.json").read_text())["data"]["train"]
    assert (counts["rows"], counts["used"], counts["dropped"]) == (20, 20, {})
    assert 'not read: "notes" of a turn of assistant, in 1 record(s) (first: ' in finished.output
    assert counts["unread"] == {'"notes" of a turn of assistant': [1, f"{mixed / 'b.jsonl.gz'}:1"]}
