"""Sums over a whole run, by a trainer that does no more than the Trainer does with them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.trainers.features import totals
from hftune.trainers.features.answer_loss import TokenSums
from hftune.trainers.features.totals import NAME, TotalsMixin
from hftune.trainers.pair_metrics import PairMetrics


class Accelerator:
    """Of one process."""

    device = torch.device("cpu")

    def reduce(self, value: torch.Tensor, how: str) -> torch.Tensor:
        return value


class Plain:
    """What the Trainer does when training begins and ends, and what it logs."""

    def __init__(self) -> None:
        self.accelerator, self.logged = Accelerator(), []
        self.state = SimpleNamespace(global_step=0)
        self._total_train_tokens = 0
        self.seen_tokens = torch.zeros((), dtype=torch.long)
        self.token_sums = {"train": TokenSums(torch.device("cpu"))}
        self.metrics = {"train": PairMetrics()}

    def add_callback(self, callback: Any) -> None:
        self.callback = callback

    def train(self, resume_from_checkpoint: str | None = None) -> None:
        self._total_loss_scalar, self._tr_loss = 0.0, torch.tensor(0.0)
        self._globalstep_last_logged = self.state.global_step
        self.callback.on_train_begin(None, None, None)

    def log(self, logs: dict[str, float]) -> None:
        self.logged.append(logs)

    def _save_beside(self, folder: Path) -> None: ...


class Trainer(TotalsMixin, Plain):
    """With totals."""


def trained(folder: Path) -> Trainer:
    """Six steps of losses 1 to 6, of which four are logged; saved."""
    trainer = Trainer()
    trainer.train()
    trainer.state.global_step, trainer._globalstep_last_logged = 6, 4
    trainer._total_loss_scalar, trainer._tr_loss = 10.0, torch.tensor(11.0)
    trainer._total_train_tokens = 600
    trainer.seen_tokens += 77
    trainer.token_sums["train"].sums = torch.tensor([1.0, 2.0, 3.0, 40.0], dtype=torch.float64)
    trainer.metrics["train"].add("margin", torch.tensor([1.0, 4.0]))
    trainer._save_beside(folder)
    return trainer


def test_what_is_saved_is_taken_up(tmp_path: Path) -> None:
    trained(tmp_path)
    resumed = Trainer()
    resumed.state.global_step = 6
    resumed.train(str(tmp_path))
    assert resumed._total_loss_scalar == 10.0 and float(resumed._tr_loss) == 11.0
    assert resumed._globalstep_last_logged == 4, "the next log is the mean of 4 steps, of which two are behind us"
    assert resumed._total_train_tokens == 600 and int(resumed.seen_tokens) == 77
    assert resumed.token_sums["train"].take(Accelerator()) == ({"entropy": 1 / 3, "mean_token_accuracy": 2 / 3}, 40)
    assert resumed.metrics["train"].read(Accelerator()) == {"margin": 2.5}


def test_the_mean_loss_is_that_of_all_steps(tmp_path: Path) -> None:
    trained(tmp_path)
    resumed = Trainer()
    resumed.state.global_step = 6
    resumed.train(str(tmp_path))
    # Steps 7 and 8, with a loss of 7 and of 8; at the end the Trainer adds what this process has not logged.
    resumed.state.global_step = 8
    resumed._tr_loss += 15.0
    resumed._total_loss_scalar += float(resumed._tr_loss)
    resumed.log({"train_runtime": 1.0, "train_loss": 123.0})
    assert resumed.logged == [{"train_runtime": 1.0, "train_loss": 36 / 8}]


def test_the_mean_loss_is_that_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes: 11.114 here, and 0 there, where the batch had no labels."""
    trainer = Trainer()
    monkeypatch.setattr(Accelerator, "reduce", lambda self, value, how: {"mean": value / 2}[how])
    trainer.train()
    trainer.state.global_step, trainer._tr_loss = 1, torch.tensor(11.114, dtype=torch.float64)
    trainer._total_loss_scalar = 11.114
    trainer.log({"train_runtime": 1.0, "train_loss": 11.114})
    assert trainer.logged[0]["train_loss"] == pytest.approx(5.557)


def test_each_process_takes_its_own_where_there_are_as_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path)
    saved = json.loads((tmp_path / NAME).read_text())
    (tmp_path / NAME).write_text(json.dumps(saved | {"pending": [11.0, 3.0]}))
    for world, rank, pending in ((2, 0, 11.0), (2, 1, 3.0), (4, 3, 7.0), (1, 0, 7.0)):
        monkeypatch.setattr(totals.ranks, "world_size", lambda world=world: world)
        monkeypatch.setattr(totals.ranks, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(totals.ranks, "is_main", lambda rank=rank: rank == 0)
        resumed = Trainer()
        resumed.state.global_step = 6
        resumed.train(str(tmp_path))
        assert float(resumed._tr_loss) == pending
        assert int(resumed.seen_tokens) == (77 if rank == 0 else 0), "a sum over processes is given to one"
        assert resumed._total_train_tokens == 600, "and a count that all have, to all"


def test_seconds_of_all_starts_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(totals.time, "time", lambda: clock[0])
    trainer = Trainer()
    assert trainer.train_seconds == 0
    trainer.train()
    clock[0] = 130.0
    trainer._save_beside(tmp_path)
    resumed = Trainer()
    clock[0] = 1000.0
    resumed.train(str(tmp_path))
    clock[0] = 1005.0
    assert resumed.train_seconds == 35.0


def test_a_checkpoint_of_an_earlier_version(tmp_path: Path) -> None:
    """Without sums the mean is that of the steps from here on."""
    resumed = Trainer()
    resumed.state.global_step = 6
    resumed.train(str(tmp_path))
    resumed.state.global_step = 8
    resumed._total_loss_scalar = 6.0
    resumed.log({"train_runtime": 1.0, "train_loss": 3.0})
    assert resumed.logged[0]["train_loss"] == 3.0 and resumed._globalstep_last_logged == 6
