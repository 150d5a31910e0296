"""A folder appears whole, or what was there stays; what is not hftune's is never removed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hftune.checkpoints.manifest import finish_manifest
from hftune.errors import ArgumentError
from hftune.publishing import folder as folders
from hftune.publishing.folder import LOCK, MARK, REPLACED, RESULT, begin_work, make_ready, published_folder, work_folder
from hftune.publishing.ownership import foreign_files
from hftune.publishing.places import check_place


def publish(output: Path, content: str = "new", **options: bool) -> None:
    with published_folder(output, **options) as aside:
        (aside / "weights").write_text(content)
        (aside / "below").mkdir()
        (aside / "below" / "more").write_text(content)
        finish_manifest(aside, {"status": "complete"})


def seen(output: Path) -> dict[str, str]:
    return {str(file.relative_to(output)): file.read_text() for file in output.rglob("*") if file.is_file()}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "room" / "out"


def test_a_result_appears_and_nothing_else(out: Path) -> None:
    publish(out)
    assert (out / "weights").read_text() == "new" and [*out.parent.iterdir()] == [out]
    assert foreign_files(out) == []


def test_nothing_is_there_before_the_end(out: Path) -> None:
    with published_folder(out) as aside:
        (aside / "a").write_text("")
        assert not out.exists() and aside.parent == work_folder(out)


def test_an_error_leaves_nothing(out: Path) -> None:
    with pytest.raises(ZeroDivisionError), published_folder(out) as aside:
        (aside / "a").write_text("")
        raise ZeroDivisionError
    assert not any(out.parent.iterdir())


def test_an_error_leaves_the_old_result(out: Path) -> None:
    publish(out, "old")
    with pytest.raises(KeyboardInterrupt), published_folder(out, overwrite=True):
        raise KeyboardInterrupt
    assert (out / "weights").read_text() == "old" and [*out.parent.iterdir()] == [out]


def test_an_empty_folder_is_taken(out: Path) -> None:
    out.mkdir(parents=True)
    publish(out)
    assert (out / "weights").read_text() == "new"


def test_a_link_to_a_folder_stays_a_link(out: Path, tmp_path: Path) -> None:
    (tmp_path / "disk2").mkdir()
    out.parent.mkdir()
    out.symlink_to(tmp_path / "disk2")
    publish(out)
    assert out.is_symlink() and (tmp_path / "disk2" / "weights").is_file()


def test_a_finished_result_is_replaced_only_if_asked(out: Path) -> None:
    publish(out, "old")
    with pytest.raises(ArgumentError, match="finished result"):
        publish(out)
    assert (out / "weights").read_text() == "old"
    publish(out, overwrite=True)
    assert (out / "weights").read_text() == "new" and [*out.parent.iterdir()] == [out]


FOREIGN: dict[str, Callable[[Path], object]] = {
    "a file": lambda out: (out / "thesis.txt").write_text("mine"),
    "a file below": lambda out: (out / "below" / "thesis").write_text("mine"),
    "a file in a new folder": lambda out: ((out / "new").mkdir(), (out / "new" / "a").write_text("mine")),
    "an edited file": lambda out: (out / "weights").write_text("mine"),
    "an edited file of the same size and time": lambda out: edit_in_place(out / "weights"),
    "a link": lambda out: (out / "link").symlink_to("/"),
    "a link for a file": lambda out: ((out / "weights").unlink(), (out / "weights").symlink_to(out / "hftune.json")),
    "a FIFO": lambda out: os.mkfifo(out / "fifo"),
    "no manifest": lambda out: (out / "hftune.json").unlink(),
    "a manifest of a running stage": lambda out: change_manifest(out, status="running"),
    "a manifest that is no JSON": lambda out: (out / "hftune.json").write_text("{"),
    "a manifest with records of another form": lambda out: change_manifest(out, written=["weights"]),
    "a manifest nested without end": lambda out: (out / "hftune.json").write_text("[" * 100_000),
    "a manifest that is a link": lambda out: relink(out / "hftune.json"),
}


def edit_in_place(file: Path) -> None:
    """Other contents of the same size; the time of change tells."""
    file.write_text(file.read_text().swapcase())
    os.utime(file, ns=(1, 1))


def change_manifest(out: Path, **values: object) -> None:
    about = json.loads((out / "hftune.json").read_text()) | values
    (out / "hftune.json").write_text(json.dumps(about))


def relink(file: Path) -> None:
    file.rename(file.parent.parent / "moved.json")
    file.symlink_to(file.parent.parent / "moved.json")


@pytest.mark.parametrize("what", FOREIGN)
def test_what_holds_anything_else_is_refused(out: Path, what: str) -> None:
    publish(out, "old")
    FOREIGN[what](out)
    names = sorted(os.listdir(out))
    with pytest.raises(ArgumentError, match="hftune did not write"):
        publish(out, overwrite=True)
    assert sorted(os.listdir(out)) == names and not work_folder(out).exists()


@pytest.mark.parametrize("which", [".", "sub"])
def test_what_cannot_be_listed_is_refused(out: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    publish(out, "old")
    (out / "sub").mkdir()
    scan = os.scandir

    def closed(path: str) -> object:
        if Path(path) == out / which:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", closed)
    problems = check_place(out, overwrite=True)
    assert [str(problem).count("cannot be read: Permission denied") for problem in problems] == [1]


def test_a_result_of_an_earlier_version_is_known_by_its_files(out: Path) -> None:
    publish(out, "old")
    about = json.loads((out / "hftune.json").read_text())
    change_manifest(out, written=None, files=about["written"])
    publish(out, overwrite=True)
    assert (out / "weights").read_text() == "new"


def test_a_file_that_comes_in_the_last_moment_is_kept(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(out, "old")
    ready = folders.make_ready

    def late(work: Path) -> None:
        ready(work)
        (out / "thesis").write_text("mine")

    monkeypatch.setattr(folders, "make_ready", late)
    publish(out, overwrite=True)
    kept = out.with_name("out.replaced")
    assert (out / "weights").read_text() == "new" and (kept / "thesis").read_text() == "mine"
    assert sorted(entry.name for entry in out.parent.iterdir()) == ["out", "out.replaced"]


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "file", "file/below", "circle/out"])
def test_names_that_cannot_be_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(ArgumentError), published_folder(name):
        raise AssertionError("never begun")
    assert (tmp_path / "file").read_text() == "mine"


# --- what stands in the way of the work folder ---


@pytest.mark.parametrize("kind", ["link", "file", "folder", "broken link", "link for its lock", "link for its mark"])
def test_a_work_folder_that_is_not_ours_is_left_alone(out: Path, tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis").write_text("mine")
    work = work_folder(out)
    work.parent.mkdir()
    if kind == "link":
        work.symlink_to(victim)
    elif kind == "broken link":
        work.symlink_to("nowhere")
    elif kind == "file":
        work.write_text("mine")
    else:
        work.mkdir()
        name = {"link for its lock": LOCK, "link for its mark": MARK, "folder": "mine"}[kind]
        (work / name).symlink_to(victim / "thesis")
    before = sorted(os.listdir(work.parent))
    with pytest.raises(ArgumentError, match="in the way, and hftune did not make it"):
        publish(out)
    assert (victim / "thesis").read_text() == "mine" and sorted(os.listdir(work.parent)) == before


def test_two_at_once(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LOCK_SECONDS", 0.1)
    monkeypatch.setattr("hftune.publishing.locks.acquire_lock.__defaults__", ("--output_dir", 0.1))
    with published_folder(out) as aside:
        (aside / "a").write_text("first")
        with pytest.raises(ArgumentError, match="another process is writing to"):
            publish(out)
    assert seen(out) == {"a": "first"} and [*out.parent.iterdir()] == [out]


# --- recovering: each state in which a process can die ---


def interrupted(out: Path, *, ready: bool, moved: bool, placed: bool, old: str | None = "old") -> Path:
    """What a killed process leaves: the old result moved away or not, the new one whole or not, in its place or not."""
    if old:
        publish(out, old)
    work = work_folder(out)
    result = begin_work(work)
    (result / "weights").write_text("new")
    finish_manifest(result, {"status": "complete"})
    if ready:
        make_ready(work)
    if moved:
        out.rename(work / REPLACED)
    if placed:
        (work / RESULT).rename(out)
    return work


@pytest.mark.parametrize(
    ("ready", "moved", "placed", "said"),
    [
        (False, False, False, ["removed {work}, left by"]),
        (True, False, False, ["removed {work}, left by"]),
        (True, True, True, []),
        (True, True, False, ["put in place the finished result of {out}"]),
        (False, True, False, ["brought back the result of {out}"]),  # nobody leaves this; it is safe all the same
    ],
)
def test_the_next_start_recovers(
    out: Path, ready: bool, moved: bool, placed: bool, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[str] = []
    monkeypatch.setattr(folders, "notice", notices.append)
    work = interrupted(out, ready=ready, moved=moved, placed=placed)
    folders.recover(out)
    assert [one.startswith(each.format(work=work, out=out)) for one, each in zip(notices, said, strict=True)] == [
        True for _ in said
    ]
    assert (out / "weights").read_text() == ("new" if ready and moved else "old")
    assert not any(work.iterdir()), "emptied; whoever holds it removes it"
    interrupted(out, ready=ready, moved=moved, placed=placed, old=None)
    publish(out, "newest", overwrite=True)
    assert seen(out)["weights"] == "newest" and [*out.parent.iterdir()] == [out]


def test_a_replaced_folder_with_a_strangers_file_survives_recovery(out: Path) -> None:
    work = interrupted(out, ready=True, moved=True, placed=True)
    (work / REPLACED / "thesis").write_text("mine")
    folders.recover(out)
    assert (out.with_name("out.replaced") / "thesis").read_text() == "mine"


@pytest.mark.parametrize("left", [[], [".hftune.work.aa11.partial"], [".lock"], [".lock", ".hftune.work.0.partial"]])
def test_a_process_that_died_before_it_had_a_mark(out: Path, left: list[str]) -> None:
    work = work_folder(out)
    work.mkdir(parents=True)
    for name in left:
        (work / name).write_text("")
    publish(out)
    assert seen(out)["weights"] == "new" and [*out.parent.iterdir()] == [out]


def test_a_deletion_cut_short_leaves_the_mark(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = interrupted(out, ready=True, moved=False, placed=False)
    monkeypatch.setattr(folders.shutil, "rmtree", lambda folder: os.rmdir(work / "gone"))
    with pytest.raises(FileNotFoundError):
        folders.clear_work(work)
    assert (work / MARK).is_file() and folders.is_ours(work), "or the next start would not touch it"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"readyready\n", b"ready\n and more", b"", b"READY\n"])
def test_a_mark_that_is_none_of_ours(out: Path, content: bytes) -> None:
    work = work_folder(out)
    (work / RESULT).mkdir(parents=True)
    (work / MARK).write_bytes(content)
    assert not folders.is_ours(work) and not folders.is_ready(work)


def test_names_are_durable_after_each_rename(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the exchange, of what is kept aside, and of what is completed later: the folder above is flushed."""
    publish(out, "old")
    order: list[str] = []
    flush_tree, rename = folders.flush_tree, os.rename
    monkeypatch.setattr(folders, "flush_tree", lambda place: (order.append("flush"), flush_tree(place)))
    monkeypatch.setattr(folders, "flush", lambda place: order.append(f"flush {place.name}"))
    monkeypatch.setattr(os, "rename", lambda a, b: (order.append(Path(b).name), rename(a, b)))
    publish(out, overwrite=True)
    assert order == ["flush", "replaced", "flush room", "out", "flush room", "discarded"], (
        "all of it before the renames"
    )
    work = interrupted(out, ready=True, moved=True, placed=False, old=None)
    order.clear()
    folders.recover(out)
    assert order == ["out", "flush room", "discarded"] and not any(work.iterdir())
    work = interrupted(out, ready=True, moved=True, placed=True, old=None)
    (work / REPLACED / "thesis").write_text("mine")
    order.clear()
    folders.recover(out)
    assert order == ["out.replaced", "flush room"]


@pytest.mark.parametrize("call", range(1, 4))
def test_a_rename_that_fails_brings_the_old_result_back(out: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    publish(out, "old")
    rename, calls = os.rename, 0

    def fail(*names: object) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(5, os.strerror(5))
        rename(*names)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(ArgumentError, match="Input/output"):
        publish(out, overwrite=True)
    assert (out / "weights").read_text() == ("old" if call < 3 else "new")
    monkeypatch.undo()
    publish(out, "newest", overwrite=True)
    assert seen(out)["weights"] == "newest" and [*out.parent.iterdir()] == [out]


def test_an_exchange_that_cannot_be_taken_back_waits_for_the_next_start(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(out, "old")
    made: list[Any] = []
    rename = os.rename

    def fail(*names: Any) -> None:
        made.append(names)
        if len(made) > 1:
            raise OSError(5, os.strerror(5))
        rename(*names)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(ArgumentError, match="Input/output"):
        publish(out, overwrite=True)
    monkeypatch.undo()
    assert not out.exists() and (work_folder(out) / REPLACED / "weights").read_text() == "old"
    folders.recover(out)
    assert (out / "weights").read_text() == "new", "it was ready"


def test_a_folder_that_others_always_remove_again_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many writers that end one after the other, each of them quicker than this one."""
    tried: list[Path] = []

    def removed(lock: Path, *_: object) -> None:
        tried.append(lock)
        raise FileNotFoundError(2, "No such file or directory", str(lock))

    monkeypatch.setattr(folders, "acquire_lock", removed)
    monkeypatch.setattr(folders, "LOCK_SECONDS", 0.1)
    with pytest.raises(ArgumentError, match="another process is writing to"), published_folder(tmp_path / "out"):
        pytest.fail("it was not locked")
    assert len(tried) > 1


def test_a_folder_that_takes_no_files_is_one_message() -> None:
    """As /proc answers, and a folder that is removed at the same moment: ENOENT, which ended in a traceback."""
    work, target = Path("/proc/self/.report.html.partial"), "/proc/self/report.html"
    with pytest.raises(ArgumentError, match="/proc/self cannot be written"), folders.work_folder_locked(work, target):
        pass
