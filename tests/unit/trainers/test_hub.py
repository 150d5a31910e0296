"""What a trainer sends to the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hftune.trainers import hub
from tests.unit.trainers.features import made_up


@pytest.mark.parametrize(("named", "repo"), [("mine/model", "mine/model"), (None, "from/arguments")])
def test_the_output_folder_with_what_was_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str | None, repo: str
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(hub, "push", lambda *given, **options: sent.append((given, options)) or "done")
    args = {"output_dir": str(tmp_path), "hub_model_id": "from/arguments", "hub_token": "from arguments"}
    args |= {"hub_private_repo": True, "hub_revision": "main", "hub": "modelscope"}
    run = made_up.run(args=args, hub_model_id=named, is_world_process_zero=lambda: True)
    assert hub.push_result(run, message="done", token=None, revision=None, private=False) == "done"
    options = {"token": "from arguments", "message": "done", "private": False, "revision": "main", "hub": "modelscope"}
    assert sent == [((tmp_path, repo), options)]
    run.is_world_process_zero = lambda: False
    assert hub.push_result(run, message="", token=None, revision=None, private=None) is None and len(sent) == 1


def test_a_folder_gives_its_name_where_nothing_else_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub, "push", lambda folder, repo, **options: (repo, options["private"]))
    args = {"output_dir": str(tmp_path / "model"), "hub_model_id": None, "hub_token": None, "hub_revision": None}
    args |= {"hub": None}
    run = made_up.run(args=args | {"hub_private_repo": True}, hub_model_id=None, is_world_process_zero=lambda: True)
    assert hub.push_result(run, message="", token=None, revision=None, private=None) == ("model", True)


@pytest.mark.parametrize(
    ("repo", "chosen", "upstream", "made"),
    [("me/m", None, 1, 0), ("me/m", "modelscope", 0, 1), ("s3://b/m", None, 0, 0)],
)
def test_a_repository_is_made_before_training(
    monkeypatch: pytest.MonkeyPatch, repo: str, chosen: str | None, upstream: int, made: int
) -> None:
    asked, theirs = list[tuple[object, ...]](), list[int]()
    monkeypatch.setattr(hub.modelscope, "make_repository", lambda *given: asked.append(given))
    args = {"hub_model_id": repo, "hub": chosen, "hub_token": "t", "hub_private_repo": True, "output_dir": "out"}
    hub.make_repository(made_up.run(args=args, is_world_process_zero=lambda: True), lambda: theirs.append(1))
    assert len(theirs) == upstream
    assert asked == [("me/m", "t", True, "--hub_model_id")] * made
    # One process asks for all.
    hub.make_repository(made_up.run(args=args, is_world_process_zero=lambda: False), lambda: None)
    assert len(asked) == made
