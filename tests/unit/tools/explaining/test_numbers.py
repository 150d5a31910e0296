"""`hftune explain HF201`, the messages that the source has, and the pages of errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hftune.cli import dispatch
from hftune.error_numbers import families
from hftune.errors import ArgumentError
from hftune.tools.explaining.error_pages import error_pages
from hftune.tools.explaining.messages import Message, Source, kinds, messages
from hftune.tools.explaining.numbers import explain_number, is_number, users_language
from tests.documents import ROOT

MODULE = '''
_FIX = "copy it again"
_WORKED_OUT = ", ".join(("a", "b"))

class Own(DataError):
    """Found by its base."""

def cannot(cause, place, *, fix=_FIX):
    return ArgumentError(f"cannot do it: {cause}", place=place, fix=fix)

raise cannot("x", "--x")

def helper(cause, fix):
    raise UserError(cause, fix=fix)

def use(path, asked):
    if asked:
        raise DataError("a literal text", fix=_FIX)
    words = "one case" if path else "another case"
    raise Own(words)

def more(self, name):
    helper(f"{name} is odd, one of {_WORKED_OUT}", "take another")
    helper("no way out here", other())
    helper(cause="given by name", fix=f"use {name.upper()}, or leave it out")
    raise ArgumentError(other(), fix="nobody knows what of")
    raise ArgumentError("it was joined " + name, fix=_FIX)
    left, right = "left of two", "right of two"
    raise ArgumentError(right)
    raise ValueError("no error for users")
'''


def test_messages_are_found_in_the_source() -> None:
    assert list(Source(MODULE).messages()) == [
        Message("cannot do it: x", "copy it again"),
        # A parameter is what the calls give for it.
        Message("{name} is odd, one of {...}", ""),
        Message("no way out here", ""),
        Message("given by name", ""),
        Message("a literal text", "copy it again"),
        Message("it was joined {...}", "copy it again"),
        Message("right of two", ""),
    ]


def test_a_helper_with_one_way_out_shows_it() -> None:
    source = 'def helper(fix):\n    raise UserError("too long", fix=fix)\n\ndef use():\n    helper("cut it")\n'
    assert list(Source(source).messages()) == [Message("too long", "cut it")]


@pytest.mark.parametrize(
    ("lines", "cause", "fix"),
    [
        # One of the ways out is only known when the error is made.
        ('fix = "do it" if a else other()', "{name} is odd", ""),
        ('fix = "do it"', "{name} is odd", "do it"),
        ('name, fix = None, "do it"', "{name} is odd", "do it"),
        ('name, fix = "it", join(["do it", *more])', "it is odd", "do it"),
    ],
)
def test_what_is_assigned_before(lines: str, cause: str, fix: str) -> None:
    source = f'def use(name):\n    {lines}\n    raise UserError(f"{{name}} is odd", fix=fix)\n'
    assert list(Source(source).messages()) == [Message(cause, fix)]


def test_classes_of_errors_are_found() -> None:
    assert {"UserError", "DataError", "GateFailed", "StageFailed", "Refused"} <= kinds()
    assert not {"Preempted", "ValueError"} & kinds()


def test_every_number_has_messages() -> None:
    said = {number: messages(number) for number in families()}
    assert [number for number, found in said.items() if not found] == []
    assert Message("{file} is empty (0 bytes)", "Remove it or fill it.") in said["HF201"]
    causes = [message.cause for found in said.values() for message in found]
    assert len(causes) > 800 and not [cause for cause in causes if not cause.strip()]
    assert all(len({message.cause for message in found}) == len(found) for found in said.values())


def test_a_number_is_explained(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    text = families()["HF201"].texts["en"]
    dispatch(["explain", "hf201"])
    shown = capsys.readouterr().out
    assert shown.startswith(f"HF201: {text.title}\n  {text.means}\n  to do: {text.do}\n  messages:\n")
    assert "\n    {path} does not exist\n      to do: Give a folder or a file" in shown
    dispatch(["explain", "--language", "zh", "HF201", "HF202"])
    shown = capsys.readouterr().out
    assert shown.startswith(f"HF201: {families()['HF201'].texts['zh'].title}\n") and "\n\nHF202: " in shown
    assert "处理：" in shown and "{path} does not exist" in shown
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    dispatch(["explain", "HF202"])
    assert families()["HF202"].texts["zh"].means in capsys.readouterr().out


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "C", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({"LANG": "de_DE", "LC_ALL": ""}, "en"),
    ],
)
def test_the_language_is_that_of_the_users_programs(environment: dict[str, str], language: str) -> None:
    assert users_language(environment) == language


@pytest.mark.parametrize(("word", "near"), [("HF299", "HF301, HF302, HF303"), ("HF100", "HF101"), ("hf9999", "HF920")])
def test_a_number_that_nobody_has(word: str, near: str) -> None:
    with pytest.raises(ArgumentError, match=f"no error has the number {word.upper()}") as caught:
        explain_number(word, "en")
    assert f"the nearest are {near}" in str(caught.value.fix)


def test_numbers_and_names_are_told_apart() -> None:
    assert is_number("HF201") and is_number("hf7")
    assert not is_number("hf_hub_token") and not is_number("HF201x") and not is_number("--HF201")


@pytest.mark.parametrize("words", [["--language"], ["HF101", "--language", "fr"]])
def test_a_language_that_there_is_not(words: list[str]) -> None:
    with pytest.raises(ArgumentError, match="--language takes en or zh"):
        dispatch(["explain", *words])


def test_a_program_prints_a_number_that_explain_knows() -> None:
    """The last of its line; `hftune explain` needs no library that takes seconds for it."""
    command = [sys.executable, "-X", "importtime", "-m", "hftune.cli"]
    done = subprocess.run([*command, "explain", "HF999"], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == 2
    assert said == [
        *("", "error: no error has the number HF999 (hftune explain HF110)", "  where: hftune explain"),
        *("  to do: the nearest are HF920, HF918, HF917; all of them are in docs/errors/index.md", ""),
    ]
    assert not {"torch", "transformers", "datasets"} & {
        line.rpartition("|")[2].strip() for line in done.stderr.splitlines()
    }
    assert "HF110: hftune has no such command or name" in explain_number("HF110", "en")


def test_the_pages_are_up_to_date() -> None:
    stale = [
        name
        for name, text in error_pages().items()
        if not (ROOT / "docs" / name).is_file() or (ROOT / "docs" / name).read_text(encoding="utf-8") != text
    ]
    assert not stale, "python -m hftune.tools.explaining --write-docs"
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("errors/*.md")}
    assert there == {*error_pages()}


def test_a_section_of_a_page() -> None:
    page = error_pages()["errors/data.md"]
    text = families()["HF201"].texts["en"]
    assert page.startswith("# HF2xx: Data and records\n\n")
    assert (
        f'\n<a id="hf201"></a>\n\n## HF201: {text.title}\n\n{text.means}\n\n**To do.** {text.do}\n\n```text\n' in page
    )
    assert "[formats.md](../formats.md) shows a record of each" in page and "`docs/" not in page.replace(
        "`docs/parameters/`", ""
    )
    assert "| [HF201](data.md#hf201) | No data file is found |" in error_pages()["errors/index.md"]
    assert "[formats.md](../formats.md)" in error_pages()["zh/errors/data.md"]
