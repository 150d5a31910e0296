"""Whatever happens to a cache entry or a tokenised folder, nobody trains on it: it is made again, or refused."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import psutil
import pytest
from datasets import Dataset, Features, List, Value

from hftune import digests, user_cache
from hftune.arguments.data import DataArguments
from hftune.data import sources as parts
from hftune.data import storage as cache
from hftune.data.blocks import BlockDataset
from hftune.data.counts import Counts
from hftune.data.documents import Documents
from hftune.data.encode import ChatEncoder
from hftune.data.encoder import map_in_order, write_batches
from hftune.data.sources import TokenizedSource, load_source
from hftune.data.storage import cached
from hftune.data.tokenized_folder import load_tokenised, save_tokenised
from hftune.distributed import ranks
from hftune.errors import DataError
from tests.unit.data.helpers import assistant, make_tokenizer, user

TOKENIZER = make_tokenizer()
ROWS = 40
FILES = ["data-00000-of-00001.arrow", "dataset_info.json", "state.json", "contents.json"]
SPLIT_FILES = [f"train/{name}" for name in FILES[:3]] + ["tokenized.json"]
FEATURES = Features({"input_ids": List(Value("int32")), "labels": List(Value("int32"))})
PLACES = [0.11, 0.77]
LENGTHS = [0.0, 0.999]


def ids(row: int) -> list[int]:
    return [(7 * row + place) % 300 for place in range(3 + row % 5)]


def write(folder: Path, shift: int = 0) -> Counts:
    """A data set of several batches, as tokenising writes it."""
    rows = [ids(row + shift) for row in range(ROWS)]
    columns = {"input_ids": rows, "labels": rows}
    table = Dataset.from_dict(columns, features=FEATURES).data.table
    write_batches(folder, table.schema, table.to_batches(max_chunksize=10))
    return Counts(rows=ROWS, used=ROWS, tokens=sum(map(len, rows)))


def expected(shift: int = 0) -> list[list[int]]:
    return [ids(row + shift) for row in range(ROWS)]


Damage = Callable[[Path], None]


def flip(share: float, bit: int) -> Damage:
    def damage(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[int(share * (len(content) - 1))] ^= 1 << bit
        file.write_bytes(content)

    return damage


def cut(share: float) -> Damage:
    return lambda file: os.truncate(file, int(share * file.stat().st_size))


def remove(file: Path) -> None:
    file.unlink()


def instead(make: Damage) -> Damage:
    return lambda file: (file.unlink(), make(file))[1]


def longer(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0" * 64)


DAMAGES: dict[str, Damage] = {
    **{f"bit 5 at {share}": flip(share, 5) for share in PLACES},
    **{f"cut at {share}": cut(share) for share in LENGTHS},
    "removed": remove,
    "folder": instead(Path.mkdir),
    "link": instead(lambda file: file.symlink_to("nowhere")),
    "fifo": instead(os.mkfifo),
    "longer": longer,
    "emptied": instead(lambda file: file.write_text("{}") and None),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the entries "k" and "other"."""
    folder = tmp_path_factory.mktemp("cache")
    cached("k", write, str(folder))
    cached("other", lambda work: write(work, 1), str(folder))
    return folder


@pytest.fixture
def copied(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "cache"))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_made_again(
    copied: Path, name: str, damage: Damage, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(cache.get_logger(cache.__name__), "warning", said.append)
    damage(copied / "datasets" / "k" / name)
    calls: list[Path] = []
    dataset, counts = cached("k", lambda work: (calls.append(work), write(work))[1], str(copied))
    assert len(calls) == 1, "the damage was not noticed"
    assert dataset["input_ids"][:] == expected() and counts.used == ROWS
    assert len(said) == 1 and "is damaged and is built again" in said[0]
    cached("k", lambda work: pytest.fail("fixed once"), str(copied))


@pytest.mark.parametrize("damage", ["cut at 0.999", "removed", "longer"])
def test_other_processes_of_a_machine_see_what_is_missing(
    copied: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "5")
    DAMAGES[damage](copied / "datasets" / "k" / FILES[0])
    assert cached("k", write, str(copied))[0]["input_ids"][:] == expected()


def test_a_file_is_read_once_a_machine(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    usual = digests.digest
    monkeypatch.setattr(digests, "digest", lambda file, **more: (read.append(file), usual(file))[1])
    for rank, files in (("0", 3), ("1", 3)):
        monkeypatch.setenv("LOCAL_RANK", rank)
        cached("k", lambda _: pytest.fail("sound"), str(copied))
        assert len(read) == files


# --- tokenised folders ------------------------------------------------------------------------------------------------


def tokenised(folder: Path) -> None:
    encoder = ChatEncoder(TOKENIZER, max_length=40)
    made = {}
    for shift, name in enumerate(("train", "eval")):
        work = folder.parent / f"{folder.name}-{name}"
        work.mkdir()
        counts = write(work, shift)
        made[name] = TokenizedSource(Dataset.load_from_disk(str(work)), counts, ["a.jsonl"], f"key {name}")
    save_tokenised(folder, made, {"train": encoder, "eval": encoder})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenised(tmp_path / "tok")
    return tmp_path / "tok"


def opened(folder: Path) -> dict[str, TokenizedSource]:
    encoder = ChatEncoder(TOKENIZER, max_length=40)
    return load_tokenised(folder, {"train": encoder, "eval": encoder})


@pytest.mark.parametrize("name", SPLIT_FILES)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_refused(folder: Path, name: str, damage: Damage) -> None:
    damage(folder / name)
    with pytest.raises(DataError) as caught:
        opened(folder)
    assert caught.value.place == "--tokenized_dir" and caught.value.fix
    if (folder / "tokenized.json").is_file():
        with pytest.raises(DataError):
            Documents(folder / "train")


def test_splits_that_changed_places(folder: Path) -> None:
    for old, new in (("train", "x"), ("eval", "train"), ("x", "eval")):
        (folder / old).rename(folder / new)
    with pytest.raises(DataError, match=r"is damaged: .* has other contents than were written"):
        opened(folder)


def change_numbers(file: Path, number: int, other: int, count: int = 1) -> None:
    """Replace the last places where an int32 lies in a file."""
    content = file.read_bytes()
    old, new = (np.int32(value).tobytes() for value in (number, other))
    for _ in range(count):
        place = content.rindex(old)
        content = content[:place] + new + content[place + 4 :]
    file.write_bytes(content)


@pytest.mark.parametrize("offset", [2**31 - 1, -1, 0])
def test_an_offset_that_leads_out_of_the_file_is_no_end_of_the_process(folder: Path, offset: int) -> None:
    (folder / "tokenized.json").unlink()
    last = sum(len(row) for row in expected()[30:])  # the last offset of the last batch, in both columns
    change_numbers(folder / "train" / FILES[0], last, offset, 2)
    with pytest.raises(DataError, match=r"tokenised folder .* is damaged"):
        Documents(folder / "train")


@pytest.mark.parametrize("token", [-1, 100_000])
def test_a_token_that_the_model_does_not_have(folder: Path, token: int) -> None:
    (folder / "tokenized.json").unlink()
    change_numbers(folder / "train" / FILES[0], ids(39)[-1], token, 2)
    documents = Documents(folder / "train")
    blocks = BlockDataset([documents], 8, vocabulary=len(TOKENIZER))
    with pytest.raises(DataError, match=f"token id {token} of document"):
        [blocks[number] for number in range(len(blocks))]


@pytest.mark.parametrize("value", [2**32 + 5, 2**63 - 1])
def test_wide_ids_do_not_wrap_around(tmp_path: Path, value: int) -> None:
    Dataset.from_dict(
        {"input_ids": [[1, 2, value]]}, features=Features({"input_ids": List(Value("int64"))})
    ).save_to_disk(str(tmp_path / "wide"))
    blocks = BlockDataset([Documents(tmp_path / "wide")], 3, vocabulary=300)
    with pytest.raises(DataError, match=f"token id {value}"):
        blocks[0]


FOREIGN: dict[str, dict[str, Any]] = {
    "path": {"_data_files": [{"filename": "../other.arrow"}]},
    "no list": {"_data_files": 7},
    "gone": {"_data_files": [{"filename": "gone.arrow"}]},
    "nothing": {},
}


@pytest.mark.parametrize("state", FOREIGN.values(), ids=FOREIGN)
def test_a_state_that_somebody_has_written(tmp_path: Path, state: dict[str, Any]) -> None:
    Dataset.from_dict({"input_ids": [[1, 2]]}).save_to_disk(str(tmp_path / "mine"))
    (tmp_path / "mine" / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match="is damaged") as caught:
        Documents(tmp_path / "mine")
    assert state != FOREIGN["path"] or "'../other.arrow', which is not in the folder" in str(caught.value)


# --- data that change -------------------------------------------------------------------------------------------------

RECORDS = "".join(json.dumps({"messages": [user(str(n)), assistant("the answer")]}) + "\n" for n in range(20))


def replace(file: Path) -> None:
    other = file.with_name("other")
    other.write_text(RECORDS.replace("answer", "ANSWER"))
    stat = file.stat()
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(file)


CHANGES: dict[str, Damage] = {"replace": replace, "remove": remove, "longer": longer}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("when", ["before", "in the middle", "after"])
def test_data_that_change_while_they_are_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Damage, when: str
) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text(RECORDS)
    usual = parts._chunks

    def changing(*asked: Any) -> Any:
        found = list(usual(*asked))
        if when == "before":
            change(file)
        yield from found[:1] if when == "in the middle" else found
        if when != "before":
            change(file)
        yield from found[1:] if when == "in the middle" else []

    monkeypatch.setattr(parts, "_chunks", changing)
    arguments = DataArguments(data_cache_dir=str(tmp_path / "cache"), preprocessing_num_workers=1)
    encoder = ChatEncoder(TOKENIZER, max_length=40)
    with pytest.raises(DataError) as caught:
        load_source(str(file), "--train_file_dir", encoder, arguments)
    assert caught.value.kind in ("file changed", "unreadable file")
    assert not [entry for entry in (tmp_path / "cache" / "datasets").iterdir() if entry.is_dir()]


def test_data_that_change_before_the_writer_begins_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text(RECORDS)
    usual = ranks.gathered_objects
    monkeypatch.setattr(ranks, "gathered_objects", lambda value: (longer(file), usual(value))[1])
    monkeypatch.setattr(parts, "_chunks", lambda *_: pytest.fail("was read"))
    arguments = DataArguments(data_cache_dir=str(tmp_path / "cache"))
    with pytest.raises(DataError, match="changed while they were read"):
        load_source(str(file), "--train_file_dir", ChatEncoder(TOKENIZER, max_length=40), arguments)


def test_processes_that_saw_different_data_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text(RECORDS)
    monkeypatch.setattr(ranks, "gathered_objects", lambda value: [value, "another"])
    with pytest.raises(DataError, match="changed while they were read"):
        load_source(str(file), "--train_file_dir", ChatEncoder(TOKENIZER, max_length=40), DataArguments())


# --- killed runs ------------------------------------------------------------------------------------------------------


def test_workers_end_with_a_killed_parent() -> None:
    receive, send = os.pipe()
    parent = os.fork()
    if parent == 0:
        for _ in map_in_order(lambda item: (time.sleep(0.02), item)[1], iter(range(100_000)), 2):
            os.write(send, b".")
        os._exit(1)
    assert os.read(receive, 1) == b"."
    workers = psutil.Process(parent).children()
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert len(workers) == 2
    _, alive = psutil.wait_procs(workers, timeout=10)
    for worker in alive:
        worker.kill()
    assert not alive


def test_what_a_killed_writer_left_is_removed_by_the_next_of_its_key(tmp_path: Path) -> None:
    cached("other", write, str(tmp_path))
    work = tmp_path / "datasets" / f".k.{platform.node()}.work"
    (work / "fresh").mkdir(parents=True)
    (work / "fresh" / "half").write_bytes(bytes(1000))
    cached("k", write, str(tmp_path))
    assert {entry.name for entry in (tmp_path / "datasets").iterdir() if entry.is_dir()} == {"k", "other"}
    assert not (tmp_path / "datasets" / "k" / "half").exists()


def test_what_a_killed_writer_left_of_another_key_is_removed_where_nobody_holds_its_lock(tmp_path: Path) -> None:
    works = {key: tmp_path / "datasets" / f".{key}.{platform.node()}.work" for key in ("dead", "alive")}
    for work in works.values():
        work.mkdir(parents=True)
    with filelock.FileLock(tmp_path / "datasets" / ".alive.lock"):
        cached("k", write, str(tmp_path))
    assert not works["dead"].exists() and works["alive"].exists()


def test_a_link_in_the_place_of_a_work_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / f".k.{platform.node()}.work").symlink_to(tmp_path / "precious")
    with pytest.raises(DataError, match="cannot write the cache"):
        cached("k", write, str(tmp_path))
    assert (tmp_path / "precious" / "file").read_text() == "x"


# --- rights -----------------------------------------------------------------------------------------------------------


def test_the_cache_is_for_its_owner_alone(tmp_path: Path) -> None:
    os.umask(os.umask(0o022))
    cached("k", write, str(tmp_path / "cache"))
    for path in [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_an_old_cache_is_closed(tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    cached("k", write, str(tmp_path))
    assert (tmp_path / "datasets").stat().st_mode & 0o777 == 0o700
    assert tmp_path.stat().st_mode & 0o777 == 0o755, "the folder that the user named is the user's"


@pytest.mark.parametrize("which", ["root", "datasets", "link"])
def test_a_cache_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    if os.geteuid():
        pytest.skip("needs the right to give files away")
    root = tmp_path / "cache"
    (root / "datasets").mkdir(parents=True)
    if which == "root":
        os.chown(root, 12345, -1)
    elif which == "datasets":
        os.chown(root / "datasets", 12345, -1)
    else:
        (root / "datasets").rmdir()
        (tmp_path / "theirs").mkdir()
        (root / "datasets").symlink_to(tmp_path / "theirs")
        os.chown(root / "datasets", 12345, -1, follow_symlinks=False)
    with pytest.raises(DataError, match="belongs to another user"):
        cached("k", lambda _: pytest.fail("nothing is written there"), str(root))
    monkeypatch.setenv("HFTUNE_CACHE", str(root))
    assert which != "root" or user_cache.read_sealed("help", "x") is None


@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_a_planted_lock_does_not_touch_its_victim(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "datasets").mkdir()
    lock = tmp_path / "datasets" / ".k.lock"
    if kind == "link":
        lock.symlink_to(victim)
        with pytest.raises(DataError, match="cannot write the cache"):
            cached("k", write, str(tmp_path))
    else:
        lock.hardlink_to(victim)
        cached("k", write, str(tmp_path))
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("damage", [flip(0.0, 3), flip(0.6, 3), flip(0.999, 3), cut(0.0), cut(0.9), longer])
def test_a_small_file_that_is_damaged_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage
) -> None:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path))
    user_cache.write_sealed("help", "page", b"some text " * 20)
    assert user_cache.read_sealed("help", "page") == b"some text " * 20
    damage(tmp_path / "help" / "page")
    assert user_cache.read_sealed("help", "page") is None
