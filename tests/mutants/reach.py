"""Which fast tests reach which line of the core files: a plugin of pytest notes it, one file a test file.

`pytest -p tests.mutants.reach`: what a test's fixtures reach counts for all tests of its file, which may share them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.mutants.faults import ROOT, groups

FOLDER = ROOT / ".mutants"
FAST = "not long and not slow and not gpu"
_SHARED = " (fixtures)"


@dataclass(frozen=True)
class Reach:
    """What the tests of one file reach.

    Attributes:
        digest: Of the test file, when this was noted.
        seconds: By test, in the order of the file; those that failed are not here.
        lines: By core file and line, the tests, or the name of the file for all of them.
        sources: Digests of these core files: where one changes, its lines have other numbers.
    """

    digest: str
    seconds: dict[str, float]
    lines: dict[str, dict[str, list[str]]]
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def is_stale(self) -> bool:
        """Whether one of the files has changed since."""
        return any(digest_of(file) != digest for file, digest in self.sources.items())


def digest_of(name: str) -> str:
    """Tells whether a file has changed."""
    file = ROOT / name
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.exists() else ""


def load() -> dict[str, Reach]:
    """What was noted, by test file."""
    found = {}
    for file in sorted(FOLDER.glob("*.json")):
        noted = json.loads(file.read_text())
        name = noted.pop("file")
        found[name] = Reach(**noted)
    return found


class Noting:
    """The plugin: coverage of the core files, with the test at hand as its context."""

    def __init__(self) -> None:
        include = [str(ROOT / file) for group in groups().values() for file in group["files"]]
        self._coverage = coverage.Coverage(data_file=None, include=include, config_file=False)
        self._seconds: dict[str, float] = defaultdict(float)
        self._failed: set[str] = set()
        self._files: set[str] = set()
        self._coverage.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._files = {item.nodeid.split("::")[0] for item in items}  # also those whose tests are all left out

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[Any]:
        self._coverage.switch_context(item.nodeid.split("::")[0] + _SHARED)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[Any]:
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context(item.nodeid.split("::")[0] + _SHARED)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.outcome != "passed":
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._coverage.stop()
        data, lines = self._coverage.get_data(), _lines()
        for measured in data.measured_files():
            name = str(Path(measured).relative_to(ROOT))
            for line, contexts in data.contexts_by_lineno(measured).items():
                for context in contexts:
                    lines[context.split("::")[0].removesuffix(_SHARED)][name][line].append(
                        context.removesuffix(_SHARED)
                    )
        FOLDER.mkdir(exist_ok=True)
        # With several workers, each runs some of the files that were chosen.
        chosen = {item.nodeid.split("::")[0] for item in session.items}
        for file in {test.split("::")[0] for test in self._seconds} | (self._files - chosen):
            seconds = {
                test: round(spent, 3)
                for test, spent in self._seconds.items()
                if test.startswith(f"{file}::") and test not in self._failed
            }
            sources = {core: digest_of(core) for core in lines[file]}
            noted = {"file": file, "digest": digest_of(file), "sources": sources}
            noted |= {"seconds": seconds, "lines": lines[file]}
            (FOLDER / f"{file.replace(os.sep, '+')}.json").write_text(json.dumps(noted))


def _lines() -> Any:
    return defaultdict(lambda: defaultdict(lambda: defaultdict(list)))


def pytest_configure(config: pytest.Config) -> None:
    """With pytest-xdist the workers note, each of them whole files (`--dist loadfile`)."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Noting(), "reach of tests")
