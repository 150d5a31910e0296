"""`hftune data check` as a whole: what is said, written and left, and that nothing of the user's changes."""

from __future__ import annotations

import datetime
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hftune.cli import dispatch
from hftune.errors import ArgumentError, DataError, UserError
from hftune.logging import notices
from tests.unit.tools.checking import made

RNG = random.Random(20)
GOOD = [made.conversation(RNG, words=30, chinese=bool(number % 2)) for number in range(6)]


DROP = ("--drop", "unusable", "duplicate", "leak", "control_tokens", "encoding", "secret")


def checked(
    folder: Path, *words: object, drop: tuple[str, ...] = DROP
) -> tuple[dict[str, Any], list[tuple[str, str, int, str]]]:
    """The summary, and (kind, file's name, line, reason) of all findings."""
    given = [*map(str, words), *drop, "--output_dir", str(folder), "--preprocessing_num_workers", "1"]
    dispatch(["data", "check", *given])
    lines = [json.loads(line) for line in (folder / "findings.jsonl").read_text(encoding="utf-8").splitlines()]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary, [(one["kind"], Path(one["file"]).name, one["line"], one["reason"]) for one in lines]


def pair(prompt: str, good: str, bad: str) -> dict[str, Any]:
    return {"conversations": [{"from": "human", "value": prompt}], "chosen": good, "rejected": bad}


def test_what_is_left_out_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = made.write(tmp_path / "d.jsonl", *GOOD[:3], GOOD[0], {"nothing": 1}, GOOD[3])
    before = data.read_bytes()
    summary, found = checked(tmp_path / "o", data)
    assert [(kind, line) for kind, _, line, _ in found] == [("unusable", 5), ("duplicate", 4)]
    assert found[1][3] == f"equals {data}:1"
    assert summary["records"] == 6 and summary["kept"] == 4
    assert summary["left_out"] == {"unusable": 1, "duplicate": 1}
    # Nothing of the data has changed.
    lines = before.splitlines(keepends=True)
    assert (tmp_path / "o" / "kept" / "d.jsonl").read_bytes() == b"".join([*lines[:3], lines[5]])
    assert data.read_bytes() == before
    (about,) = summary["sources"].values()
    assert about["kinds"] == {"conversation": 5}
    said = capsys.readouterr().out
    assert "4 of 6 records are left; left out: 1 unusable, 1 duplicate" in said
    assert f"duplicate (equal to an earlier record), the first: {data}:4 equals {data}:1" in said
    assert sorted(file.name for file in (tmp_path / "o").iterdir()) == [
        "findings.jsonl",
        "hftune.json",
        "kept",
        "summary.json",
    ]


def test_records_that_cannot_be_used_are_like_no_other(tmp_path: Path) -> None:
    data = made.write(tmp_path / "d.jsonl", {"a": 1}, {"b": 2}, GOOD[0], {"a": 1})
    summary, found = checked(tmp_path / "o", data)
    assert {kind for kind, *_ in found} == {"unusable"} and summary["left_out"] == {"unusable": 3}


def test_evaluation_data_among_the_data_is_not_checked(tmp_path: Path) -> None:
    evaluation = made.write(tmp_path / "d" / "eval" / "e.jsonl", GOOD[0])
    made.write(tmp_path / "d" / "train.jsonl", *GOOD[:2])
    summary, found = checked(tmp_path / "o", tmp_path / "d", "--against", evaluation.parent)
    assert [(kind, name) for kind, name, *_ in found] == [("leak", "train.jsonl")] and summary["records"] == 2
    with pytest.raises(DataError, match="all files are evaluation data"):
        checked(tmp_path / "p", evaluation, "--against", evaluation)


def test_several_sources_and_files_of_one_name(tmp_path: Path) -> None:
    for number, name in enumerate(("a/x.jsonl", "a/deep/x.jsonl", "b/x.jsonl", "x.jsonl")):
        made.write(tmp_path / "d" / name, GOOD[number])
    asked = [tmp_path / "d" / name for name in ("a", "b", "x.jsonl")]
    # A file that two of them name is read once.
    summary, found = checked(tmp_path / "o", *asked, asked[0] / "x.jsonl")
    assert found == [] and [about["records"] for about in summary["sources"].values()] == [2, 1, 1]
    kept = {name: Path(file) for name, file in summary["files"].items()}
    assert [*kept] == ["kept/deep/x.jsonl", "kept/x.jsonl", "kept/2-x.jsonl", "kept/3-x.jsonl"]
    for name, file in kept.items():
        assert (tmp_path / "o" / name).read_bytes() == file.read_bytes()


def test_thoughts_and_calls_are_what_a_record_says(tmp_path: Path) -> None:
    """Records that differ in one of them alone are no duplicates."""
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    asked = {"role": "user", "content": "One and one?"}
    thoughts = [
        {"messages": [asked, {"role": "assistant", "content": "2", "reasoning_content": text}]}
        for text in ("Add them.", "Count them.")
    ]
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"x": x}}} for x in (1, 2)]
    called = [
        {"messages": [asked, {"role": "assistant", "content": "", "tool_calls": [one]}], "tools": [tool]}
        for one in calls
    ]
    for number in range(2):
        made.write(tmp_path / "d" / f"{number}.jsonl", *thoughts, *called)
    summary, _ = checked(tmp_path / "o", tmp_path / "d")
    (about,) = summary["sources"].values()
    assert about == {"records": 8, "kinds": {"conversation": 8}, "found": {"duplicate": 4}}


def test_nothing_is_left_out_unless_asked(tmp_path: Path) -> None:
    marked = {"prompt": "Is it raining there today?", "completion": "[INST] No. [/INST]"}
    data = made.write(tmp_path / "d.jsonl", GOOD[0], GOOD[0], marked, {"nothing": 1})
    summary, found = checked(tmp_path / "a", data, drop=())
    assert {kind for kind, *_ in found} == {"unusable", "duplicate", "control_tokens"}
    assert summary["left_out"] == {} and summary["kept"] == 4 and not (tmp_path / "a" / "kept").exists()
    summary, _ = checked(tmp_path / "b", data, drop=("--drop", "control_tokens"))
    assert (
        summary["left_out"] == {"control_tokens": 1}
        and len((tmp_path / "b/kept/d.jsonl").read_bytes().splitlines()) == 3
    )
    with pytest.raises(ArgumentError, match="--keep was removed"):
        checked(tmp_path / "c", data, "--keep", "control_tokens")


def test_one_of_several_alike_stays(tmp_path: Path) -> None:
    """Where the first is left out for another reason, the next one takes its place; equals go with it."""
    text = GOOD[0]["messages"][1]["content"]
    secret = {"prompt": GOOD[0]["messages"][0]["content"], "completion": f"{text} hf_{'aB3' * 10}"}
    clean = {"prompt": GOOD[0]["messages"][0]["content"], "completion": f"{text} More."}
    data = made.write(tmp_path / "d.jsonl", secret, clean, clean, secret)
    summary, found = checked(tmp_path / "o", data, drop=(*DROP, "near_duplicate"))
    kinds = [(kind, line) for kind, _, line, _ in found]
    assert kinds == [("secret", 1), ("secret", 4), ("near_duplicate", 2), ("duplicate", 3), ("duplicate", 4)]
    assert json.loads((tmp_path / "o" / "kept" / "d.jsonl").read_text()) == clean
    # An equal one of what is near to a record that stays is as near.
    near = {"prompt": GOOD[0]["messages"][0]["content"], "completion": f"{text} Less."}
    data = made.write(tmp_path / "e.jsonl", clean, near, near)
    summary, _ = checked(tmp_path / "p", data, drop=(*DROP, "near_duplicate"))
    assert summary["kept"] == 1 and summary["left_out"] == {"near_duplicate": 1, "duplicate": 1}
    # What is nearly equal is a judgement: told, and left out only when asked.
    summary, found = checked(tmp_path / "q", data)
    assert summary["left_out"] == {"duplicate": 1} and ("near_duplicate", 2) in [
        (kind, one) for kind, _, one, _ in found
    ]


def test_leaks(tmp_path: Path) -> None:
    evaluation = made.write(tmp_path / "eval.jsonl", GOOD[0], {"messages": []})
    data = made.write(tmp_path / "d.jsonl", *GOOD[:3])
    summary, found = checked(tmp_path / "o", data, "--against", evaluation)
    assert found == [("leak", "d.jsonl", 1, f"the record of {evaluation}:1 stands in it (100%)")]
    assert summary["left_out"] == {"leak": 1} and summary["kept"] == 2 and summary["records"] == 3
    assert f"1 record(s) of the evaluation data cannot be read (first: {evaluation}:2)" in "".join(notices())


DAY = datetime.date(2026, 1, 2)
FORMATS = {
    "jsonl": lambda file, texts: file.write_bytes(
        "".join(json.dumps({"text": t}, ensure_ascii=False, separators=(", ", ":  ")) + "\r\n" for t in texts).encode()
    ),
    "txt": lambda file, texts: file.write_text("\n\n".join(texts), encoding="utf-8"),
    "jsonl.gz": lambda file, texts: file.write_bytes(
        gzip.compress("".join(json.dumps({"text": t}) + "\n" for t in texts).encode())
    ),
    "parquet": lambda file, texts: pq.write_table(pa.table({"text": texts, "day": [DAY] * len(texts)}), file),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_left_is_lines(tmp_path: Path, kind: str) -> None:
    texts = [made.sentence(RNG, 20) for _ in range(4)]
    file = tmp_path / "in" / f"d.{kind}"
    file.parent.mkdir()
    FORMATS[kind](file, [*texts[:2], texts[0], *texts[2:], texts[3]])
    summary, found = checked(tmp_path / "o", file.parent)
    assert found[0][0] == "duplicate" and summary["kept"] == 4
    lines = (tmp_path / "o" / "kept" / "d.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"].strip() for line in lines] == texts
    assert kind != "parquet" or json.loads(lines[0])["day"] == "2026-01-02"


def test_without_a_folder_only_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = made.write(tmp_path / "d.jsonl", *GOOD)
    dispatch(["data", "check", str(data), "--preprocessing_num_workers", "1"])
    assert "nothing is left out of 6 records" in capsys.readouterr().out
    assert [*tmp_path.iterdir()] == [data]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "needs a word"),
        (["chek", "f"], "there is no `hftune data chek`\n  to do: did you mean `hftune data check`"),
        (["check"], "no data was named"),
        (["check", "gone.jsonl"], "gone.jsonl does not exist"),
        (["check", "d.jsonl", "--drop", "spam"], "--drop"),
        (["check", "d.jsonl", "--drop", "leak"], "what is left has no place"),
        (["check", "d.jsonl", "--output_dir", "."], "holds d.jsonl, which is read"),
        (["check", ".", "--output_dir", "out"], "lies in ., which is read"),
        (["check", "d.jsonl", "--columns", "text=body"], "no record has the column body"),
        (["check", "d.jsonl", "--against", "bad.jsonl"], "no format"),
        (["check", "d.jsonl", "--ancestors", "."], "--ancestors was removed"),
        (["check", "d.jsonl", "--model", "m"], "runs no model any more"),
    ],
)
def test_what_cannot_work_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], words: str) -> None:
    monkeypatch.chdir(tmp_path)
    made.write(tmp_path / "d.jsonl", *GOOD)
    made.write(tmp_path / "bad.jsonl", {"x": 1})
    with pytest.raises(UserError, match=words.replace(".", r"\.")):
        dispatch(["data", *argv])


def test_columns_are_renamed(tmp_path: Path) -> None:
    data = made.write(tmp_path / "d.jsonl", {"body": "One two three four."}, {"body": "Five six seven eight."})
    summary, found = checked(tmp_path / "o", data, "--columns", "text=body")
    assert summary["kept"] == 2 and found == []


def test_several_processes_find_the_same(tmp_path: Path) -> None:
    records = [made.conversation(RNG, words=20) for _ in range(40)] * 2
    folder = tmp_path / "d"
    for number in range(10):
        made.write(folder / f"{number}.jsonl", *records[8 * number : 8 * number + 8])
    one = checked(tmp_path / "one", folder)
    asked = ["--output_dir", str(tmp_path / "two"), *DROP, "--preprocessing_num_workers", "2"]
    dispatch(["data", "check", str(folder), *asked])
    assert (tmp_path / "one" / "findings.jsonl").read_bytes() == (tmp_path / "two" / "findings.jsonl").read_bytes()
    assert one[0]["left_out"] == {"duplicate": 40} and one[0]["kept"] == 40


def test_files_that_change_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = made.write(tmp_path / "d.jsonl", *GOOD)

    def changing(*given: Any) -> Any:
        made.write(data, *GOOD[:2])
        return decide(*given)

    from hftune.tools.checking import run

    decide = run._decide
    monkeypatch.setattr(run, "_decide", changing)
    with pytest.raises(DataError, match="changed while they were read"):
        checked(tmp_path / "o", data)
    assert not (tmp_path / "o").exists()
