"""Online DPO's pairs and losses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.trainers.online.dpo import best_and_worst, pair_losses
from tests.unit.trainers.rl_runs import PROMPTS, drawn, make_trainer

FLAGS = ("--per_device_train_batch_size", "8", "--max_completion_length", "5", "--num_generations", "4")


def test_losses_by_hand() -> None:
    chosen, rejected = torch.tensor([1.0]), torch.tensor([-0.5])
    assert pair_losses(chosen, rejected, beta=0.2, kind="sigmoid").item() == pytest.approx(math.log(1 + math.exp(-0.3)))
    assert pair_losses(chosen, rejected, beta=0.2, kind="ipo").item() == pytest.approx((1.5 - 2.5) ** 2)


def test_the_best_and_the_worst() -> None:
    best, worst, differ = best_and_worst(torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, 5.0]]))
    assert best.tolist() == [1, 0] and worst.tolist() == [0, 0] and differ.tolist() == [True, False]


def test_an_answer_without_a_score_is_neither_the_best_nor_the_worst() -> None:
    nan = math.nan
    best, worst, differ = best_and_worst(torch.tensor([[nan, 3.0, 2.0], [-1.0, nan, -5.0], [nan, 1.0, nan], [nan] * 3]))
    assert best[:2].tolist() == [1, 0] and worst[:2].tolist() == [2, 2]
    assert differ.tolist() == [True, True, False, False]


def test_a_prompt_with_an_unscored_answer_still_makes_a_pair(tiny_model: Path, tmp_path: Path) -> None:
    def not_the_first(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        return [None if place % 4 == 0 else float(place) for place in range(len(completion_ids))]

    trainer = make_trainer(tiny_model, tmp_path, "online_dpo", not_the_first, *FLAGS)
    batch = drawn(trainer, *PROMPTS[:2], times=4)
    assert batch["counts"].tolist() == [1.0, 1.0]
    shown = list(trainer._logs["advantages"])
    assert math.isnan(shown[0]) and shown[1:4] == [-1.0, 0.0, 1.0]


def test_pairs_are_of_one_prompt_and_ties_train_nothing(tiny_model: Path, tmp_path: Path) -> None:
    def two_sorts(completion_ids: list[list[int]], prompts: list[Any], **_: Any) -> list[float]:
        tie = prompts[0]
        return [0.5 if prompt == tie else float(sum(ids)) for ids, prompt in zip(completion_ids, prompts, strict=True)]

    trainer = make_trainer(tiny_model, tmp_path, "online_dpo", two_sorts, *FLAGS)
    batch = drawn(trainer, *PROMPTS[:2], times=4)
    assert batch["counts"].tolist() == [0.0, 1.0]
    assert (batch["prompt_ids"][:, 0] == batch["prompt_ids"][:, 1]).all()
    sums = (batch["completion_ids"] * batch["completion_mask"]).sum(-1)
    assert sums[1, 0] > sums[1, 1]
    # Policy and reference are the same model still: the loss is log 2.
    assert trainer._compute_loss(trainer.model, batch).item() == pytest.approx(math.log(2), abs=1e-5)
    means = trainer.sums["train"].means(trainer.accelerator)
    assert means["rewards/accuracies"] == 0.0 and means["entropy"] > 0, "of the one pair that counts"
    # Ratios are of whole answers: a gain of a token counts as often as there are tokens.
    batch["ref_logps"][:, 0] -= 0.5
    gain = 0.5 * batch["completion_mask"][1, 0].sum().item()
    assert trainer._compute_loss(trainer.model, batch).item() == pytest.approx(
        math.log1p(math.exp(-0.1 * gain)), abs=1e-5
    )


def test_where_all_answers_tie_the_loss_is_0(tiny_model: Path, tmp_path: Path) -> None:
    def the_same(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [0.5] * len(completion_ids)

    trainer = make_trainer(tiny_model, tmp_path, "online_dpo", the_same, *FLAGS)
    batch = drawn(trainer, *PROMPTS[:2], times=4)
    assert batch["counts"].tolist() == [0.0, 0.0]
    assert trainer._compute_loss(trainer.model, batch).item() == 0.0
