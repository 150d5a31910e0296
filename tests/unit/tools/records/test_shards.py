"""Records tokenised in parts and joined are those of an undivided run; what does not fit together is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hftune.cli import dispatch
from hftune.data import sources as module
from hftune.digests import sealed, unsealed
from hftune.errors import ArgumentError, DataError, UserError
from hftune.tools.records.parts import INDEX

CHATS = 1100
"""Five chunks of 256 records at most."""


def chat(number: int, **others: Any) -> dict[str, Any]:
    question = {"role": "user", "content": f"what is {number}?"}
    return {"messages": [question, {"role": "assistant", "content": f"it is {number}"}], **others}


def write(file: Path, records: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


@pytest.fixture
def command(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two sources, one with a number; a bad record in the last chunk, then one in the first; held-out records."""
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "cache"))
    records = [chat(number, source="web" if number > 900 else None) for number in range(CHATS)]
    records[1050] = {"messages": "none"}
    first = write(tmp_path / "a.jsonl", records)
    second = write(tmp_path / "b.jsonl", [{"messages": 1}, *(chat(-number) for number in range(300))])
    return [
        *("run_sft", "--model_name_or_path", str(tiny_model), "--max_length", "64", "--on_bad_record", "drop"),
        *("--train_file_dir", f"{first},{second}#50", "--validation_split_percentage", "5"),
    ]


def tokenize(command: list[str], *more: str | Path) -> None:
    dispatch(["tokenize", *command, *map(str, more)])


def make_parts(command: list[str], folder: Path, of: int) -> list[Path]:
    parts = [folder / str(number) for number in range(1, of + 1)]
    for number, part in enumerate(parts, start=1):
        tokenize(command, "--shard", f"{number}/{of}", "--output_dir", part)
    return parts


def files_of(folder: Path) -> dict[str, bytes]:
    """All files of a result but its manifest, which holds the command."""
    names = [file for file in folder.rglob("*") if file.is_file() and file.name != "hftune.json"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in names}


def refused(command: list[str], parts: list[Path], out: Path) -> UserError:
    with pytest.raises(UserError) as error:
        tokenize(command, "--join", *parts, "--output_dir", out)
    assert not out.exists() and error.value.fix
    return error.value


@pytest.fixture
def parts(command: list[str], tmp_path: Path) -> list[Path]:
    return make_parts(command, tmp_path / "parts", 3)


def test_joined_parts_are_what_an_undivided_run_writes(
    command: list[str],
    parts: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patched:
        # Whatever is missing must not be tokenised while parts are joined.
        patched.setattr(module, "write_tokenised", None)
        tokenize(command, "--join", *reversed(parts), "--output_dir", tmp_path / "joined")
    said = capsys.readouterr()
    shutil.rmtree(tmp_path / "cache")
    tokenize(command, "--output_dir", tmp_path / "whole")
    whole, joined = files_of(tmp_path / "whole"), files_of(tmp_path / "joined")
    # `datasets` writes a fingerprint of its own there, which is drawn at random.
    assert {name for name in whole if whole[name] != joined.get(name)} <= {*_random(whole), "tokenized.json"}
    index, other = (json.loads(found["tokenized.json"]) for found in (whole, joined))
    for about in (index, other):
        about.pop("seal")
        for split in about["splits"].values():
            split["contents"] = {name: found for name, found in split["contents"].items() if name != "state.json"}
    assert index == other
    assert set(index["splits"]) == {"train", "eval"} and index["splits"]["train"]["counts"]["dropped"]
    assert "1050" not in said.out and "a.jsonl:1051" in said.err + said.out


def _random(files: dict[str, bytes]) -> list[str]:
    return [name for name in files if name.endswith("state.json")]


def test_each_part_reads_its_own_records(parts: list[Path]) -> None:
    """Five chunks and two: a third of each, by the whole chunk."""
    read = [
        [source["counts"]["rows"] for source in json.loads((part / INDEX).read_text())["sources"]] for part in parts
    ]
    assert read == [[256, 0], [512, 256], [CHATS - 768, 45]]


def test_more_parts_than_there_is_to_divide(command: list[str], tmp_path: Path) -> None:
    command = [*command[:-3], str(tmp_path / "b.jsonl")]
    parts = make_parts(command, tmp_path / "many", 4)
    tokenize(command, "--join", *parts, "--output_dir", tmp_path / "joined")
    assert json.loads((tmp_path / "joined" / "tokenized.json").read_text())["splits"]["train"]["rows"] == 300


def test_columns_need_be_in_one_part_only(command: list[str], tmp_path: Path) -> None:
    """`source` is in the last records alone; `absent` in none."""
    named = [*command, "--columns", "origin=source"]
    records = [chat(number) | ({"source": "web"} if number > 900 else {}) for number in range(CHATS)]
    write(tmp_path / "a.jsonl", records)
    write(tmp_path / "b.jsonl", [chat(1, source="x")])
    parts = make_parts(named, tmp_path / "columns", 2)
    tokenize(named, "--join", *parts, "--output_dir", tmp_path / "joined")
    named[-1] = "origin=absent"
    parts = make_parts(named, tmp_path / "absent", 2)
    assert "no record has the column absent" in refused(named, parts, tmp_path / "no").cause


def test_parts_that_do_not_make_a_whole_are_refused(command: list[str], parts: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert refused(command, parts[1:], out).cause == "of 3 parts these are missing: 1"
    shutil.copytree(parts[0], tmp_path / "again")
    assert "part 1 of 3 is there twice" in refused(command, [*parts, tmp_path / "again"], out).cause
    tokenize(command, "--shard", "1/2", "--output_dir", tmp_path / "half")
    assert "several divisions" in refused(command, [tmp_path / "half", *parts[1:]], out).cause
    assert "is no part of tokenised records" in refused(command, [tmp_path / "parts"], out).cause


def test_parts_of_other_settings_or_data_are_refused(command: list[str], parts: list[Path], tmp_path: Path) -> None:
    out, longer = tmp_path / "out", [word if word != "64" else "65" for word in command]
    shutil.rmtree(parts[1])
    tokenize(longer, "--shard", "2/3", "--output_dir", parts[1])
    error = refused(command, parts, out)
    assert error.cause == "parts are of other records than this command reads: max_length 65 (here: 64)"
    assert error.place == str(parts[1])
    shutil.rmtree(parts[1])
    tokenize(command, "--shard", "2/3", "--output_dir", parts[1])
    assert "2 source(s) of data (here: 1)" in refused([*command[:-3], str(tmp_path / "a.jsonl")], parts, out).cause
    with (tmp_path / "a.jsonl").open("a") as stream:
        stream.write(json.dumps(chat(0)) + "\n")
    error = refused(command, parts, out)
    assert "other data, or other code of hftune" in error.cause and error.place == ", ".join(map(str, parts))


def test_a_damaged_part_is_refused(command: list[str], parts: list[Path], tmp_path: Path) -> None:
    (file,) = (parts[2] / "records" / "0").glob("*.arrow")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert "other contents than were written" in refused(command, parts, tmp_path / "out").cause
    broken = ({}, {"part": 3, "of": 3, "sources": [{}]}, {"part": "x", "of": 3, "sources": []})
    for about in (*broken, {"part": 0, "of": 3, "sources": []}, {"part": 4, "of": 3, "sources": []}):
        (parts[2] / INDEX).write_text(json.dumps(sealed(about)))
        assert f"the part {parts[2]} is damaged" in refused(command, parts, tmp_path / "out").cause


def test_no_number_of_parts_is_believed(command: list[str], parts: list[Path], tmp_path: Path) -> None:
    for part in parts:
        about = unsealed((part / INDEX).read_text())
        (part / INDEX).write_text(json.dumps(sealed(about | {"of": 10**15})))
    cause = refused(command, parts, tmp_path / "out").cause
    assert cause.startswith("of 1000000000000000 parts these are missing: 4, 5, ") and cause.endswith("22, 23, ...")


def test_a_part_is_no_tokenised_folder(command: list[str], parts: list[Path], tmp_path: Path) -> None:
    """Training on a third of the data must not happen by mistake."""
    for script in ("run_sft", "run_pt"):
        flags = [script, *command[1:3], "--tokenized_dir", str(parts[0]), "--output_dir", str(tmp_path / "out")]
        with pytest.raises(UserError, match="holds no tokenised"):
            dispatch(["preview", *flags])


@pytest.mark.parametrize("flags", [["--max_train_samples", "9"], ["--max_eval_samples", "9"], ["--streaming", "True"]])
def test_arguments_of_which_there_are_no_parts(command: list[str], tmp_path: Path, flags: list[str]) -> None:
    with pytest.raises(ArgumentError, match=flags[0]):
        tokenize(command, *flags, "--shard", "1/2", "--output_dir", tmp_path / "part")


def test_data_that_change_meanwhile_are_refused(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hftune.tools.records import shards

    def late(*arguments: Any, **others: Any) -> Any:
        found = written(*arguments, **others)
        (tmp_path / "a.jsonl").write_text(json.dumps(chat(0)) + "\n")
        return found

    written = shards.write_tokenised
    monkeypatch.setattr(shards, "write_tokenised", late)
    with pytest.raises(DataError, match="changed while they were read"):
        tokenize(command, "--shard", "1/2", "--output_dir", tmp_path / "part")
    assert not (tmp_path / "part").exists()
