"""The trainer of reward models: rows without padding, held-out figures over all pairs, and the scale it leaves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from transformers import AutoModelForSequenceClassification

from hftune.arguments.entry import parse_arguments
from hftune.checkpoints.reward_scale import read_scale
from hftune.constants import FILLER
from hftune.data.splits import Splits, load_splits, make_encoder
from hftune.logging import notices
from hftune.models.adapters.preparation import add_adapter
from hftune.models.loading.reward_model import load_reward_model
from hftune.models.loading.tokenizer import load_tokenizer
from hftune.preflight.facts import resolve
from hftune.trainers.features.pair_figures import PairFigures
from hftune.trainers.process_reward import reward_trainer
from hftune.trainers.reward import longest_first
from hftune.trainers.rewards.held_out import describe, pair_figures

WORDS = ["one", "two three", "four five six seven", "eight " * 12]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven pairs of many lengths from two sources, with scores."""
    folder = tmp_path_factory.mktemp("pairs")
    records = [
        {
            "source": "left" if number % 3 else "right",
            "prompt": f"Say {number}? {WORDS[number % 4]}",
            "chosen": f"{number} it is. {WORDS[(number + 1) % 4]}",
            "rejected": f"No. {WORDS[(number + 2) % 4]}",
            "score_chosen": 3.0 + number % 2,
            "score_rejected": 2.5,
        }
        for number in range(11)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def trainer(model: Path, pairs: Path, folder: Path, *flags: str) -> tuple[Any, Splits]:
    """The trainer of `--reward_kind`, and its records: those that are trained are held out as well."""
    argv = ["--model_name_or_path", str(model), "--output_dir", str(folder), "--train_file_dir", str(pairs)]
    argv += ["--validation_file_dir", str(pairs), "--per_device_eval_batch_size", "4", "--report_to", "none"]
    argv += ["--per_device_train_batch_size", "3", "--gradient_checkpointing", "False", "--save_strategy", "no"]
    argv += ["--preprocessing_num_workers", "1", "--data_cache_dir", str(folder / "cache")]
    facts = resolve("rm", parse_arguments("rm", [*argv, *flags]))
    model_args, data_args, adapter_args, training_args = facts.arguments
    tokenizer = load_tokenizer(model_args, training_args)
    data = load_splits(make_encoder("rm", tokenizer, training_args, data_args), data_args, training_args)
    loaded = load_reward_model(model_args, adapter_args, training_args, tokenizer, facts.build)
    return reward_trainer(add_adapter(loaded, adapter_args, training_args), training_args, tokenizer, data), data


def test_the_loss_is_trls(tiny_model: Path, pairs: Path, tmp_path: Path) -> None:
    made, data = trainer(tiny_model, pairs, tmp_path, "--padding_free", "False", "--center_rewards_coefficient", "0.2")
    batch = made.data_collator([data.train[number] for number in range(5)])
    ours = made.compute_loss(made.model, dict(batch)).item()
    assert trl.RewardTrainer.compute_loss(made, made.model, dict(batch)).item() == pytest.approx(ours, abs=1e-6)
    without = {name: value for name, value in batch.items() if name != "margin"}
    assert made.compute_loss(made.model, without).item() != pytest.approx(ours, abs=1e-3)
    made.args.score_difference_scale, made.args.center_rewards_coefficient = 2.0, None
    losses = made.pair_losses(torch.ones(1), torch.zeros(1), torch.full((1,), 0.5))
    assert losses.item() == pytest.approx(math.log(2)), "a distance of 1 less a margin of 2 * 0.5"
    given = torch.ones(1), torch.zeros(1), torch.full((1,), 0.5)
    made.args.score_difference = "weight"
    one = math.log(1 + math.exp(-1))
    assert made.pair_losses(*given).item() == pytest.approx(one), "a weight of 2 * 0.5"
    made.args.score_difference, made.args.label_smoothing = "none", 0.1
    assert made.pair_losses(*given).item() == pytest.approx(0.9 * one + 0.1 * (1 + one))


@pytest.mark.parametrize("flags", [(), ("--padding_free", "False", "--per_device_eval_batch_size", "3")])
def test_held_out_figures_are_over_all_pairs(
    tiny_model: Path, pairs: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    made, data = trainer(tiny_model, pairs, tmp_path, *flags)
    metrics = made.evaluate()
    scores = by_hand(made.model, data)
    figures = pair_figures(scores)
    for name, value in figures.items():
        assert metrics[f"eval_{name}"] == pytest.approx(value, abs=1e-5), name
    distance = torch.tensor(scores[:, 0] - scores[:, 1] - np.array(data.train["margin"][:]))
    expected = -torch.nn.functional.logsigmoid(distance).mean().item()
    assert metrics["eval_loss"] == pytest.approx(expected, abs=1e-5)
    assert made.report["pairs"] == 11
    assert {name: part["pairs"] for name, part in made.report["by_source"].items()} == {"left": 7, "right": 4}
    right = scores[[source == "right" for source in data.train["source"]]]
    assert made.report["by_source"]["right"]["margin"] == pytest.approx(pair_figures(right)["margin"], abs=1e-5)
    assert "left" in describe(made.report)


def test_training_figures_are_means_over_pairs(tiny_model: Path, pairs: Path, tmp_path: Path) -> None:
    """Of batches of three, three, three and two pairs, with weights that stay; one that only fills up counts not."""
    flags = ("--learning_rate", "0", "--num_train_epochs", "1", "--logging_strategy", "epoch", "--eval_strategy", "no")
    made, data = trainer(tiny_model, pairs, tmp_path, *flags, "--disable_dropout", "True")
    made.train()
    scores = by_hand(made.model, data)
    (logged,) = [entry for entry in made.state.log_history if "accuracy" in entry]
    wanted = pair_figures(scores)
    assert logged["accuracy"] == pytest.approx(wanted["accuracy"], abs=1e-6)
    assert logged["margin"] == pytest.approx(wanted["margin"], abs=1e-4)
    assert logged["mean_reward"] == pytest.approx(scores.mean(), abs=1e-4)


def test_pairs_that_fill_up_count_not_and_figures_are_resumed(tiny_model: Path, pairs: Path, tmp_path: Path) -> None:
    made, data = trainer(tiny_model, pairs, tmp_path, "--disable_dropout", "True", "--padding_free", "False")
    scores = by_hand(made.model, data)[:3]
    for numbers, fillers in (([0, 1, 2], [False, True, False]), ([0], [True])):
        batch = made.data_collator([data.train[number] for number in numbers]) | {FILLER: torch.tensor(fillers)}
        made.compute_loss(made.model.train(), batch, num_items_in_batch=torch.tensor(1.0))
    figures, logs = PairFigures(made.args.device), {"loss": 1.0}
    figures.load_state(made, made.measured.state(made))
    figures.before_log(made, logs)
    kept = scores[[0, 2]]
    for name, value in {"margin": (kept[:, 0] - kept[:, 1]).mean(), "mean_reward": kept.mean()}.items():
        assert logs[name] == pytest.approx(value, abs=1e-4), name
    sides = ("chosen_ids", "rejected_ids")
    assert logs["num_tokens"] == sum(len(data.train[number][side]) for number in (0, 2) for side in sides)
    again = {"loss": 1.0}
    figures.before_log(made, again)
    assert "mean_reward" not in again, "begun anew"


def by_hand(model: Any, data: Splits) -> np.ndarray:
    """(pairs, 2), a conversation at a time, with what plain transformers gives."""
    with torch.no_grad():
        return np.array(
            [
                [model.eval()(torch.tensor([row[side]])).logits.item() for side in ("chosen_ids", "rejected_ids")]
                for row in data.train
            ]
        )


@pytest.mark.parametrize("held_out", [True, False])
def test_the_scale_is_stored_with_the_model(tiny_model: Path, pairs: Path, tmp_path: Path, held_out: bool) -> None:
    made, data = trainer(tiny_model, pairs, tmp_path)
    if not held_out:
        made.eval_dataset = None
    made.before_saving()
    scores = by_hand(made.model, data)
    scale = made.figures()["reward_scale"]
    assert scale["mean"] == pytest.approx(scores.mean(), abs=1e-5)
    assert scale["std"] == pytest.approx(scores.std(), abs=1e-5)
    assert scale["scores"] == 22
    assert scale["measured_on"] == ("held-out records" if held_out else "training records")
    made.save_model(str(tmp_path))
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert again.config.reward_scale == scale  # bit for bit, and plain transformers carries it along
    assert read_scale(tmp_path).to_dict() == scale
    torch.testing.assert_close(torch.tensor(by_hand(again, data)), torch.tensor(scores))


def test_evaluation_is_not_repeated_after_the_scale(tiny_model: Path, pairs: Path, tmp_path: Path) -> None:
    made, _ = trainer(tiny_model, pairs, tmp_path)
    made.before_saving()
    logged = len(made.state.log_history)
    assert made.current_evaluation["eval_accuracy"] == made.report["accuracy"]
    made.before_saving()
    assert len(made.state.log_history) == logged


@pytest.mark.parametrize("asked", ["True", "False"])
def test_without_a_scale_the_bases_does_not_stay(tiny_model: Path, pairs: Path, tmp_path: Path, asked: str) -> None:
    """As where all scores are the same, or none is asked for."""
    made, _ = trainer(tiny_model, pairs, tmp_path, "--normalize_scores", asked)
    made.model.config.reward_scale = "the base's"
    torch.nn.init.zeros_(made.model.score.weight)
    made.before_saving()
    assert not hasattr(made.model.config, "reward_scale") and made.scale is None
    assert "reward_scale" not in made.figures()
    assert any("all scores are the same" in line for line in notices()) == (asked == "True")


def test_longest_first_with_their_places() -> None:
    found = longest_first(Dataset.from_dict({"length": [3, 9, 5, 9]}))
    assert found["length"][:] == [9, 9, 5, 3] and found["index"][:] == [0, 1, 2, 3]
