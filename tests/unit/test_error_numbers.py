"""Every error for users has a number, which keeps its meaning; the table that says so is whole, in both languages."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hftune import error_numbers
from hftune.arguments.stage_table import STAGES
from hftune.cli import COMMANDS
from hftune.error_numbers import LANGUAGES, families, number_of, table
from hftune.errors import (
    ArgumentError,
    DataError,
    UserError,
    message_with_number,
    raise_together,
    sent,
    to_send,
)
from hftune.opening.yaml_file import read_yaml
from hftune.tools.explaining.messages import makes_errors, modules
from tests.documents import ROOT

NUMBERS = sorted(families())
MAKERS = [module for module in modules() if makes_errors(module)]
CODE = """
from hftune.errors import ArgumentError, DataError, UserError

class Own(DataError):
    def __init__(self, cause):
        super().__init__(cause, kind="own")

def problem(kind=UserError):
    return kind("first line:\\nsecond", place="--a", fix="do b")

class Opened:
    def __init__(self):
        raise DataError("cannot be opened")
"""


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that makes errors, under the name of one of hftune's."""
    made = ModuleType("hftune.data.readers.files")
    exec(CODE, vars(made))
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_every_module_that_makes_errors_has_one_number() -> None:
    assert len(MAKERS) > 250 and {"cli", "errors", "data.readers.files", "tools.pipeline.gates"} <= {*MAKERS}
    assert [module for module in MAKERS if not number_of(f"hftune.{module}")] == []
    named = [module for number in NUMBERS for module in families()[number].modules]
    assert sorted(named) == sorted({*named}), "a module stands in two families"


def test_every_family_has_modules_that_make_its_errors() -> None:
    stale = [
        (number, name)
        for number in NUMBERS
        for name in families()[number].modules
        if not any(module == name or module.startswith(f"{name}.") for module in MAKERS)
    ]
    assert stale == []


def test_numbers_are_given_once() -> None:
    """Each is in the table or retired, from the first of its room to the last that was given."""
    given = [*NUMBERS, *table()["retired"]]
    assert sorted(given) == sorted({*given})
    for room, row in table()["rooms"].items():
        own = sorted(number for number in given if number[2] == room)
        assert own == [f"HF{number}" for number in range(int(f"{room}01"), int(row["last"][2:]) + 1)]
    assert {number[2] for number in given} == {*table()["rooms"]}
    assert [*families()] == NUMBERS, "in order"


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_is_explained_in_both_languages(number: str) -> None:
    assert {*families()[number].texts} == {*LANGUAGES} == {"en", "zh"}
    for language, text in families()[number].texts.items():
        chinese = language == "zh"
        ends = re.findall(r"。" if chinese else r"[.?](?= |$)", f"{text.means} {text.do}")
        assert 3 <= len(ends) <= 9 and len(text.title) <= 90 and not text.title.endswith((".", "。"))
        for part in (text.title, text.means, text.do):
            assert bool(re.search("[\u4e00-\u9fff]", part)) is chinese, part
            assert part == part.strip() and "\n" not in part


def test_texts_name_what_exists() -> None:
    source = "\n".join(file.read_text(encoding="utf-8") for file in modules().values())
    known, faults = {*re.findall(r"\w+", source)}, []
    for number in NUMBERS:
        for language, text in families()[number].texts.items():
            words = f"{text.title} {text.means} {text.do}"
            faults += [(number, flag) for flag in re.findall(r"--([a-z]\w+)", words) if flag not in known]
            pages = re.findall(r"docs/[\w/]+\.md", words)
            # Each language leads to its own pages.
            faults += [(number, page) for page in pages if not (ROOT / page).is_file()]
            faults += [(number, page) for page in pages if ("/zh/" in page) is not (language == "zh")]
            commands = re.findall(r"`hftune ([a-z]+)", words)
            faults += [(number, command) for command in commands if command not in {*COMMANDS, *STAGES}]
    assert faults == []


def test_an_error_knows_the_module_that_makes_it(files: ModuleType) -> None:
    made = files.problem()
    assert made.made_in == "hftune.data.readers.files" and number_of(made.made_in) == "HF201"
    # Classes of errors, and what only opens something, are not what made it.
    assert files.Own("x").made_in == "hftune.data.readers.files"
    with pytest.raises(DataError) as caught:
        files.Opened()
    assert caught.value.made_in == "hftune.data.readers.files"
    assert ArgumentError("x").made_in == __name__ and number_of(__name__) == ""


def test_a_real_helper_is_what_made_its_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_yaml(tmp_path / "none.yaml")
    assert number_of(caught.value.made_in) == "HF109"


def test_the_number_survives_copies_and_processes(files: ModuleType) -> None:
    error = files.problem(DataError)
    others = [pickle.loads(pickle.dumps(error)), copy.copy(error), error.at("b.yaml:7")]
    others.append(sent(*json.loads(json.dumps(to_send(error)))))
    assert [other.made_in for other in others] == [error.made_in] * 4
    moved = others[2]
    assert (moved.cause, moved.place, moved.fix, moved.kind) == (error.cause, "b.yaml:7", "do b", error.kind)
    assert str(moved) == moved.render() and "b.yaml:7" in str(moved) and error.place == "--a"
    assert to_send(others[3]) == to_send(error) and type(others[3]) is ArgumentError


def test_the_number_stands_behind_the_cause(files: ModuleType) -> None:
    lines = message_with_number(files.problem()).splitlines()
    assert lines == ["first line (hftune explain HF201):", "second", "  where: --a", "  to do: do b"]
    assert files.problem().render().splitlines()[0] == "first line:", "what tests, manifests and JSON hold stays"
    assert message_with_number(files.Own("odd")) == "odd (hftune explain HF201)"
    assert message_with_number(ArgumentError("code of a user", fix="x")) == "code of a user\n  to do: x"


def test_of_several_problems_each_has_its_number(files: ModuleType) -> None:
    with pytest.raises(UserError) as caught:
        raise_together([files.Own("one"), ArgumentError("other"), files.problem()])
    assert message_with_number(caught.value).splitlines() == [
        "3 problems, nothing was started:",
        "1. one (hftune explain HF201)",
        "2. other",
        "3. first line (hftune explain HF201):",
        *("second", "  where: --a", "  to do: do b"),
    ]
    assert message_with_number(pickle.loads(pickle.dumps(caught.value))) == message_with_number(caught.value)


def test_modules_have_the_number_of_the_nearest_package() -> None:
    assert number_of("hftune.tools.records.shards") == "HF219"
    assert number_of("hftune.preflight.rules.rl") == "HF709"
    assert number_of("hftune.preflight.rules.unheard_of") == number_of("numpy.linalg") == number_of("hftune") == ""
    # A package stands for what is in it, not for modules whose names begin alike.
    assert number_of("hftune.opening.folders") == "HF403" and number_of("hftune.openings") == ""


def test_a_message_is_shown_where_the_table_cannot_be_read(monkeypatch: pytest.MonkeyPatch, files: ModuleType) -> None:
    def no_more_files(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(error_numbers, "numbers", no_more_files)
    assert message_with_number(files.Own("odd")) == "odd"


def test_the_table_is_not_read_for_errors_that_nobody_is_shown(
    monkeypatch: pytest.MonkeyPatch, files: ModuleType
) -> None:
    monkeypatch.setattr(error_numbers, "numbers", lambda: pytest.fail("the table is read"))
    assert len({files.problem().at("x").render() for _ in range(1000)}) == 1


def test_importing_the_errors_reads_no_table() -> None:
    code = "import sys, hftune.errors; print({'tomllib', 'inspect'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
