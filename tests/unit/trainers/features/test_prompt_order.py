"""The order of prompts, which TRL's sampler repeats."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from trl.trainer.utils import RepeatSampler

from hftune.trainers.features.feature import Epoch
from hftune.trainers.features.prompt_order import PromptOrder
from tests.unit.trainers.features import made_up


def sampler_of(records: Any) -> RepeatSampler:
    """TRL's: two prompts a batch, each answered twice."""
    return RepeatSampler(records, mini_repeat_count=2, batch_size=2, shuffle=True, seed=1)


def test_a_mixture_s_order_in_trl_s_pattern() -> None:
    drawn = [5, 0, 3, 1]
    record_order = SimpleNamespace(train_sampler=lambda run, dataset: drawn)
    run = made_up.run(record_order=record_order, upstream_sampler=sampler_of)
    sampler = PromptOrder().train_sampler(run, range(9))
    assert sampler is not None and list(sampler) == [5, 5, 0, 0, 3, 3, 1, 1]


def test_without_a_mixture_the_order_is_trl_s() -> None:
    run = made_up.run(record_order=SimpleNamespace(train_sampler=lambda run, dataset: None))
    assert PromptOrder().train_sampler(run, range(9)) is None


def test_an_epoch_s_order_depends_on_its_number_alone() -> None:
    def order(*epochs: int) -> list[int]:
        sampler, feature = sampler_of(range(8)), PromptOrder()
        loader: Any = SimpleNamespace(batch_sampler=SimpleNamespace(sampler=sampler))
        for number in epochs:
            feature.before_epoch(made_up.run(), Epoch(loader, number, done=0))
            found = list(sampler)
        return found

    assert order(0, 1, 2) == order(2) != order(0)


def test_a_resumed_run_stands_where_it_stopped() -> None:
    run = made_up.run(_step=0, args={"gradient_accumulation_steps": 3})
    PromptOrder().before_step(run, None, {})
    assert run._step == 0, "the first step of all"
    run.state.global_step = 4
    PromptOrder().before_step(run, None, {})
    assert run._step == 12
    run._step = 13
    PromptOrder().before_step(run, None, {})
    assert run._step == 13, "within a run TRL counts"
