"""Sums over a whole run, by a trainer that does no more than the Trainer does with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.errors import ManifestError
from hftune.logging import notices
from hftune.trainers.features import totals
from hftune.trainers.features.feature import PATTERN, Features, write_state
from hftune.trainers.features.pair_figures import PairFigures
from hftune.trainers.features.token_loss import TokenLoss
from hftune.trainers.features.totals import Totals
from tests.unit.trainers.features import made_up


class Run:
    """What the Trainer does when training begins and ends, and what it logs, with the totals between."""

    def __init__(self) -> None:
        self.made = made_up.run()
        self.accelerator, self.state, self.logged = self.made.accelerator, self.made.state, []
        self.answers = TokenLoss(measures_tokens=True, device=torch.device("cpu"))
        self.pairs = PairFigures(torch.device("cpu"))
        self._total_train_tokens = 0
        self.totals = Totals()
        self.features = Features([self.totals, self.answers, self.pairs])
        self.totals.on_built(self)

    def add_callback(self, callback: Any) -> None:
        self.callback = callback

    def train(self, checkpoint: str | None = None) -> None:
        self.totals.before_train(self, checkpoint)
        self._total_loss_scalar, self._tr_loss = 0.0, torch.tensor(0.0)
        self._globalstep_last_logged = self.state.global_step
        self.callback.on_train_begin(None, None, None)

    def log(self, logs: dict[str, float]) -> None:
        self.totals.before_log(self, logs)
        self.logged.append(logs)

    def save(self, folder: Path) -> None:
        write_state(self, folder)


def trained(folder: Path) -> Run:
    """Six steps of losses 1 to 6, of which four are logged; saved."""
    trainer = Run()
    trainer.train()
    trainer.state.global_step, trainer._globalstep_last_logged = 6, 4
    trainer._total_loss_scalar, trainer._tr_loss = 10.0, torch.tensor(11.0)
    trainer._total_train_tokens = 600
    trainer.pairs.seen_tokens += 77
    trainer.answers.sums["train"].add("entropy", torch.tensor([1.0, 0.0, 0.0]))
    trainer.pairs.metrics["train"].add("margin", torch.tensor([1.0, 4.0]))
    trainer.save(folder)
    return trainer


def test_what_is_saved_is_taken_up(tmp_path: Path) -> None:
    trained(tmp_path)
    resumed = Run()
    resumed.state.global_step = 6
    resumed.train(str(tmp_path))
    assert resumed._total_loss_scalar == 10.0 and float(resumed._tr_loss) == 11.0
    assert resumed._globalstep_last_logged == 4, "the next log is the mean of 4 steps, of which two are behind us"
    assert resumed._total_train_tokens == 600 and int(resumed.pairs.seen_tokens) == 77
    assert resumed.answers.sums["train"].means(resumed.accelerator) == {"entropy": 1 / 3}
    assert resumed.pairs.metrics["train"].means(resumed.accelerator) == {"margin": 2.5}


def test_the_mean_loss_is_that_of_all_steps(tmp_path: Path) -> None:
    trained(tmp_path)
    resumed = Run()
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
    trainer = Run()
    monkeypatch.setattr(made_up.Accelerator, "reduce", lambda self, value, how: {"mean": value / 2}[how])
    trainer.train()
    trainer.state.global_step, trainer._tr_loss = 1, torch.tensor(11.114, dtype=torch.float64)
    trainer._total_loss_scalar = 11.114
    trainer.log({"train_runtime": 1.0, "train_loss": 11.114})
    assert trainer.logged[0]["train_loss"] == pytest.approx(5.557)


def test_each_process_takes_its_own_where_there_are_as_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path)
    file = tmp_path / PATTERN.replace("*", "0")
    saved = torch.load(file)
    saved["Totals"]["pending"] = [11.0, 3.0]
    torch.save(saved, file)
    for world, rank, pending in ((2, 0, 11.0), (2, 1, 3.0), (4, 3, 7.0), (1, 0, 7.0)):
        monkeypatch.setattr(totals.ranks, "world_size", lambda world=world: world)
        monkeypatch.setattr(totals.ranks, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(totals.ranks, "is_main", lambda rank=rank: rank == 0)
        resumed = Run()
        resumed.state.global_step = 6
        resumed.train(str(tmp_path))
        assert float(resumed._tr_loss) == pending, "a process that is new reads what the first has written"
        assert int(resumed.pairs.seen_tokens) == (77 if rank == 0 else 0), "a sum over processes is given to one"
        assert resumed._total_train_tokens == 600, "and a count that all have, to all"


def test_seconds_of_all_starts_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(totals.time, "time", lambda: clock[0])
    trainer = Run()
    assert trainer.totals.seconds() == 0
    trainer.train()
    clock[0] = 130.0
    trainer.save(tmp_path)
    resumed = Run()
    clock[0] = 1000.0
    resumed.train(str(tmp_path))
    clock[0] = 1005.0
    assert resumed.totals.seconds() == 35.0


def test_a_checkpoint_without_a_state(tmp_path: Path) -> None:
    """The mean is that of the steps from here on, and that is said."""
    resumed = Run()
    resumed.state.global_step = 6
    resumed.train(str(tmp_path))
    resumed.state.global_step = 8
    resumed._total_loss_scalar = 6.0
    resumed.log({"train_runtime": 1.0, "train_loss": 3.0})
    assert resumed.logged[0]["train_loss"] == 3.0 and resumed._globalstep_last_logged == 6
    assert f"has no {PATTERN}: sums over the run" in "".join(notices())


@pytest.mark.parametrize(
    "content", [{"Totals": {"loss": 1.0}}, {"Totals": 3}, [], {"PairFigures": {"pairs": {"a": 1}}}]
)
def test_a_state_that_is_none_is_one_message(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / PATTERN.replace("*", "0"))
    with pytest.raises(ManifestError, match="is no state of a run"):
        Run().train(str(tmp_path))
