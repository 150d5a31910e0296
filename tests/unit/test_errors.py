"""Messages and exit codes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from hftune.errors import ArgumentError, DataError, UserError, raise_together, shown

SCRIPT = "from hftune.errors import *\ndef main():\n    raise {error}\nrun_script(main)\n"


def test_several_problems_are_one_message() -> None:
    raise_together([])
    problems = [ArgumentError("first", place="--a", fix="do a"), ArgumentError("second", place="--b")]
    with pytest.raises(UserError) as caught:
        raise_together(problems)
    assert str(caught.value).splitlines() == [
        "2 problems, nothing was started:",
        "1. first",
        "  where: --a",
        "  to do: do a",
        "2. second",
        "  where: --b",
    ]


@pytest.mark.parametrize("error, code, traceback", [("UserError('no')", 2, False), ("KeyError('bug')", 1, True)])
def test_exit_code_tells_a_user_error_from_a_bug(error: str, code: int, traceback: bool) -> None:
    script = [sys.executable, "-c", SCRIPT.format(error=error)]
    finished = subprocess.run(script, capture_output=True, text=True)
    assert finished.returncode == code
    assert ("Traceback" in finished.stderr) is traceback
    if code == 2:
        assert finished.stderr.strip() == "error: no"


def test_a_name_that_is_too_long_is_one_message() -> None:
    program = "from pathlib import Path; from hftune.errors import run_tool; run_tool(Path('x' * 300 + chr(27)).is_dir)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2 and "error: a name is longer than the system takes: xxx" in done.stderr
    assert "Traceback" not in done.stderr and "\x1b" not in done.stderr


def test_a_link_that_leads_to_itself_is_one_message(tmp_path: Path) -> None:
    """`hftune data check LINK` ended in a traceback of pathlib's."""
    (tmp_path / "loop").symlink_to("loop")
    program = f"from pathlib import Path; from hftune.errors import run_tool; run_tool(Path('{tmp_path}/loop').resolve)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2 and f"error: a link leads back to itself: {tmp_path}/loop" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("around", "words"),
    [
        ("hftune --help > /dev/full", "error: where the output goes: No space left on device"),
        ("hftune --help > /dev/full 2>&1", ""),
        ("mkdir gone; cd gone; rmdir ../gone; hftune watch . --once", ""),
        ("mkdir gone; cd gone; rmdir ../gone; hftune init sft", ""),
        ("PYTHONIOENCODING=ascii hftune 学习率", "error: there is no `hftune \\u5b66"),
    ],
)
def test_whatever_the_shell_gives(tmp_path: Path, around: str, words: str) -> None:
    """A full disk behind the output, a working folder that is gone, an output that is not UTF-8: no traceback."""
    hftune = Path(sys.executable).with_name("hftune")
    shell = ["bash", "-c", around.replace("hftune", str(hftune), 1)]
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr and words in done.stderr


def test_a_data_error_travels_between_processes_whole() -> None:
    error = DataError("cause", place="a.jsonl:3", fix="fix it", kind="malformed JSON")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is DataError and vars(again) == vars(error) and str(again) == str(error)
    moved = error.at("b.jsonl:7")
    assert (moved.cause, moved.place, moved.fix, moved.kind) == ("cause", "b.jsonl:7", "fix it", "malformed JSON")
    assert DataError("cause").kind == "unusable record"


@pytest.mark.parametrize(
    ("value", "text"),
    [("a\nb\t c", "a b c"), ("x" * 10, "x" * 10), ("x" * 11, "x" * 7 + "..."), ([1, None], "[1, None]"), ("", "")],
)
def test_values_are_quoted_on_one_line(value: object, text: str) -> None:
    assert shown(value, 10) == text
