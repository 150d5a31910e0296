"""What processes say together: problems of one machine, shared folders, who is on which machine."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from hftune.distributed import nodes, phases, ranks
from hftune.distributed.nodes import once_a_machine, wait_for_all
from hftune.errors import ArgumentError, DataError, ManifestError, UserError

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


def test_who_waits_is_no_hang_as_long_as_the_work_moves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks find another process at work, one finds that it stands still, the last that it is done."""
    answers = iter([(False, 1), (False, 2), (False, 2), (True, 3)])
    alive: list[int] = []
    monkeypatch.setattr(ranks, "gathered_objects", lambda own: [own, next(answers)])
    monkeypatch.setattr(phases, "keep_alive", lambda: alive.append(1))
    wait_for_all(None)
    assert len(alive) == 2 and next(answers, None) is None


def test_own_work_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_LOOK", 0.01)
    work: Future[int] = Future()
    told: list[tuple[bool, int]] = []

    def gathered(own: tuple[bool, int]) -> list[tuple[bool, int]]:
        told.append(own)
        if len(told) == 2:
            work.set_result(1)
        return [own]

    monkeypatch.setattr(ranks, "gathered_objects", gathered)
    wait_for_all(work, lambda: len(told))
    assert told == [(False, 0), (False, 1), (True, 2)]


@pytest.fixture
def in_a_group(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rank 2 or 3 of two machines of two processes; what the first of the machine finds is `told`."""
    told: dict[str, Any] = {}

    def become(local_rank: int, found: Any = None) -> None:
        monkeypatch.setattr(ranks, "is_distributed", lambda: True)
        monkeypatch.setattr(ranks, "local_rank", lambda: local_rank)
        monkeypatch.setattr(ranks, "rank", lambda: 2 + local_rank)

        def gathered(own: Any) -> list[Any]:
            if isinstance(own, tuple):
                return [own]
            told["own"] = own
            everyone = ["other", None, found, None]
            return [*everyone[: 2 + local_rank], own, *everyone[3 + local_rank :]]

        monkeypatch.setattr(ranks, "gathered_objects", gathered)

    become.told = told  # type: ignore[attr-defined]
    return become


def test_the_first_of_a_machine_asks_for_the_others(in_a_group: Any) -> None:
    in_a_group(0)
    assert once_a_machine(lambda: "key") == "key" == in_a_group.told["own"]
    in_a_group(1, found="key")
    assert once_a_machine(lambda: pytest.fail("read twice")) == "key"


def test_its_error_is_everybody_s(in_a_group: Any) -> None:
    def fails() -> str:
        raise DataError("cannot read the file", place="a.jsonl")

    in_a_group(0)
    with pytest.raises(UserError, match="cannot read the file"):
        once_a_machine(fails)


def test_a_process_alone_asks_itself() -> None:
    assert once_a_machine(lambda: 3) == 3
