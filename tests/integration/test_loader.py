"""run_pt.py on tokenised folders under real launchers: stopped, and resumed in another world."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import logged
from tests.unit.data.corpora import write_corpus

LAUNCHERS = {"one": "python", "two": "torchrun --nproc_per_node 2"}
TOKENS = 240


@dataclass
class Leg:
    """A finished run: its checkpoints, the tokens of each step over all ranks, and the loss of each step."""

    folder: Path
    steps: dict[int, Counter[int]]
    losses: list[float]
    manifest: dict[str, Any]

    def tokens(self) -> Counter[int]:
        return sum(self.steps.values(), Counter())


@pytest.fixture(scope="module")
def corpus(workspace: Path) -> Path:
    """Two sources of 60 and 12 documents, whose 240 tokens are all different: `a` has 180 of them, `b` has 60."""
    write_corpus(workspace / "tokenised" / "a", [1 + number % 5 for number in range(60)])
    write_corpus(workspace / "tokenised" / "b", [5] * 12, first_token=180)
    return workspace / "tokenised"


@pytest.fixture
def leg(run: Callable, tiny_model: Path, corpus: Path, tmp_path: Path) -> Callable[..., Leg]:
    """`leg("first", "two", "--max_steps", "3")`: train, with a global batch of 4 blocks of 4 tokens."""

    def train(name: str, world: str, *flags: str, batch: int = 2, accumulation: int = 1) -> Leg:
        folder, record = tmp_path / name, tmp_path / f"{name}-record"
        os.environ["RECORD_TO"] = str(record)
        run(
            "tests/integration/recording_pt.py",
            *("--model_name_or_path", str(tiny_model), "--output_dir", str(folder)),
            *("--tokenized_dir", str(corpus), "--block_size", "4", "--shuffle_buffer", "20", "--logical_shards", "16"),
            *("--per_device_train_batch_size", str(batch), "--gradient_accumulation_steps", str(accumulation)),
            *("--lr_scheduler_type", "constant", "--learning_rate", "1e-3", "--logging_steps", "1"),
            *("--gradient_checkpointing", "False", "--save_steps", "1000", *flags),
            launcher=LAUNCHERS[world],
            warm=True,
        ).check()
        return Leg(folder, _recorded(record), logged(folder), json.loads((folder / "hftune.json").read_text()))

    return train


def _recorded(record: Path) -> dict[int, Counter[int]]:
    steps: dict[int, Counter[int]] = {}
    for file in record.parent.glob(f"{record.name}.*"):
        for line in file.read_text().splitlines():
            step, *tokens = map(int, line.split())
            steps.setdefault(step, Counter()).update(tokens)
    return steps


def test_stopped_on_two_processes_and_resumed_on_one(leg: Callable[..., Leg]) -> None:
    """60 blocks an epoch are 15 steps. Stopped after 7, and after 18 in the second epoch, each in another world."""
    whole = leg("whole", "one", "--num_train_epochs", "2", batch=4)
    first = leg("first", "two", "--max_steps", "7", "--save_steps", "7", "--dataloader_num_workers", "2")
    going_on = ("--resume_from_checkpoint", str(first.folder / "checkpoint-7"))
    second = leg("second", "one", *going_on, "--max_steps", "18", "--save_steps", "18", accumulation=2)
    going_on = ("--resume_from_checkpoint", str(second.folder / "checkpoint-18"))
    third = leg("third", "two", *going_on, "--num_train_epochs", "2", "--dataloader_num_workers", "1")

    assert whole.tokens() == {token: 2 for token in range(TOKENS)}
    assert first.tokens() + second.tokens() + third.tokens() == whole.tokens()
    assert [*first.steps.items(), *second.steps.items(), *third.steps.items()] == list(whole.steps.items())
    assert third.losses == pytest.approx(whole.losses, abs=1e-4)
    assert third.manifest["trained_tokens"] == whole.manifest["trained_tokens"] >= 2 * (TOKENS - 72 - 60)
    assert third.manifest["data"]["train"]["tokens"] == TOKENS
