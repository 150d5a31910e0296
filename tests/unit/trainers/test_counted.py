"""What the losses of a step are divided by: counted over its micro batches and processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid

from hftune.constants import FILLER
from hftune.trainers.dpo import DPOTrainer
from hftune.trainers.features.run import mean_over_processes
from hftune.trainers.reward import RewardTrainer
from hftune.trainers.stage_trainer import StageTrainer
from hftune.trainers.token_trainer import TokenTrainer

CPU = torch.device("cpu")


class TwoProcesses:
    """The other process has counted 10 of each."""

    def reduce(self, value: torch.Tensor, how: str) -> torch.Tensor:
        return {"mean": (value + 10) / 2}[how]


def run(over_processes: bool = True, **given: Any) -> Any:
    args = SimpleNamespace(average_tokens_across_devices=over_processes)
    return SimpleNamespace(accelerator=TwoProcesses(), args=args, **given)


def test_counts_are_means_over_processes_unless_each_counts_for_itself() -> None:
    assert mean_over_processes(run(), torch.tensor([4.0, 6.0])).tolist() == [7.0, 8.0]
    assert mean_over_processes(run(False), torch.tensor([4.0, 6.0])).tolist() == [4.0, 6.0]


def test_preferences_count_records_and_chosen_tokens_of_all_micro_batches() -> None:
    two = {"answer_lengths": torch.tensor([2, 1, 5, 5]), "paired": True}
    one = {"answer_lengths": torch.tensor([4, 5]), "paired": True}
    begun: list[Any] = []
    itself = run(pair_loss=SimpleNamespace(begin_step=begun.extend))
    assert DPOTrainer.count_items(itself, [two, one], CPU).tolist() == [(3 + 10) / 2, (7 + 10) / 2]
    assert begun == [two, one], "KTO's reference point is one for the step"
    assert DPOTrainer.loss_is_scaled_for_ga is RewardTrainer.loss_is_scaled_for_ga is True


PADDED = {"input_ids": torch.zeros(4, 7)}
FLAT = {"input_ids": torch.zeros(1, 28), "ends": torch.tensor([1, 2, 3, 4])}


@pytest.mark.parametrize("batch", [PADDED, FLAT], ids=["padded", "flat"])
def test_rewards_count_pairs(batch: dict[str, Any]) -> None:
    filled = batch | {FILLER: torch.tensor([False, True])}
    assert float(RewardTrainer.count_items(run(), [batch, filled], CPU)) == (3 + 10) / 2


def reward_loss(scores: list[float], counted: torch.Tensor | None, **more: Any) -> float:
    """Scores of the chosen answers before those of the rejected ones."""
    itself = run(
        conversation_scores=lambda model, inputs: torch.tensor(scores),
        pair_losses=lambda chosen, rejected, difference: -logsigmoid(chosen - rejected),
        model=SimpleNamespace(training=False),
    )
    inputs = {"input_ids": torch.zeros(len(scores), 3), "index": 1, **more}
    loss, said = RewardTrainer.stage_loss(itself, None, inputs, True, counted)
    assert said.tolist() == [list(pair) for pair in zip(scores[: len(said)], scores[len(said) :], strict=True)]
    assert not {"index", "margin", FILLER} & {*inputs}, "no inputs of the model"
    return float(loss)


def test_a_reward_models_step_is_the_same_however_it_is_split() -> None:
    """Differences 1, 3 and -2: one batch of three = two and one, and repeated ones count nowhere."""
    one, two, three = (-float(logsigmoid(torch.tensor(x))) for x in (1.0, 3.0, -2.0))
    counted = torch.tensor(3.0)
    whole = reward_loss([1.0, 3.0, 0.0, 0.0, 0.0, 2.0], None)
    assert whole == pytest.approx((one + two + three) / 3)
    assert reward_loss([1.0, 3.0, 0.0, 0.0], counted) == pytest.approx((one + two) / 3)
    repeated = {FILLER: torch.tensor([False, True])}
    assert reward_loss([0.0, 1.0, 2.0, 0.0], counted, **repeated) == pytest.approx(three / 3)
    assert reward_loss([0.0, 1.0, 2.0, 0.0], None, **repeated) == pytest.approx(three)


def test_the_trainer_is_given_what_a_stage_counts() -> None:
    seen: list[Any] = []
    itself = SimpleNamespace(count_items=lambda *given: seen.append(given) or 7)
    counted = lambda batches: StageTrainer._get_num_items_in_batch(itself, batches, CPU)  # type: ignore[arg-type]  # noqa: E731
    assert counted([{"a": 1}]) == 7 and seen == [([{"a": 1}], CPU)]
    assert counted([]) is None, "the end of an epoch"
    evaluates = SimpleNamespace(token_loss=SimpleNamespace(evaluates=True))
    assert TokenTrainer.count_items(evaluates, [{"a": 1}], CPU) is None, "each batch is a mean of its own"  # type: ignore[arg-type]
