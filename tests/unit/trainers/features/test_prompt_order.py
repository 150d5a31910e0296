"""The order of prompts, which TRL's sampler repeats."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from trl.trainer.utils import RepeatSampler

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
