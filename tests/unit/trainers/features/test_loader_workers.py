"""Worker processes of the DataLoader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hftune import interrupts
from hftune.errors import DataError
from hftune.trainers.features.loader_workers import LoaderWorkers, start_worker
from tests.unit.trainers.features import made_up


def test_workers_keep_working_and_do_what_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(interrupts, "keep_working", lambda: done.append("keeps working"))
    start_worker(done.append, 3)
    start_worker(None, 4)
    assert done == ["keeps working", 3, "keeps working"]


def test_the_loader_inside_accelerates_is_told_too() -> None:
    inner = SimpleNamespace(num_workers=2, worker_init_fn=None)
    alone: Any = SimpleNamespace(num_workers=0, worker_init_fn=None, base_dataloader=inner)
    LoaderWorkers().on_train_loader(made_up.run(), alone)
    assert inner.worker_init_fn is not None and alone.worker_init_fn is None


def test_an_error_of_a_worker_has_no_traceback() -> None:
    text = "Caught DataError in DataLoader worker process 0.\nTraceback ...\nhftune.errors.DataError: a bad row\n"
    with pytest.raises(DataError) as raised, LoaderWorkers().fetching(made_up.run()):
        raise DataError(text)
    assert raised.value.cause == "a bad row"
