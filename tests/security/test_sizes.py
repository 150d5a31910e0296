"""Attack: numbers in files and names that would fill the memory or never end; each is refused at once."""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from datasets import Dataset

from hftune.arguments.entry import parse_arguments
from hftune.data import sources as parts
from hftune.data.counts import Counts
from hftune.data.sources import TokenizedSource, draw_records
from hftune.data.specs import parse_sources
from hftune.errors import ArgumentError, DataError
from tests.spokes import spokes


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """Seconds of the processor where milliseconds are wanted and minutes to fear, and no gigabyte."""
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000, "kilobytes"


# --- records that are taken ------------------------------------------------------------------------------------------


def part(records: int) -> TokenizedSource:
    columns = {"input_ids": [[1, 2]] * records, "length": [2] * records}
    return TokenizedSource(Dataset.from_dict(columns), Counts(), ["a"], "key")


@pytest.mark.parametrize("number", [999_999_999, 10**11, 3_001, 10**8 + 1])
def test_records_taken_by_the_billion(number: int) -> None:
    with pytest.raises(DataError) as error:
        draw_records(part(3), number, 0, "--train_file_dir a.jsonl")
    assert f"--train_file_dir a.jsonl#{number}" in str(error.value) and "times an epoch" in str(error.value)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 7, 3_000])
def test_records_taken_as_before(number: int) -> None:
    found = draw_records(part(3), number, 0)
    assert len(found.dataset) == number and found.counts.tokens == (2 * number if number != 3 else 0)
    assert draw_records(part(3), number, 0).key == found.key


def test_the_same_records_are_drawn_as_ever() -> None:
    data = Dataset.from_dict({"n": [*range(5)]})
    found = draw_records(TokenizedSource(data, Counts(), [], "k"), 12, 3)
    assert found.dataset["n"][:] == [*range(5), *range(5), *sorted(random.Random(3).sample(range(5), 2))]


def test_nothing_is_repeated_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST_REPEATED", 10)
    assert len(draw_records(part(20), 15, 0).dataset) == 15, "fewer than there are repeat nothing"
    with pytest.raises(DataError):
        draw_records(part(5), 11, 0)


@pytest.mark.parametrize("digits", ["9" * 13, "9" * 5_000, "0", "-1", "1e9", "٣" * 20, ""])
def test_numbers_that_are_none(digits: str) -> None:
    with pytest.raises(ArgumentError) as error:
        parse_sources(f"data.jsonl#{digits}")
    assert "PATH#500" in str(error.value) and len(str(error.value)) < 500


# --- numbers on the command line and in files -------------------------------------------------------------------------

FLAGS = {
    "gradient_accumulation_steps": "-2",
    "num_train_epochs": "-1",
    "max_train_samples": "0",
    "max_steps": "0",
    "per_device_train_batch_size": "0",
    "per_device_eval_batch_size": "-8",
    "learning_rate": "nan",
    "weight_decay": "-0.1",
    "adam_beta2": "1",
    "max_grad_norm": "inf",
    "warmup_steps": "-5",
    "seed": "4294967296",
    "save_steps": "2.5",
    "eval_steps": "1.5",
    "logging_steps": "-1",
    "dataloader_num_workers": "99999999",
    "lora_r": "999999999999",
    "lora_alpha": "0",
    "lora_dropout": "1",
    "preprocessing_num_workers": "1000000",
    "validation_split_percentage": "100",
    "hang_timeout": "-1",
    "sequence_parallel_size": "0",
    "neftune_noise_alpha": "-nan",
    "pad_vocab_to_multiple_of": "-64",
}


@pytest.mark.parametrize(
    ("name", "where"),
    [
        *spokes(FLAGS, ["command line", "=", "YAML", "YAML's text"]),
        *(
            (name, "YAML")
            for name in ("learning_rate", "max_grad_norm", "neftune_noise_alpha", "save_steps", "adam_beta2")
        ),
    ],
)
def test_a_number_beyond_its_range(name: str, where: str, tmp_path: Path) -> None:
    argv = ["--model_name_or_path", "m", "--output_dir", str(tmp_path / "o")]
    if where.startswith("YAML"):
        value = {"nan": ".nan", "-nan": ".nan", "inf": ".inf"}.get(FLAGS[name], FLAGS[name])
        text = json.dumps(FLAGS[name]) if "text" in where else value
        (tmp_path / "run.yaml").write_text(f"{name}: {text}\n")
        argv += ["--config", str(tmp_path / "run.yaml")]
    else:
        argv += [f"--{name}={FLAGS[name]}"] if where == "=" else [f"--{name}", FLAGS[name]]
    with pytest.raises(ArgumentError) as error:
        parse_arguments("sft", argv)
    assert f"--{name} cannot be" in error.value.cause and f"--{name} (" in str(error.value.place)
    assert not (tmp_path / "o").exists()
