"""The fingerprint changes with all that changes the data, and the cache never serves half an entry."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from datasets import Dataset
from filelock import FileLock

from hftune.data.counts import Counts
from hftune.data.storage import cached, fingerprint, open_folder
from hftune.digests import Damaged
from hftune.distributed import ranks
from hftune.errors import DataError
from tests.unit.data.helpers import CHATML, make_tokenizer


class Build:
    """Builds a small dataset and counts how often."""

    def __init__(self, value: int = 1) -> None:
        self.value, self.calls = value, 0

    def __call__(self, folder: Path) -> Counts:
        self.calls += 1
        Dataset.from_dict({"input_ids": [[self.value, 2], [3]]}).save_to_disk(str(folder))
        return Counts(rows=3, used=2, dropped={"why": 1}, tokens=3)


def entries(cache: Path) -> list[str]:
    """What is in a cache beside locks."""
    return [path.name for path in (cache / "datasets").iterdir() if path.suffix != ".lock"]


def test_fingerprint_depends_on_what_matters(tmp_path: Path) -> None:
    one, same, other = (tmp_path / name for name in ("one.jsonl", "same.jsonl", "other.jsonl"))
    one.write_text("a")
    same.write_text("a")
    other.write_text("b")
    tokenizer = make_tokenizer()
    base = fingerprint([one], tokenizer, max_length=8)
    assert len(base) == 32
    assert fingerprint([same], make_tokenizer(), max_length=8) == base
    # The state that a padded or truncated call leaves behind changes nothing.
    tokenizer(["a", "bb"], padding=True, truncation=True, max_length=1)
    assert fingerprint([one], tokenizer, max_length=8) == base
    changed = make_tokenizer()
    changed.pad_token = "<|im_end|>"
    keys = [
        base,
        fingerprint([other], tokenizer, max_length=8),
        fingerprint([one, same], tokenizer, max_length=8),
        fingerprint([one], tokenizer, max_length=9),
        fingerprint([one], tokenizer, max_length=8, packing=True),
        fingerprint([one], make_tokenizer(CHATML + " "), max_length=8),
        fingerprint([one], changed, max_length=8),
    ]
    assert len(set(keys)) == len(keys)


def test_files_are_not_run_together(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt", "d.txt")]
    for path, text in zip(paths, ("ab", "c", "a", "bc"), strict=True):
        path.write_text(text)
    tokenizer = make_tokenizer()
    assert fingerprint(paths[:2], tokenizer) != fingerprint(paths[2:], tokenizer)


def test_version_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer()
    before = fingerprint([], tokenizer)
    monkeypatch.setattr("hftune.__version__", "0.0.0")
    assert fingerprint([], tokenizer) != before


def test_built_once_then_mapped_from_disk(tmp_path: Path) -> None:
    build = Build()
    for _ in range(2):
        dataset, counts = cached("k", build, str(tmp_path))
        assert dataset["input_ids"][:] == [[1, 2], [3]]
        assert counts == Counts(rows=3, used=2, dropped={"why": 1}, tokens=3)
        assert dataset.cache_files
    assert build.calls == 1
    assert entries(tmp_path) == ["k"]


def test_overwrite(tmp_path: Path) -> None:
    cached("k", Build(1), str(tmp_path))
    dataset, _ = cached("k", Build(7), str(tmp_path), overwrite=True)
    assert dataset["input_ids"][0] == [7, 2]
    assert entries(tmp_path) == ["k"]


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> Counts:
        (folder / "half").write_text("")
        raise DataError("broken record")

    with pytest.raises(DataError, match="broken record"):
        cached("k", fail, str(tmp_path))
    assert not entries(tmp_path)


def test_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "env"))
    cached("k", Build())
    assert (tmp_path / "env" / "datasets" / "k" / "contents.json").is_file()
    cached("k", Build(), str(tmp_path / "given"))
    assert (tmp_path / "given" / "datasets" / "k").is_dir()


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write the cache"):
        cached("k", Build(), str(tmp_path / "file"))


@pytest.mark.parametrize("local_rank", ["0", "1"])
def test_ranks_wait_at_a_file_and_not_in_a_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_rank: str
) -> None:
    """LF2424, LF662: a collective that waits for an hour of tokenising is ended by NCCL's watchdog."""
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    events: list[str] = []
    done = threading.Event()
    (tmp_path / "datasets").mkdir()
    other = FileLock(tmp_path / "datasets" / ".key.lock")
    if local_rank == "1":  # the first rank of the machine is at work
        other.acquire()
    monkeypatch.setattr(ranks, "barrier", lambda: events.append("barrier"))
    build = Build()

    def work() -> None:
        cached("key", lambda folder: (events.append("write"), build(folder))[1], str(tmp_path))
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    if local_rank == "1":
        assert not done.wait(0.3)
        assert events == ["barrier"]  # passed, before anything is tokenised: it waits for the lock now
        build(tmp_path / "datasets" / "fresh")
        other.release()
    worker.join()
    assert events == ["barrier", "write"]


DATA = Dataset.from_dict({"input_ids": [[1, 2], [3]], "labels": [[-100, 2], [3]], "position_ids": [[0, 1], [900]]})


def test_a_sound_folder(tmp_path: Path) -> None:
    DATA.save_to_disk(tmp_path / "a", num_shards=2)
    for validate in (True, False):
        found = open_folder(tmp_path / "a", validate=validate)
        assert found["input_ids"][:] == [[1, 2], [3]] and found.cache_files


@pytest.mark.parametrize("info", ["", "{", "[]", '{"features": 3}', '{"features": {"a": {"_type": "Nothing"}}}'])
def test_columns_that_make_no_sense(tmp_path: Path, info: str) -> None:
    DATA.save_to_disk(tmp_path / "a")
    (tmp_path / "a" / "dataset_info.json").write_text(info)
    with pytest.raises(Damaged):
        open_folder(tmp_path / "a")
