"""Trainers draw mixed sources as they should, also when they go on in the middle of an epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard, skip_first_batches
from datasets import Dataset
from torch.utils.data import BatchSampler, DataLoader

from hftune.data.mixture import Mixture, MixtureSampler
from hftune.data.splits import Splits
from hftune.trainers.features.order import innermost_sampler
from hftune.trainers.pt import PTTrainer
from hftune.trainers.rl import rl_trainer
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


@pytest.mark.parametrize("stop", ["4", pytest.param("8", marks=pytest.mark.slow)])
def test_a_mixture_is_resumed_exactly(tmp_path: Path, stop: str) -> None:
    whole = trainer_on(tmp_path / "whole", "--num_train_epochs", "2")
    whole.train()
    saving = ["--save_strategy", "steps", "--save_steps", stop, "--max_steps", stop]
    first = trainer_on(tmp_path / "first", *saving)
    first.train()
    second = trainer_on(tmp_path / "second", "--num_train_epochs", "2")
    second.train(resume_from_checkpoint=str(tmp_path / "first" / f"checkpoint-{stop}"))
    assert first.records + second.records == whole.records


def test_prompts_of_a_mixture_are_repeated_for_their_generations(tmp_path: Path) -> None:
    """12 prompts an epoch, 4 generations of each, 3 prompts a generation batch that is used twice (2 steps)."""
    flags = ["--num_generations", "4", "--generation_batch_size", "12", "--per_device_train_batch_size", "6"]
    args = arguments("rl", tmp_path, *flags)
    data = Dataset.from_dict({"prompt": [str(number) for number in range(24)]})
    splits = Splits(data, None, mixture=MIXTURE)
    rewards = [lambda completions, **columns: [0.0 for _ in completions]]
    trainer = rl_trainer(tiny_llama(), args, make_tokenizer(), splits, (rewards, [None]))
    order = MixtureSampler(MIXTURE, args.seed)
    for epoch in (0, 1):
        sampler = innermost_sampler(trainer.get_train_dataloader())
        sampler.set_epoch(epoch)
        order.set_epoch(epoch)
        prompts = list(order)
        chunks = [prompts[start : start + 3] for start in range(0, 12, 3)]
        repeats = [index for chunk in chunks for _ in range(2) for index in chunk for _ in range(4)]
        assert list(sampler) == repeats and len(sampler) == len(repeats)


def resumed_on_two_processes(sampler: MixtureSampler) -> DataLoader:
    """The DataLoader that the Trainer makes for process 0 of 2 when it goes on in the middle of an epoch."""
    shard = BatchSamplerShard(BatchSampler(sampler, 2, False), num_processes=2, process_index=0)
    return skip_first_batches(DataLoaderShard(list(range(24)), batch_sampler=shard), 1)


def test_accelerate_still_does_not_reach_it() -> None:
    """If this fails, accelerate hands the epoch through, and `set_epoch` need not look for the sampler."""
    sampler = MixtureSampler(MIXTURE, seed=0)
    resumed_on_two_processes(sampler).set_epoch(3)
    assert sampler.epoch == 0
