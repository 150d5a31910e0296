"""Trainers draw mixed sources as they should."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from hftune.data.mixture import Mixture
from hftune.data.splits import Splits
from hftune.trainers.pt import PTTrainer
from tests.unit.data.helpers import make_tokenizer
from tests.unit.trainers.tiny import arguments, tiny_llama

MIXTURE = Mixture(sizes=(4, 20), weights=(1, 1), num_samples=12)


class Recorder(PTTrainer):
    """Writes down the first token of each record that is trained: its number."""

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        self.records = [*getattr(self, "records", []), *inputs["input_ids"][:, 0].tolist()]
        return super().training_step(model, inputs, *args, **kwargs)


def trainer_on(output: Path, *flags: str, mixture: Mixture | None = MIXTURE) -> Recorder:
    args = arguments("pt", output, "--per_device_train_batch_size", "2", "--packing", "False", *flags)
    records = [[number, 1, 2] for number in range(24)]
    data = Dataset.from_dict({"input_ids": records, "labels": records})
    return Recorder(tiny_llama(), args, make_tokenizer(), Splits(data, None, mixture=mixture))


def test_virtual_epochs_of_two_sources(tmp_path: Path) -> None:
    """6 of each source in an epoch of 12: 3 epochs have the small source's records 4 or 5 times, 18 of the large."""
    trainer = trainer_on(tmp_path, "--num_train_epochs", "3")
    trainer.train()
    assert trainer.state.global_step == 18
    assert trainer.num_examples(trainer.get_train_dataloader()) == 12
    times = Counter(trainer.records)
    assert sorted(times[number] for number in range(4)) == [4, 4, 5, 5]
    assert sum(times[number] for number in range(4, 24)) == 18 and max(times[number] for number in range(4, 24)) == 1
