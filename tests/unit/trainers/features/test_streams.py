"""Trainers on a stream: what is trained is noted, saved and not trained again. One process; see also
tests/integration/test_streaming.py."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.constants import ORIGIN
from hftune.data.splits import Splits
from hftune.errors import ArgumentError, DataError
from hftune.logging import notices
from hftune.trainers.features.corpora import LOADER_STATE_NAME
from hftune.trainers.pt import PTTrainer
from hftune.trainers.sft import SFTTrainer
from tests.unit.data.helpers import make_tokenizer
from tests.unit.data.streams import stream_of
from tests.unit.trainers.tiny import arguments, tiny_llama

TRAINERS: dict[str, Any] = {"pt": PTTrainer, "sft": SFTTrainer}


def trainer_on(stage: str, output: Path, *flags: str, **stream: Any) -> Any:
    """A trainer on 30 records of 4 tokens; it writes down the tokens that it trains."""

    class Recorder(TRAINERS[stage]):  # type: ignore[misc]
        tokens: Counter[int]

        def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
            assert {"input_ids", "labels"} <= set(inputs) and ORIGIN not in inputs
            self.tokens.update(inputs["input_ids"].flatten().tolist())
            return super().compute_loss(model, inputs, *args, **kwargs)

    args = arguments(stage, output, "--per_device_train_batch_size", "3", *flags)
    trainer = Recorder(tiny_llama(), args, make_tokenizer(), Splits(stream_of(30, **stream), None))
    trainer.tokens = Counter()
    return trainer


@pytest.mark.parametrize(
    ("stage", "workers"),
    [
        ("sft", "2"),
        pytest.param("pt", "0", marks=pytest.mark.slow),
    ],
)
def test_a_stream_is_trained_once_an_epoch_across_a_stop(stage: str, workers: str, tmp_path: Path) -> None:
    """30 records in steps of 6: 5 steps an epoch. Stopped after 2, resumed until the second epoch is half done."""
    shape = ["--gradient_accumulation_steps", "2", "--dataloader_num_workers", workers]
    saving = ["--save_strategy", "steps", "--save_steps", "2", "--max_steps", "2"]
    first = trainer_on(stage, tmp_path / "first", *shape, *saving)
    first.train()
    checkpoint = tmp_path / "first" / "checkpoint-2"
    second = trainer_on(stage, tmp_path / "second", "--gradient_accumulation_steps", "1", "--max_steps", "8")
    second.train(resume_from_checkpoint=str(checkpoint))
    # 2 steps of 6 and 6 of 3: the epoch is whole, and nothing has come twice.
    assert first.tokens + second.tokens == {token: 1 for token in range(120)}
    assert second.count_trained_tokens() == 30 * 3
    epochs = [entry["epoch"] for entry in second.state.log_history if "loss" in entry and entry["step"] > 2]
    assert epochs == pytest.approx([step / 8 for step in range(3, 9)], abs=1e-3)
    third = trainer_on(stage, tmp_path / "third", *shape, "--max_steps", "7")
    third.train(resume_from_checkpoint=str(checkpoint))
    assert set(first.tokens + third.tokens) == set(range(120))
    assert max((first.tokens + third.tokens).values()) <= 2


def test_the_checkpoint_says_what_was_trained(tmp_path: Path) -> None:
    """Windows of 4 records in the order of the files: after 9 of them two are done, and one record of the third."""
    saving = ["--save_strategy", "steps", "--save_steps", "3", "--max_steps", "3", "--dataloader_num_workers", "1"]
    trainer_on("pt", tmp_path, *saving, seed=None).train()
    state = json.loads((tmp_path / "checkpoint-3" / LOADER_STATE_NAME).read_text())
    assert (state["window"], state["trained"]) == ([0, 2, 8], [{"group": 1, "ends": [[9, 0]]}])
    assert state["totals"] == {"dropped": 0, "tokens": 9 * 3}


# torch waits 5 s for a worker that is left behind an error.
@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_a_bad_record_is_said_in_its_own_words(workers: str, tmp_path: Path) -> None:
    flags = ["--max_steps", "8", "--dataloader_num_workers", workers]
    trainer = trainer_on("pt", tmp_path, *flags, bad=frozenset({17}))
    with pytest.raises(DataError) as error:
        trainer.train()
    assert str(error.value) == "bad record\n  where: numbers.jsonl:18"


@pytest.mark.long
def test_dropped_records_are_said(tmp_path: Path) -> None:
    """Windows of 4: the first has one record without an example, the second a bad one; 6 are trained."""
    given = {"bad": frozenset({5}), "empty": frozenset({2}), "drop_bad_records": True}
    trainer_on("pt", tmp_path, "--max_steps", "2", **given).train()
    assert "2 records of the stream gave no example and were dropped" in notices()


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-1").mkdir()
    trainer = trainer_on("pt", tmp_path, "--max_steps", "8")
    with pytest.raises(ArgumentError, match=f"has no {LOADER_STATE_NAME}"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
