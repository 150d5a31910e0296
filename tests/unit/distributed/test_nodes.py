"""What processes say together: problems of one machine, shared folders, who is on which machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hftune.distributed import nodes
from hftune.errors import ArgumentError, ManifestError

HERE = ("no data", "--train_file_dir", "copy it")
"""As another process sends it."""


def processes(monkeypatch: pytest.MonkeyPatch, *others: tuple[str, list[Any]]) -> None:
    """Other processes than this one, with their problems."""
    monkeypatch.setattr(nodes.ranks, "gathered_objects", lambda own: [own, *others])


def test_problems_of_all_are_said_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    processes(monkeypatch, ("b", [HERE]))
    with pytest.raises(ManifestError) as caught:
        nodes.raise_on_all_ranks([ManifestError(HERE[0], place=HERE[1], fix=HERE[2])])
    assert caught.value.cause == "no data", "and of their own kind"
    assert caught.value.on_all_ranks, "one process a machine says it"


def test_problems_of_some_are_said_by_all_with_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    processes(monkeypatch, ("b", [HERE]), ("b", [HERE]), ("c", [HERE]))
    with pytest.raises(ArgumentError, match=r"^on b, c: no data\n  where: --train_file_dir\n  to do: copy it$"):
        nodes.raise_on_all_ranks([])  # here all is well
    processes(monkeypatch, ("b", [("odd", None, None)]))
    with pytest.raises(ArgumentError, match="2 problems") as caught:
        nodes.raise_on_all_ranks([ArgumentError("here")])
    assert "on b: odd" in str(caught.value) and f"on {nodes.host()}: here" in str(caught.value)


def test_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    processes(monkeypatch, ("b", []))
    nodes.raise_on_all_ranks(iter([]))


def test_a_folder_that_another_machine_does_not_see(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert nodes.is_shared(tmp_path / "out") and not list((tmp_path / "out").iterdir()), "nothing is left"
    monkeypatch.setattr(nodes.ranks, "gathered_objects", lambda own: [own, False])
    assert not nodes.is_shared(tmp_path / "out") and not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    "found, several",
    [
        ([("a", True), ("a", False)], False),
        ([("a", True), ("b", True)], True),
        ([("localhost", True), ("localhost", False), ("localhost", True)], True),  # two machines of one name
    ],
)
def test_several_machines(monkeypatch: pytest.MonkeyPatch, found: list[tuple[str, bool]], several: bool) -> None:
    monkeypatch.setattr(nodes.ranks, "gathered_objects", lambda own: found)
    assert nodes.spans_machines() == several
