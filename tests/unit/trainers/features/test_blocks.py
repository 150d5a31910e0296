"""A PTTrainer on tokenised folders: what it trains, what it saves, and how it goes on. One process; see also
tests/integration/test_loader.py."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.data.blocks import BlockDataset, Settings
from hftune.data.documents import Documents
from hftune.data.splits import Splits
from hftune.errors import ArgumentError
from hftune.trainers.features.corpora import LOADER_STATE_NAME
from hftune.trainers.pt import PTTrainer
from tests.unit.data.corpora import write_corpus
from tests.unit.data.helpers import make_tokenizer
from tests.unit.trainers.tiny import arguments, tiny_llama

BLOCK = 4


class Recorder(PTTrainer):
    """Writes down the tokens of each micro-batch that is trained."""

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        self.trained = [*getattr(self, "trained", []), inputs["input_ids"].flatten().tolist()]
        self.with_loss = getattr(self, "with_loss", 0) + int((inputs["labels"][:, 1:] >= 0).sum())
        return super().training_step(model, inputs, *args, **kwargs)

    @property
    def tokens(self) -> Counter[int]:
        return Counter(token for batch in self.trained for token in batch)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """27 documents of the tokens 0 to 90, and 6 documents of the tokens 91 to 120."""
    root = tmp_path_factory.mktemp("corpora")
    many = write_corpus(root / "many", [1 + number % 6 for number in range(27)])
    assert Documents(many).tokens == 91 - 1
    return [many, write_corpus(root / "few", [5] * 6, first_token=90)]


def trainer_on(folders: list[Path], output: Path, *flags: str) -> Recorder:
    args = arguments("pt", output, *flags)
    order = Settings(seed=1, logical_shards=6, shuffle_buffer=8)
    data = BlockDataset([Documents(folder) for folder in folders], BLOCK, settings=order)
    return Recorder(tiny_llama(), args, make_tokenizer(), Splits(data, None))


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_two_epochs_train_every_token_twice(folders: list[Path], tmp_path: Path, workers: str) -> None:
    """120 tokens are 30 blocks: 5 steps of 6 (3 a micro-batch) an epoch, none of them short or filled up."""
    flags = ["--per_device_train_batch_size", "3", "--gradient_accumulation_steps", "2", "--num_train_epochs", "2"]
    trainer = trainer_on(folders, tmp_path, *flags, "--dataloader_num_workers", workers)
    trainer.train()
    assert trainer.state.global_step == 10
    assert trainer.tokens == {token: 2 for token in range(120)}
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert logged[4]["data_epoch/many"] == pytest.approx(1, abs=BLOCK / 90)
    assert logged[9] | {"data_epoch/many": 2.0, "data_epoch/few": 2.0} == logged[9]
    # 2 * (120 tokens - 33 documents - 30 blocks), and one for each block that begins with a document.
    assert 114 < trainer.count_trained_tokens() == trainer.with_loss < 114 + 2 * 30


def test_an_epoch_of_odd_size_fills_its_last_step_from_the_next(folders: list[Path], tmp_path: Path) -> None:
    """30 blocks in steps of 7: the fifth step begins the second epoch, and nothing comes twice for want of blocks."""
    trainer = trainer_on(folders, tmp_path, "--per_device_train_batch_size", "7", "--num_train_epochs", "1")
    trainer.train()
    assert trainer.state.global_step == 5
    assert sum(trainer.tokens.values()) == 140
    assert set(trainer.tokens) == set(range(120)) and max(trainer.tokens.values()) == 2


SAVING = ["--save_strategy", "steps", "--save_steps"]


def test_nothing_is_left_for_a_smaller_batch(folders: list[Path], tmp_path: Path) -> None:
    size = "--per_device_train_batch_size"
    trainer_on(folders, tmp_path / "first", size, "6", "--max_steps", "5", *SAVING, "5").train()
    second = trainer_on(folders, tmp_path / "second", size, "3", "--num_train_epochs", "1")
    with pytest.raises(ArgumentError, match="120 tokens were trained by the checkpoint"):
        second.train(resume_from_checkpoint=str(tmp_path / "first" / "checkpoint-5"))


def test_a_checkpoint_and_data_that_do_not_belong_together(folders: list[Path], tmp_path: Path) -> None:
    trainer = trainer_on(folders, tmp_path, "--per_device_train_batch_size", "6", "--max_steps", "1", *SAVING, "1")
    trainer.train()
    checkpoint = tmp_path / "checkpoint-1"
    state = json.loads((checkpoint / LOADER_STATE_NAME).read_text())
    assert (state["blocks"], state["block_size"]) == (6, BLOCK)
    plain = trainer_on(folders, tmp_path / "plain", "--per_device_train_batch_size", "6")
    plain.train_dataset = [trainer.train_dataset[0]]
    with pytest.raises(ArgumentError, match="was made on tokenised or streamed data"):
        plain.train(resume_from_checkpoint=str(checkpoint))
    (checkpoint / LOADER_STATE_NAME).unlink()
    with pytest.raises(ArgumentError, match=f"has no {LOADER_STATE_NAME}"):
        trainer_on(folders, tmp_path / "again").train(resume_from_checkpoint=str(checkpoint))
