"""Which checkpoints DeepSpeed loads itself, and what is said of random states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.trainers import resharding
from tests.unit.trainers.features import made_up


@pytest.mark.parametrize("same_world", [True, False])
def test_deepspeed_loads_its_own_and_others_are_resharded(monkeypatch: pytest.MonkeyPatch, same_world: bool) -> None:
    done: list[Any] = []

    @contextmanager
    def loader(replacement: Any) -> Iterator[None]:
        replacement(lambda *given, **options: done.append(("DeepSpeed", *given, options)), "engine", "folder", {"a": 1})
        yield

    @contextmanager
    def checked(folder: str) -> Iterator[None]:
        done.append(("checked", folder))
        yield

    monkeypatch.setattr(resharding, "checkpoint_loader", loader)
    monkeypatch.setattr(resharding, "checked_loading", checked)
    monkeypatch.setattr(resharding, "is_of_this_world", lambda engine, folder: same_world)
    monkeypatch.setattr(resharding, "reshard", lambda run, folder: done.append(("resharded", folder)))
    with resharding.any_world(made_up.run()):
        pass
    own = [("checked", "folder"), ("DeepSpeed", "engine", "folder", {"a": 1})]
    assert done == (own if same_world else [("resharded", "folder")])


def test_a_run_without_deepspeed_reads_what_deepspeed_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(resharding, "engine_folder", lambda folder: folder if folder == "DeepSpeed's" else None)
    monkeypatch.setattr(resharding, "reshard", lambda run, folder: done.append(folder))
    monkeypatch.setattr(resharding, "scheduler_state", lambda folder: {"of": folder})
    run = made_up.run(lr_scheduler=SimpleNamespace(load_state_dict=done.append))
    assert not resharding.load_optimizer(run, "the Trainer's")
    assert resharding.load_optimizer(run, "DeepSpeed's") and done == ["DeepSpeed's", {"of": "DeepSpeed's"}]
    run.is_deepspeed_enabled = True
    assert not resharding.load_optimizer(run, "DeepSpeed's")


@pytest.mark.parametrize(("known", "said"), [(1, 0), (2, 1)])
def test_random_states_of_another_world_are_said(monkeypatch: pytest.MonkeyPatch, known: int, said: int) -> None:
    notices: list[str] = []
    monkeypatch.setattr(resharding, "written_by", lambda folder: known)
    monkeypatch.setattr(resharding, "notice", notices.append)
    resharding.say_random_states("folder")
    assert len(notices) == said and all("random states of 2 process(es)" in one for one in notices)
