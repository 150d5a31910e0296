"""Single files: pages and outputs that are whole, and known by their digest."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hftune.errors import ArgumentError
from hftune.publishing import folder as files
from hftune.publishing.folder import published_file, write_page
from hftune.publishing.ownership import WRITTEN_NAME, is_written


def test_pages_are_made_anew_and_edited_ones_are_left(tmp_path: Path) -> None:
    file = tmp_path / "report.md"
    write_page(file, "# One\n")
    write_page(file, "# Two")
    assert file.read_text() == "# Two\n" and is_written(file)
    for edited in ("# Mine", "", "# Two"):
        file.write_text(edited)
        with pytest.raises(ArgumentError, match=r"hftune did not write it, or it was edited"):
            write_page(file, "# Three")
        assert file.read_text() == edited


def test_an_output_is_flushed_before_it_has_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, order, replace = tmp_path / "out.jsonl", [], os.replace
    monkeypatch.setattr(files, "flush", lambda folder: order.append(("folder", folder)))
    monkeypatch.setattr(files.os, "fsync", lambda handle: order.append(os.readlink(f"/proc/self/fd/{handle}")))
    monkeypatch.setattr(files.os, "replace", lambda a, b: (order.append("renamed"), replace(a, b)))
    with published_file(out, flag="--output") as stream:
        order.clear()
        stream.write("ü\n")
    assert [str(one).rpartition("/")[2] for one in order[:2]] == ["out.jsonl", "renamed"]
    assert order[2] == ("folder", tmp_path) and out.read_bytes() == "ü\n".encode()


def test_an_output_appears_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "below" / "out.jsonl"
    with published_file(out, flag="--output") as stream:
        stream.write("one\n")
        assert not out.exists()
    with pytest.raises(ZeroDivisionError), published_file(out, flag="--output") as stream:
        stream.write("two\n")
        raise ZeroDivisionError
    assert out.read_text() == "one\n" and {*out.parent.iterdir()} == {out, out.parent / WRITTEN_NAME}
    left = out.with_name(".out.jsonl.partial")
    left.mkdir()
    (left / "hftune.work").write_text("writing\n")
    (left / "result").mkdir()
    (left / "result" / "out.jsonl").write_text("half")
    with published_file(out, flag="--output") as stream:
        stream.write("three\n")
    assert out.read_text() == "three\n" and {*out.parent.iterdir()} == {out, out.parent / WRITTEN_NAME}


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_page_that_a_kill_cut_short_leaves_nothing_behind(tmp_path: Path, call: str) -> None:
    file = tmp_path / "report.md"
    write_page(file, "# One")
    child = os.fork()
    if child == 0:
        if call == "write":
            files.redact = lambda text: os.kill(os.getpid(), signal.SIGKILL)
        else:
            setattr(os, call, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        write_page(file, "# Two")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert file.read_text().startswith("# One")
    write_page(file, "# Three")
    assert {*tmp_path.iterdir()} == {file, tmp_path / WRITTEN_NAME} and file.read_text().startswith("# Three")
