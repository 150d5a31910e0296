"""What a trainer sends to the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hftune.trainers import hub
from tests.unit.trainers.features import made_up


@pytest.mark.parametrize(
    ("named", "asked", "repo"),
    [("mine/model", "from/arguments", "mine/model"), (None, "from/arguments", "from/arguments"), (None, None, "out")],
)
def test_the_output_folder_with_what_was_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str | None, asked: str | None, repo: str
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(hub, "push", lambda *given, **options: sent.append((given, options)) or "done")
    args = {"output_dir": str(tmp_path / "out"), "hub_model_id": asked, "hub_token": "from arguments"}
    args |= {"hub_private_repo": True, "hub_revision": "main", "hub": "modelscope"}
    run = made_up.run(args=args, hub_model_id=named, is_world_process_zero=lambda: True)
    for private in (False, None):
        assert hub.push_result(run, message="done", token=None, revision=None, private=private) == "done"
    options = {"token": "from arguments", "message": "done", "revision": "main", "hub": "modelscope"}
    assert sent == [((tmp_path / "out", repo), options | {"private": private}) for private in (False, True)]
    run.is_world_process_zero = lambda: False
    assert hub.push_result(run, message="", token=None, revision=None, private=None) is None and len(sent) == 2


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
