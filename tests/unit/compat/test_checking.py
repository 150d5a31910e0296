"""Every private or replaced part of another library is as listed; a failure says which feature of hftune breaks."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest

from hftune.compat import checking
from hftune.compat.checking import find, parameters_of, problem_of
from hftune.compat.symbols import UpstreamSymbol, entry_of, listed


@pytest.mark.parametrize("entry", listed(), ids=lambda entry: entry.symbol)
def test_upstream_has_it(entry: UpstreamSymbol) -> None:
    problem = problem_of(entry)
    assert problem is None, problem


def a_function(first: int, *rest: int, key: str = "", **others: Any) -> None:
    """Made up."""


class Owner:
    """Made up."""

    def __init__(self) -> None:
        self._set_here = 1

    def method(self, first: int) -> None:
        """Made up."""

    @classmethod
    def of_class(cls, first: int) -> None:
        """Made up."""


class Heir(Owner):
    """Made up."""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A library `made_up` in version 2.0 with what stands above."""
    module = types.ModuleType("made_up")
    vars(module).update(a_function=a_function, Owner=Owner, Heir=Heir)
    monkeypatch.setitem(checking.importlib.import_module("sys").modules, "made_up", module)
    monkeypatch.setattr(checking.importlib.util, "find_spec", lambda name: object() if name == "made_up" else None)
    monkeypatch.setattr(checking, "installed", lambda library: "2.0" if library == "made_up" else None)
    return module


def entry(path: str, *parameters: str, versions: str = ">=1", checked: bool = True) -> UpstreamSymbol:
    return UpstreamSymbol(f"made_up.{path}", parameters if checked else None, versions, "why", "--some_flag")


@pytest.mark.parametrize(
    "listed_as",
    [
        entry("a_function", "first", "*rest", "key", "**others"),
        entry("a_function", "first", "key", "..."),
        entry("a_function", "..."),
        entry("a_function", checked=False),
        entry("Owner.method", "first"),
        entry("Owner.of_class", "first"),
        entry("Heir.method", "first"),
        entry("Owner._set_here", checked=False),
        entry("Heir._set_here", checked=False),
        entry("gone", versions=">=3"),
        entry("gone", versions=">=1,<2"),
        UpstreamSymbol("not_there.gone", None, ">=1", "why", "--some_flag"),
    ],
)
def test_nothing_to_say(listed_as: UpstreamSymbol, library: types.ModuleType) -> None:
    assert problem_of(listed_as) is None


@pytest.mark.parametrize(
    ("listed_as", "said"),
    [
        (entry("gone"), "made_up.gone is not in made_up 2.0: --some_flag needs it"),
        (entry("gone.deeper"), "made_up.gone.deeper is not in made_up 2.0: --some_flag needs it"),
        (entry("Owner._never_set", checked=False), "made_up.Owner._never_set is not in made_up 2.0"),
        (entry("Owner.method"), "made_up.Owner.method takes (first) in made_up 2.0, and took ()"),
        (entry("Owner.method", "first", "second"), "takes (first) in made_up 2.0, and took (first, second)"),
        (entry("a_function", "key", "first", "..."), "takes (first, *rest, key, **others) in made_up 2.0"),
        (entry("a_function", "first", "rest", "key", "others"), "takes (first, *rest, key, **others)"),
        (entry("Owner.__doc__", "first"), "takes (?)"),
    ],
)
def test_changes_are_said(listed_as: UpstreamSymbol, said: str, library: types.ModuleType) -> None:
    assert said in (problem_of(listed_as) or "nothing")


def test_a_later_version_is_looked_at(library: types.ModuleType) -> None:
    assert list(checking.problems([entry("gone", versions=">=1"), entry("Owner"), entry("lost")])) == [
        "made_up.gone is not in made_up 2.0: --some_flag needs it",
        "made_up.lost is not in made_up 2.0: --some_flag needs it",
    ]


def test_a_replacement_shows_the_original(library: types.ModuleType) -> None:
    library.a_function = functools.wraps(a_function)(lambda *anything: None)  # type: ignore[attr-defined]  # made up
    assert parameters_of(find("made_up.a_function")) == ("first", "*rest", "key", "**others")


USES = {"imported", "read", "overridden", "replaced", "replaced on an object", "set"}


def test_rows() -> None:
    names = [entry.symbol for entry in listed()]
    assert len({*names}) == len(names) > 50
    for entry in listed():
        assert entry.why and entry.feature, entry.symbol
        assert entry.use in USES, entry.symbol
        assert entry.source and not entry.source.startswith("/"), entry.symbol
        assert entry.versions or entry.library == "argparse", entry.symbol


def test_a_row_by_its_symbol() -> None:
    found = entry_of("transformers.trainer.Trainer._save")
    assert (found.library, found.name) == ("transformers", "_save")
    assert found.parameters == ("output_dir", "state_dict")
    with pytest.raises(KeyError):
        entry_of("transformers.trainer.Trainer.gone")
