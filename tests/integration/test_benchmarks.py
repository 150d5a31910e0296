"""Benchmarks that train: hftune's side of each for two steps, on a tiny model, as the benchmark starts it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/train.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import train

    monkeypatch.delitem(sys.modules, "train")  # a name that another file may have
    return train


@pytest.fixture
def measured(run: Callable, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict]:
    """Runs a benchmark's process and returns the figures on its last line."""
    monkeypatch.setenv("BENCHMARK_BEGAN", "0")

    def measure(script: str, *flags: str) -> dict:
        return json.loads(run(f"benchmarks/{script}", *flags, warm=True).check().output.strip().splitlines()[-1])

    return measure


@pytest.fixture
def alpaca(tmp_path: Path) -> Path:
    """Records as train.py and first_step.py take them."""
    records = [{"instruction": f"Add {number} and 1.", "input": "", "output": str(number + 1)} for number in range(16)]
    (tmp_path / "alpaca").mkdir()
    file = tmp_path / "alpaca" / "records.json"
    file.write_text(json.dumps(records))
    return file


def test_train(train: ModuleType, measured: Callable, tiny_model: Path, alpaca: Path, tmp_path: Path) -> None:
    conversations = train.write_conversations(alpaca, 16, tmp_path)
    model, pad_id = train.with_own_pad(str(tiny_model), tmp_path)
    flags = ["--data", str(conversations), "--model", model, "--pad_id", str(pad_id)]
    seen = measured("train_tools.py", "hftune", *flags, "--steps", "4", "--max_length", "64")
    assert len(seen["ended"]) == len(seen["losses"]) == 4 and seen["ended"] == sorted(seen["ended"])
    assert 0 < seen["real"][-1] <= seen["places"][-1]
    assert train.speed_of(seen)["speed"] > 0


def test_first_step(measured: Callable, tiny_model: Path, alpaca: Path, tmp_path: Path) -> None:
    flags = ["--model_name_or_path", str(tiny_model), "--train_file_dir", str(alpaca.parent), "--max_steps", "1"]
    flags += ["--use_peft", "--output_dir", str(tmp_path / "out"), "--save_strategy", "no", "--overwrite_cache", "True"]
    marks = measured("first_step.py", "--model", "", "--data", "", "--train", *flags)
    assert [*marks] == [
        *("imports and arguments", "checks before the model", "tokenizer", "data", "model", "adapter"),
        *("trainer", "first step"),
    ]
    assert [*marks.values()] == sorted(marks.values())


def test_preference(measured: Callable, tiny_model: Path, tiny_data: Path) -> None:
    flags = ["--data", str(next((tiny_data / "pairs").glob("*.jsonl"))), "--model", str(tiny_model)]
    flags += ["--stage", "dpo", "--steps", "2", "--max_length", "64", "--precompute_ref_log_probs", "False"]
    seen = measured("train_tools.py", "hftune", *flags)
    assert len(seen["losses"]) == len(seen["real"]) == 2 and min(seen["real"]) > 0
    assert seen["ended"] == sorted(seen["ended"])


def test_preprocess(measured: Callable, tiny_model: Path, tiny_data: Path) -> None:
    flags = ["--tokenizer", str(tiny_model), "--data", str(tiny_data / "sft" / "train.jsonl"), "--max_length", "64"]
    found = measured("preprocess_peers.py", "hftune", *flags)
    assert found["records"] == 20 and 0 < found["trained_tokens"] < found["tokens"] and found["seconds"] > 0
