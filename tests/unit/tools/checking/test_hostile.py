"""Records that are made to do harm: to the terminal, the memory, the clock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hftune.cli import dispatch
from tests.unit.tools.checking import made
from tests.unit.tools.checking.test_check import checked

EVIL = '<script>alert(1)</script>\x1b]0;owned\x07\x1b[31m\u202e"><img src=x onerror=y>'
KEY = "hf_" + "aB3" * 10


def test_nothing_of_a_record_reaches_the_terminal_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "<b>evil\x1b[31m"
    records = [
        {"prompt": EVIL * 3, "completion": f"I'm sorry, but I {EVIL} <|{'x' * 20}|> {KEY}"},
        {"prompt": "x", "completion": f"As an AI language model {EVIL} \ufffd"},
        {EVIL: 1},
        {"messages": [{"role": EVIL, "content": "x"}]},
        [KEY, EVIL],
    ]
    data = made.write(folder / "d<i>.jsonl", *records, *records)
    checked(tmp_path / "o", data, "--against", made.write(folder / "e<i>.jsonl", *records))
    caught = capsys.readouterr()
    written = "".join((tmp_path / "o" / name).read_text() for name in ("findings.jsonl", "summary.json"))
    for text in (caught.out, caught.err, written):
        assert not {"\x1b", "\x07", "\u202e"} & {*text}
        assert KEY not in text
    assert "control_tokens" in caught.out


def test_a_secret_that_is_known_by_value_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of the environment has no form; a role that is named after it would be quoted."""
    monkeypatch.setenv("MY_API_KEY", "zebra-giraffe-77")
    data = made.write(tmp_path / "d.jsonl", {"messages": [{"role": "zebra-giraffe-77", "content": "x"}]})
    checked(tmp_path / "o", data)
    for file in (tmp_path / "o").iterdir():
        if file.is_file():
            assert b"zebra-giraffe" not in file.read_bytes(), file.name


HOSTILE = {
    "deep": b'{"text": ' + b"[" * 5000 + b"]" * 5000 + b"}\n",
    "half": b'{"text": "a \\ud83d b"}\n',
    "number": b'{"text": 1' + b"0" * 5000 + b"}\n",
    "tools": b'{"messages": [{"role": "assistant", "tool_calls": [{"function": "x"}]}], "tools": "}{"}\n',
    "pair": b'{"prompt": [], "chosen": {}, "rejected": 3}\n',
    "one_word": b'{"text": "' + b"\xe5\xa4\xa9" * 100_000 + b'"}\n',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_records_end_in_a_finding_or_in_nothing(tmp_path: Path, name: str) -> None:
    data = tmp_path / "d.jsonl"
    good = json.dumps({"text": "A good record of eight words, all sound."}).encode() + b"\n"
    data.write_bytes(HOSTILE[name] + good)
    summary, found = checked(tmp_path / "o", data)
    assert {kind for kind, *_ in found} <= {"unusable", "encoding"}
    assert all(len(reason) < 400 for *_, reason in found)
    # What is good stays, whatever stands before it; a text that is one long word is good, too.
    assert good in (tmp_path / "o" / "kept" / "d.jsonl").read_bytes()
    assert summary["kept"] == summary["records"] - sum(summary["left_out"].values())


@pytest.mark.parametrize("kind", ["txt", "parquet", "jsonl.gz"])
def test_files_that_are_something_else(tmp_path: Path, kind: str) -> None:
    file, good = tmp_path / "d" / f"b.{kind}", made.write(tmp_path / "d" / "a.jsonl", {"text": "Sound and whole."})
    file.write_bytes(bytes(range(256)) * 20)
    _, found = checked(tmp_path / "o", tmp_path / "d")
    # Some lines of it may be texts, by chance equal ones.
    assert ("unusable", file.name) in {(kind, name) for kind, name, *_ in found}
    assert {name for _, name, *_ in found} == {file.name}
    assert (tmp_path / "o" / "kept" / "a.jsonl").read_bytes() == good.read_bytes()
    # Of what cannot be read nothing is written.
    kept = {path.name for path in (tmp_path / "o" / "kept").iterdir()}
    assert kind == "txt" or kept == {"a.jsonl"}


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf\n"])
def test_files_without_a_record(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    from hftune.errors import DataError

    data = tmp_path / "d.jsonl"
    data.write_bytes(content)
    if not content:
        with pytest.raises(DataError, match="is empty"):
            dispatch(["data", "check", str(data)])
        return
    summary, found = checked(tmp_path / "o", data)
    assert summary["records"] == 0 and [(kind, line) for kind, _, line, _ in found] == [("unusable", 0)]
    assert "nothing is left" in capsys.readouterr().out


NEARLY = {
    "texts.control_token": ("<|", "<|a", "<｜", "</s> ", "[INST", "<|" + "a" * 39, "</s>" + "\t" * 9),
    "texts.damage": ("Ã", "é", "â€", "Ã©", "\u0412", "\xa0", "à ", "é\u2019", "ï»¿", "a\u0300", "\u2500"),
    "texts.secret": ("Bearer ", "Bearer a1", "sk-", "hf_", "eyJ-", "://@", "a://a:a", "a://a:a@"),
    "near_of": ("the ", "天", "a", "и "),
}
"""Function to pieces; a text of nothing but one of them nearly matches everywhere."""
_RUN = """
import json, resource, sys
from hftune.tools.checking import records as texts
from hftune.tools.checking.compare import shingles_of, signature_of
def near_of(text):
    signature_of(shingles_of(text))
near_of("a")
for function, pieces in json.loads(sys.argv[1]).items():
    for piece in pieces:
        print(function, repr(piece), flush=True)
        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 8, resource.RLIM_INFINITY))
        eval(function)(piece * (200_000 // len(piece)))
print("done")
"""


def test_no_text_takes_more_than_time_in_proportion() -> None:
    """A linear search of such a text takes a fraction of a second, a quadratic one minutes.

    Counted are seconds of the processor, so that a busy machine changes nothing.
    """
    asked = [sys.executable, "-c", _RUN, json.dumps(NEARLY)]
    finished = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert finished.stdout.splitlines()[-1:] == ["done"], f"at {finished.stdout[-60:]} {finished.stderr}"
