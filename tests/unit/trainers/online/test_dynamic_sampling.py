"""DAPO's dynamic sampling: which groups are replaced, by what, and what a batch is then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.trainers.online.dynamic_sampling import groups_that_differ, take_rows
from tests.unit.trainers.rl_runs import PROMPTS, drawn, make_trainer

pytestmark = pytest.mark.long

SMALL = ("--per_device_train_batch_size", "8", "--max_completion_length", "5", "--num_generations", "4")
DULL = PROMPTS[:2]
NAN = float("nan")


def test_groups_of_equal_rewards_say_nothing() -> None:
    scores = torch.tensor([0.0, 1.0, 0.0, 2.0, 2.0, 2.0, NAN, NAN, NAN, NAN, 1.0, 1.0, NAN, 1.0, 3.0])
    assert groups_that_differ(scores, 3) == [True, False, False, False, True]


def test_rows_of_two_batches_are_padded_anew() -> None:
    first = {
        "prompt_ids": torch.tensor([[9, 5], [7, 6]]),
        "completion_ids": torch.tensor([[1, 2, 3], [4, 9, 9]]),
        "completion_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
        "tool_mask": torch.tensor([[1, 0, 1], [1, 1, 1]]),
        "advantages": torch.tensor([0.5, -0.5]),
        "num_items_in_batch": torch.tensor(4),
    }
    second = {
        "prompt_ids": torch.tensor([[1, 2, 3]]),
        "completion_ids": torch.tensor([[8]]),
        "completion_mask": torch.tensor([[1]]),
        "tool_mask": torch.tensor([[0]]),
        "advantages": torch.tensor([2.0]),
        "num_items_in_batch": torch.tensor(1),
    }
    taken = take_rows([first, second], [(1, 0), (0, 0)], padding=9)
    assert taken["prompt_ids"].tolist() == [[1, 2, 3], [9, 9, 5]]
    assert taken["completion_ids"].tolist() == [[8, 9, 9], [1, 2, 3]]
    assert taken["completion_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert taken["tool_mask"].tolist() == [[0, 1, 1], [1, 0, 1]]
    assert taken["advantages"].tolist() == [2.0, 0.5]
    assert "num_items_in_batch" not in taken, "it is counted anew"


def two_are_dull(completion_ids: list[list[int]], prompts: list[Any], **_: Any) -> list[float]:
    """Two prompts' answers all earn the same, the others' what they say."""
    texts = [prompt[-1]["content"] for prompt in prompts]
    return [1.0 if text in DULL else sum(ids) / 1000 for ids, text in zip(completion_ids, texts, strict=True)]


def prompts_in(trainer: Any, batch: dict[str, torch.Tensor]) -> list[str]:
    """The prompts of a batch, one a group."""
    found = trainer.processing_class.batch_decode(batch["prompt_ids"][::4], skip_special_tokens=True)
    return [next(text for text in PROMPTS if text in one) for one in found]


def test_dull_prompts_are_replaced(tiny_model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_model, tmp_path, "grpo", two_are_dull, *SMALL, "--dynamic_sampling")
    batch = drawn(trainer, DULL[0], PROMPTS[2], times=4)
    found = prompts_in(trainer, batch)
    assert found[1] == PROMPTS[2] and found[0] not in DULL
    assert (batch["advantages"].view(2, 4).std(dim=1) > 0.1).all(), "every group has an advantage"
    assert batch["advantages"].view(2, 4).sum(dim=1).tolist() == pytest.approx([0.0, 0.0], abs=1e-4)
    assert batch["num_items_in_batch"].item() == batch["completion_mask"].sum().item()
    padding = trainer.processing_class.pad_token_id
    assert (batch["prompt_ids"][batch["prompt_mask"] == 0] == padding).all()
    assert (batch["prompt_mask"][:, -1] == 1).all(), "padded on the left"
    # What is shown is what is trained on.
    assert [prompt[-1]["content"] for prompt in trainer._logs["prompt"]] == [text for text in found for _ in range(4)]
    assert list(trainer._logs["advantages"]) == pytest.approx(batch["advantages"].tolist())
    said = [answer[0]["content"] for answer in trainer._logs["completion"]]
    assert said == trainer.processing_class.batch_decode(batch["completion_ids"], skip_special_tokens=True)
    assert not {1.0} & {*trainer._logs["rewards"]["two_are_dull"]}
    metrics = trainer._metrics["train"]
    assert metrics["dynamic_sampling/replaced"] == [0.5] and metrics["dynamic_sampling/alike"] == [0.0]
    assert metrics["dynamic_sampling/rounds"][0] > 1


def test_nothing_is_drawn_where_all_differ(tiny_model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_model, tmp_path, "grpo", two_are_dull, *SMALL, "--dynamic_sampling")
    assert prompts_in(trainer, drawn(trainer, *PROMPTS[2:], times=4)) == PROMPTS[2:]
    assert trainer._metrics["train"]["dynamic_sampling/rounds"] == [1]


def test_rounds_are_bounded(tiny_model: Path, tmp_path: Path) -> None:
    calls = []

    def all_dull(completion_ids: list[list[int]], **_: Any) -> list[float]:
        calls.append(len(completion_ids))
        return [0.0] * len(completion_ids)

    flags = (*SMALL, "--dynamic_sampling", "--max_sampling_rounds", "3")
    trainer = make_trainer(tiny_model, tmp_path, "grpo", all_dull, *flags)
    batch = drawn(trainer, DULL[0], PROMPTS[2], times=4)
    assert calls == [8, 8, 8]
    assert prompts_in(trainer, batch) == [DULL[0], PROMPTS[2]], "the first ones are kept"
    metrics = trainer._metrics["train"]
    assert metrics["dynamic_sampling/alike"] == [1.0] and metrics["dynamic_sampling/replaced"] == [0.0]
