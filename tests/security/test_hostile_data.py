"""Data and configs that somebody has made to do harm, or that are no data at all: one message each."""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import zstandard

from hftune.arguments.data import DataArguments
from hftune.arguments.raw_arguments import given_in_file
from hftune.checkpoints.file_records import record_input
from hftune.data import text_files as text
from hftune.data.files import chunks, find_files
from hftune.errors import ArgumentError, DataError, UserError
from hftune.preflight.rules.data import check_sources
from hftune.tools.pipeline.spec import read_yaml

FLAG = "--train_file_dir"
GOOD = b'{"text": "hello"}\n'
MIB = 1 << 20


def records(file: Path) -> tuple[int, list[DataError]]:
    """How many records a file gives, and its errors."""
    count, errors = 0, []
    for chunk in chunks([file]):
        for row in chunk.rows():
            if isinstance(row, DataError):
                errors.append(row)
            else:
                count += 1
    return count, errors


# --- what is no file -----------------------------------------------------------------------------------------------


def broken_link(place: Path) -> None:
    place.symlink_to("nowhere")


def circle(place: Path) -> None:
    place.symlink_to(place.name)


def unix_socket(place: Path) -> None:
    here = os.getcwd()
    os.chdir(place.parent)  # the name of a socket has at most 107 characters
    try:
        socket.socket(socket.AF_UNIX).bind(place.name)
    finally:
        os.chdir(here)


def zero(place: Path) -> None:
    place.symlink_to("/dev/zero")


def null(place: Path) -> None:
    place.symlink_to("/dev/null")


def fifo_by_link(place: Path) -> None:
    os.mkfifo(place.with_name("pipe"))
    place.symlink_to("pipe")


SPECIAL = [broken_link, circle, os.mkfifo, unix_socket, zero, null, fifo_by_link]


@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.parametrize("name", ["x.jsonl", "x.txt.gz"])
@pytest.mark.parametrize("inside", [True, False])
def test_what_is_no_file_is_refused_before_a_model_loads(
    tmp_path: Path, make: Callable[[Path], None], name: str, inside: bool
) -> None:
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    make(tmp_path / name)
    given = tmp_path if inside else tmp_path / name
    with pytest.raises(DataError) as caught:
        find_files(str(given), FLAG)
    assert caught.value.place == FLAG and caught.value.fix
    found = list(check_sources(DataArguments(train_file_dir=str(given))))
    assert len(found) == 1 and FLAG in str(found[0])


def test_all_of_them_are_said_at_once(tmp_path: Path) -> None:
    for number in range(7):
        broken_link(tmp_path / f"{number}.jsonl")
    with pytest.raises(DataError, match=r"0\.jsonl: a link that leads nowhere; .*4\.jsonl: .*; and 2 more"):
        find_files(str(tmp_path), FLAG)


@pytest.mark.parametrize("name", ["notes.bin", "README.md", "LICENSE"])
def test_what_is_no_data_by_its_name_may_be_anything(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    broken_link(tmp_path / name)
    assert [file.name for file in find_files(str(tmp_path), FLAG)] == ["a.jsonl"]


@pytest.mark.parametrize("above", ["/", "..", "../.."])
def test_a_link_to_what_holds_the_folder_is_not_walked(tmp_path: Path, above: str) -> None:
    (tmp_path / "one" / "two").mkdir(parents=True)
    (tmp_path / "secret.jsonl").write_bytes(GOOD)
    (tmp_path / "one" / "two" / "a.jsonl").write_bytes(GOOD)
    (tmp_path / "one" / "two" / "up").symlink_to(above)
    assert [file.name for file in find_files(str(tmp_path / "one" / "two"), FLAG)] == ["a.jsonl"]


def test_a_file_without_the_right_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    refuse = Mock(side_effect=PermissionError(13, "Permission denied"))  # root may read everything
    monkeypatch.setattr("hftune.data.files.open_file", refuse)
    with pytest.raises(DataError, match=r"a\.jsonl: Permission denied"):
        find_files(str(tmp_path), FLAG)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".txt", ".csv", ".jsonl.gz", ".jsonl.zst", ".arrow", ".parquet"])
def test_a_fifo_put_in_the_place_of_a_file_later(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    file.write_bytes(GOOD)
    (found,) = find_files(str(tmp_path), FLAG)
    file.unlink()
    os.mkfifo(file)
    count, errors = records(found)
    assert count == 0 and [error.kind for error in errors] == ["unreadable file"]


@pytest.mark.parametrize("make", SPECIAL)
def test_the_record_of_a_run_passes_over_what_is_no_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    make(tmp_path / "x.jsonl")
    recorded = record_input(str(tmp_path))
    assert recorded is not None and [*recorded["files"]] == ["a.jsonl"]


# --- large records ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "where"), [(".jsonl", "first"), (".jsonl", "last"), (".txt.gz", "middle"), (".jsonl.zst", "last")]
)
def test_a_line_without_end_is_one_error_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, where: str
) -> None:
    for module in ("text_files", "strict_json"):
        monkeypatch.setattr(f"hftune.data.{module}.MAX_RECORD_BYTES", 3000)
    monkeypatch.setattr(text, "_BLOCK", 1000)
    long = b'{"text": "' + b"x" * 9000 + b'"}\n'
    place = {"first": 0, "middle": 50, "last": 100}[where]
    content = b"".join([*[GOOD] * place, long, *[GOOD] * (100 - place)])
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(suffix[-3:] if suffix.endswith("gz") else suffix[-4:])
    file = tmp_path / f"a{suffix}"
    file.write_bytes(pack(content) if pack else content)
    count, errors = records(file)
    assert count == 100
    assert [(error.kind, error.place) for error in errors] == [("record too large", f"{file}:{place + 1}")]


@pytest.mark.parametrize("suffix", [".json", ".csv"])
def test_a_record_too_large_in_an_array_or_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    for module in ("strict_json", "text_files"):
        monkeypatch.setattr(f"hftune.data.{module}.MAX_RECORD_BYTES", 3000)
    texts = ["x" * (9000 if number == 7 else 10) for number in range(20)]
    content = "[" + ",\n".join(json.dumps({"text": text}) for text in texts) + "]"
    file = tmp_path / f"a{suffix}"
    file.write_text(content if suffix == ".json" else "\n".join(["text", *texts]))
    count, errors = records(file)
    assert count == 19
    line = 8 + (suffix == ".csv")
    assert [(error.kind, error.place) for error in errors] == [("record too large", f"{file}:{line}")]


# --- Parquet and Arrow ------------------------------------------------------------------------------------------------


# --- YAML -------------------------------------------------------------------------------------------------------------

YAML: dict[str, bytes] = {
    "deep lists": b"a: " + b"[" * 500,
    "large": b"a: " + b"x" * (2 * MIB),
    "no date": b"a: 2024-13-45",
    "long number": b"a: " + b"9" * 5000,
    "bell": b"a: \x07",
    "not UTF-8": b"a: \xff\xfe\x00",
    "list as a name": b"? [a]\n: b",
    "two documents": b"a: b\n---\nc: d",
    "no integer": b"a: !!int x",
    "no base64": "a: !!binary éé".encode(),
    "unknown alias": b"a: *b",
    "tab": b"\tx: 1",
    "open quote": b'a: "b',
    "Python": b"a: !!python/object/apply:os.system ['exit 3']",
    "list": b"- a",
}


@pytest.mark.parametrize("name", YAML)
@pytest.mark.parametrize("read", [lambda file: given_in_file(str(file)), read_yaml], ids=["config", "pipeline"])
def test_a_config_that_does_harm_is_one_message(tmp_path: Path, name: str, read: Callable[[Path], Any]) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(YAML[name])
    try:
        found = read(file)
    except ArgumentError as error:
        assert error.fix and len(str(error)) < 1000 and str(file) in (error.place or str(error))
    else:
        assert read is read_yaml and name in ("Python", "list"), "a pipeline says later what it does not know"
        assert found is not None


@pytest.mark.parametrize("make", [*SPECIAL, os.mkdir])
@pytest.mark.parametrize("read", [lambda file: given_in_file(str(file)), read_yaml], ids=["config", "pipeline"])
def test_a_config_that_is_no_file(tmp_path: Path, make: Callable[[Path], None], read: Callable[[Path], Any]) -> None:
    make(tmp_path / "a.yaml")
    with pytest.raises(UserError):
        read(tmp_path / "a.yaml")


# --- what is read back from the cache ---------------------------------------------------------------------------------


def test_nothing_unmarshals() -> None:
    code = re.compile(r"^\s*(?:import|from) (?:marshal|shelve|dill|cloudpickle|joblib)\b", re.MULTILINE)
    files = sorted((Path(__file__).parents[2] / "hftune").rglob("*.py"))
    assert files and not [file for file in files if code.search(file.read_text())]
