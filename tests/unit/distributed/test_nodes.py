"""What processes say together: problems of one machine, shared folders, who is on which machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.distributed import nodes, ranks
from hftune.errors import ArgumentError, ManifestError

HERE = ("no data", "--train_file_dir", "copy it")


def everywhere(monkeypatch: pytest.MonkeyPatch, *others: tuple[str, list[Any]]) -> None:
    """Other processes beside this one, with their problems."""
    monkeypatch.setattr(nodes.ranks, "gathered_objects", lambda own: [own, *others])


def test_problems_of_all_are_said_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere(monkeypatch, ("b", [HERE]))
    with pytest.raises(ManifestError) as caught:
        nodes.raise_on_all_ranks([ManifestError(HERE[0], place=HERE[1], fix=HERE[2])])
    assert caught.value.cause == "no data", "and of their own kind"
    assert caught.value.on_all_ranks, "one process a machine says it"


def test_problems_of_some_are_said_by_all_with_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere(monkeypatch, ("b", [HERE]), ("b", [HERE]), ("c", [HERE]))
    with pytest.raises(ArgumentError, match=r"^on b, c: no data\n  where: --train_file_dir\n  to do: copy it$"):
        nodes.raise_on_all_ranks([])  # here all is well
    everywhere(monkeypatch, ("b", [("odd", None, None)]))
    with pytest.raises(ArgumentError, match="2 problems") as caught:
        nodes.raise_on_all_ranks([ArgumentError("here")])
    assert "on b: odd" in str(caught.value) and f"on {nodes.host()}: here" in str(caught.value)


def test_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere(monkeypatch, ("b", []))
    nodes.raise_on_all_ranks(iter([]))


def test_a_folder_that_another_machine_does_not_see(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert nodes.is_shared(tmp_path / "out") and not list((tmp_path / "out").iterdir()), "nothing is left"
    monkeypatch.setattr(nodes.ranks, "gathered_objects", lambda own: [own, False])
    assert not nodes.is_shared(tmp_path / "out") and not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    "processes, several",
    [
        ([("a", True), ("a", False)], False),
        ([("a", True), ("b", True)], True),
        ([("localhost", True), ("localhost", False), ("localhost", True)], True),  # two machines of one name
    ],
)
def test_several_machines(monkeypatch: pytest.MonkeyPatch, processes: list[tuple[str, bool]], several: bool) -> None:
    monkeypatch.setattr(nodes.ranks, "gathered_objects", lambda own: processes)
    assert nodes.spans_machines() == several


def test_what_a_process_says_of_itself() -> None:
    facts = nodes.process_facts()
    assert facts["host"] == nodes.host() and facts["versions"]["torch"] == torch.__version__
    assert len(facts["code"]["hftune's files"]) == 16 and nodes.collective_seconds(torch.device("cpu")) == 0.0


def test_the_commit_is_git_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, git = tmp_path / "hftune", tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    monkeypatch.setattr(nodes.hftune, "__file__", str(package / "__init__.py"))
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert nodes._commit() is None
    (git / "packed-refs").write_text("# pack-refs\n0123456789abcdef refs/heads/main\n")
    assert nodes._commit() == "0123456789ab"
    (git / "refs" / "heads" / "main").write_text("fedcba9876543210\n")
    assert nodes._commit() == "fedcba987654", "what is loose is newer"
    (git / "HEAD").write_text("aaaabbbbccccdddd\n")
    assert nodes._commit() == "aaaabbbbcccc", "no branch"


def test_processes_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_SIZE", "8")  # DeepSpeed's launcher
    assert ranks.local_world_size() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert ranks.local_world_size() == 4
