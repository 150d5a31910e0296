"""Single files: pages with a mark, and outputs that are whole."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hftune.errors import ArgumentError
from hftune.publishing import files
from hftune.publishing.disk import free_name
from hftune.publishing.files import file_problems, is_marked, marked, published_file, write_page


def test_pages_are_made_anew_and_edited_ones_are_left(tmp_path: Path) -> None:
    file = tmp_path / "report.md"
    write_page(file, "# One\n", "report")
    write_page(file, "# Two", "report")
    assert file.read_text().startswith("# Two\n<!-- hftune report ") and is_marked(file)
    for edited in (file.read_text().replace("Two", "Mine"), "# Mine\n", "", marked("x", "report") + "more\n"):
        file.write_text(edited)
        with pytest.raises(ArgumentError, match=r"was not written by hftune, or was edited"):
            write_page(file, "# Three", "report")
        assert file.read_text() == edited


@pytest.mark.parametrize("kind", ["link", "broken link", "folder", "fifo"])
def test_what_is_no_file_is_no_page_of_ours(tmp_path: Path, kind: str) -> None:
    file, page = tmp_path / "report.html", tmp_path / "page"
    page.write_text(marked("x", "report"))
    if kind == "folder":
        file.mkdir()
    elif kind == "fifo":
        os.mkfifo(file)
    else:
        file.symlink_to(page if kind == "link" else "nowhere")
    with pytest.raises(ArgumentError):
        write_page(file, "new", "report")
    assert page.read_text() == marked("x", "report")


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


def test_a_mark_ends_a_page(tmp_path: Path) -> None:
    """It is found behind a page of any length, and not where one is quoted."""
    file = tmp_path / "page"
    for text in ("", "x", "x\n" * 1000, marked("quoted", "report")):
        file.write_text(marked(text, "report"))
        assert is_marked(file) and file.read_text().count("\n<!--") <= 2
        file.write_text(marked(text, "report") + "\n")
        assert not is_marked(file)
    assert marked("a", "card") == marked("a\n", "card") != marked("a\n\n", "card")


def test_an_output_appears_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "below" / "out.jsonl"
    with published_file(out, flag="--output") as stream:
        stream.write("one\n")
        assert not out.exists()
    with pytest.raises(ZeroDivisionError), published_file(out, flag="--output") as stream:
        stream.write("two\n")
        raise ZeroDivisionError
    assert out.read_text() == "one\n" and [*out.parent.iterdir()] == [out]
    left = out.with_name(".out.jsonl.partial")
    left.mkdir()
    (left / "hftune.work").write_text("writing\n")
    (left / "result").mkdir()
    (left / "result" / "out.jsonl").write_text("half")
    with published_file(out, flag="--output") as stream:
        stream.write("three\n")
    assert out.read_text() == "three\n" and [*out.parent.iterdir()] == [out]


@pytest.mark.parametrize("ours, overwrite, words", [(False, True, "did not write"), (True, False, "add --over")])
def test_a_file_that_is_there(tmp_path: Path, ours: bool, overwrite: bool, words: str) -> None:
    file = tmp_path / "a"
    asked = {"overwrite": overwrite, "flag": "--output", "overwrite_flag": "--over"}
    assert not [*file_problems(file, written_by_us=lambda _: ours, **asked)]
    file.write_text("x")
    (problem,) = file_problems(file, written_by_us=lambda _: ours, **asked)
    assert words in str(problem)
    assert not [*file_problems(file, written_by_us=lambda _: True, **asked | {"overwrite": True})]
    (tmp_path / "link").symlink_to(file)
    (problem,) = file_problems(tmp_path / "link", written_by_us=lambda _: True, **asked | {"overwrite": True})
    assert "did not write" in str(problem) and free_name(file) != file


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_page_that_a_kill_cut_short_leaves_nothing_behind(tmp_path: Path, call: str) -> None:
    file = tmp_path / "report.md"
    write_page(file, "# One", "report")
    child = os.fork()
    if child == 0:
        if call == "write":
            files.redact = lambda text: os.kill(os.getpid(), signal.SIGKILL)
        else:
            setattr(os, call, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        write_page(file, "# Two", "report")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert file.read_text().startswith("# One")
    write_page(file, "# Three", "report")
    assert [*tmp_path.iterdir()] == [file] and file.read_text().startswith("# Three")
