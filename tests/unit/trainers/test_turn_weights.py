"""The weight of a turn scales its share of the loss, padded and padding-free, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from hftune.data.encode import ChatEncoder
from hftune.data.splits import Splits
from hftune.errors import DataError
from hftune.trainers.sft import SFTTrainer
from tests.unit.data.helpers import assistant, make_tokenizer, row, tokenize_chat, user
from tests.unit.trainers.tiny import arguments, tiny_llama

FLAGS = ("--per_device_train_batch_size", "2", "--turn_weights")
TURNS = [
    user("a"),
    assistant("one two", weight=0.25),
    user("b"),
    assistant("three"),
    user("c"),
    assistant("four", weight=0),
]


def data() -> Dataset:
    rows = [row(messages=TURNS), row(2, messages=[user("x"), assistant("y", weight=2)])]
    dataset, counts = tokenize_chat(rows, make_tokenizer(), max_length=99, turn_weights=True)
    assert counts.trained_tokens == sum(weight > 0 for weights in dataset["loss_weights"] for weight in weights)
    return dataset


def by_hand(model: Any, dataset: Dataset) -> float:
    """Sum of weight times -log p over all trained tokens, divided by their number."""
    total, count = 0.0, 0
    for example in dataset:
        ids, labels, weights = (torch.tensor(example[name]) for name in ("input_ids", "labels", "loss_weights"))
        log_probs = model(ids[None]).logits[0, :-1].log_softmax(-1)
        for position, (label, weight) in enumerate(zip(labels[1:].tolist(), weights[1:].tolist(), strict=True)):
            if label != -100:
                total -= weight * float(log_probs[position, label])
                count += 1
    return total / count


@pytest.mark.parametrize("flags", [[], ["--padding_free"]])
def test_loss_by_hand(tmp_path: Path, flags: list[str]) -> None:
    args = arguments("sft", tmp_path, *FLAGS, *flags)
    dataset, model = data(), tiny_llama()
    expected = by_hand(model, dataset)
    trainer = SFTTrainer(model, args, make_tokenizer(), Splits(dataset, None))
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["loss_weights"].shape == batch["labels"].shape
    count = int((batch["labels"][:, 1:] != -100).sum())
    model.eval()
    assert float(trainer.compute_loss(model, dict(batch))) == pytest.approx(expected, abs=1e-5)
    assert float(trainer.compute_loss(model, dict(batch), num_items_in_batch=2 * count)) == pytest.approx(
        expected / 2, abs=1e-5
    )


def test_other_weights_than_0_and_1_must_be_asked_for() -> None:
    encoder = ChatEncoder(make_tokenizer(), max_length=99)
    with pytest.raises(DataError, match=r"weight 0\.25") as caught:
        encoder.parse(row(7, messages=TURNS))
    assert caught.value.place == "data.jsonl:7" and "--turn_weights" in str(caught.value)
