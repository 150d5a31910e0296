"""The `hftune` command: which subcommands there are, and what is imported for one."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hftune
from hftune.arguments.stage_table import STAGES
from hftune.cli import COMMANDS, dispatch
from hftune.errors import ArgumentError


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ["previev"],
            r"there is no `hftune previev`\n  to do: did you mean `hftune preview`\? one of: pt, .*preview, ",
        ),
        (["quux"], r"there is no `hftune quux`\n  to do: one of: pt, sft, .*merge, "),
        (["reproduce", "outputs/sft"], r"`hftune reproduce` was removed\n  to do: `hftune lineage FOLDER` says "),
        (["--hub_token=x"], r"there is no `hftune --hub_token`\n"),
    ],
)
def test_a_subcommand_that_is_not_there(argv: list[str], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        dispatch(argv)


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"], ["help"]])
def test_help_names_every_subcommand(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(argv)
    page = capsys.readouterr().out
    assert f"hftune {'|'.join(STAGES)}|merge ..." in page
    assert [name for name in COMMANDS if f"hftune {name}" not in page and name != "merge"] == []


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_the_version(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    dispatch([word])
    assert capsys.readouterr().out.strip() == f"hftune {hftune.__version__}"


def test_the_words_behind_the_name_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr("hftune.tools.reporting.entry.report", seen.append)
    dispatch(["report", "outputs/lora", "--x"])
    assert seen == [["outputs/lora", "--x"]]


def test_no_tool_is_imported_before_it_is_asked_for() -> None:
    code = "import sys, hftune.cli; print(*(name for name in sys.modules if name.startswith('hftune.tools.')), 'end')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "end"


def test_a_refusal_of_a_tool_that_imports_much_is_all_that_is_said() -> None:
    # torchao's log of kernels it cannot load, and torch's of its enums, stood before it.
    asked = [sys.executable, "-c", "from hftune.cli import main; main()", "export", "ggfu"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line]
    assert [line.strip().partition(":")[0] for line in lines] == ["error", "to do"]
