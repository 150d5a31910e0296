"""Generated records, tokenised as any others."""

from __future__ import annotations

from pathlib import Path

from hftune.arguments.data import DataArguments
from hftune.arguments.entry import parse_arguments
from hftune.data.encode import ChatEncoder
from hftune.data.generated import generated_source
from hftune.data.splits import load_splits
from tests.unit.data.helpers import make_tokenizer


def test_generated_records(tmp_path: Path) -> None:
    arguments = DataArguments(dummy_data=300, data_cache_dir=str(tmp_path / "cache"), max_train_samples=250)
    splits = load_splits(
        ChatEncoder(make_tokenizer(), max_length=999), arguments, parse_arguments("sft", ["--output_dir", "o"])[-1]
    )
    assert len(splits.train) == 250 and splits.about["train"]["files"] == ["dummy_data"]


def test_the_same_records_are_found_again_and_others_are_not(tmp_path: Path) -> None:
    encoder, found = ChatEncoder(make_tokenizer(), max_length=999), []
    for number in (20, 20, 21):
        found.append(generated_source(encoder, DataArguments(dummy_data=number, data_cache_dir=str(tmp_path))))
    assert found[0].key == found[1].key != found[2].key
    assert [len(part.dataset) for part in found] == [20, 20, 21] and found[0].files == ["dummy_data"]
    # A longer data set begins with a shorter one.
    assert found[2].dataset[:20] == found[0].dataset[:]
