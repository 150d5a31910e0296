"""The trainer of process reward models: batches that must not matter, held-out figures, and its head once merged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForTokenClassification

from hftune.arguments.entry import parse_arguments
from hftune.data.collators import FlatCollator
from hftune.data.splits import Splits
from hftune.models.loading.reward_model import load_reward_model
from hftune.models.loading.tokenizer import load_tokenizer
from hftune.trainers.process_reward import ProcessRewardTrainer
from hftune.trainers.rewards.held_out import describe, step_figures
from tests.unit.trainers import test_reward


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven answers of one to four steps."""
    folder = tmp_path_factory.mktemp("steps")
    records = [
        {
            "prompt": f"Count to {number}.",
            "completions": [f"{step} is next" + " indeed" * (number % 3) for step in range(1 + number % 4)],
            "labels": [step != 1 for step in range(1 + number % 4)],
        }
        for number in range(7)
    ]
    (folder / "steps.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def trainer(model: Path, steps: Path, folder: Path, *flags: str) -> tuple[ProcessRewardTrainer, Splits]:
    own = ("--per_device_eval_batch_size", "3", "--reward_kind", "process", "--learning_rate", "1e-3")
    made, data = test_reward.trainer(model, steps, folder, *own, *flags)
    assert isinstance(made, ProcessRewardTrainer)
    return made, data


def by_hand(made: ProcessRewardTrainer, data: Splits) -> list[np.ndarray]:
    """P(right) of each step, an answer at a time, with what plain transformers gives."""
    found = []
    for example in data.train:
        with torch.no_grad():
            logits = made.model.eval()(torch.tensor([example["input_ids"]])).logits[0]
        found.append(logits[example["ends"]].float().softmax(-1)[:, 1].numpy().astype(np.float64))
    return found


@pytest.mark.parametrize("flags", [(), ("--padding_free", "False")])
def test_held_out_figures(tiny_model: Path, steps: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    made, data = trainer(tiny_model, steps, tmp_path, *flags)
    assert isinstance(made.data_collator.rows, FlatCollator) is not bool(flags), "as rules and the loader have it"
    metrics = made.evaluate()
    right, labels = by_hand(made, data), [np.array(each) for each in data.train["step_labels"]]
    for name, value in step_figures(right, labels).items():
        assert metrics[f"eval_{name}"] == pytest.approx(value, abs=1e-5, nan_ok=True), name
    said, wanted = np.concatenate(right), np.concatenate(labels)
    expected = -np.log(np.where(wanted == 1, said, 1 - said)).mean()
    assert metrics["eval_loss"] == pytest.approx(expected, abs=1e-5)
    assert made.report["answers"] == 7 and made.report["steps"] == sum(map(len, labels))
    assert "7 answers" in describe(made.report)
    made.before_saving()
    assert made.scale.mean == pytest.approx(np.mean([each.min() for each in right]), abs=1e-5)


def losses(made: ProcessRewardTrainer) -> list[float]:
    made.train()
    return [entry["loss"] for entry in made.state.log_history if "loss" in entry]


def test_batches_do_not_matter(tiny_model: Path, steps: Path, tmp_path: Path) -> None:
    """Steps count alike, in whichever micro batch or row they lie; answers differ in their number of steps."""
    common = ("--max_steps", "4", "--logging_steps", "1", "--lr_scheduler_type", "constant")
    whole, _ = trainer(tiny_model, steps, tmp_path / "a", *common, "--per_device_train_batch_size", "4")
    parts, _ = trainer(
        tiny_model, steps, tmp_path / "b", *common, "--per_device_train_batch_size", "1",
        "--gradient_accumulation_steps", "4", "--padding_free", "False",
    )  # fmt: skip
    expected = losses(whole)
    assert len(expected) == 4 and expected[-1] != expected[0]
    assert losses(parts) == pytest.approx(expected, abs=1e-5)


def test_the_head_is_saved_for_plain_transformers(tiny_model: Path, steps: Path, tmp_path: Path) -> None:
    made, data = trainer(tiny_model, steps, tmp_path)
    made.save_model(str(tmp_path / "out"))
    model, info = AutoModelForTokenClassification.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert model.config.id2label == {0: "wrong", 1: "right"}
    ids = torch.tensor([data.train[0]["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, made.model.eval()(ids).logits)


def test_a_head_of_another_kind_is_refused(tiny_model: Path, steps: Path, tmp_path: Path) -> None:
    made, _ = trainer(tiny_model, steps, tmp_path)
    made.save_model(str(tmp_path / "out"))
    made.processing_class.save_pretrained(tmp_path / "out")
    argv = ["--model_name_or_path", str(tmp_path / "out"), "--output_dir", str(tmp_path / "o")]
    model_args, _, adapter_args, training_args = parse_arguments("rm", argv)
    with pytest.raises(Exception, match="a score head of 2 outputs, and one of 1 is trained"):
        load_reward_model(model_args, adapter_args, training_args, load_tokenizer(model_args, training_args))
