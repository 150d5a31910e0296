"""Generated records, tokenised as any others."""

from __future__ import annotations

from pathlib import Path

from hftune.arguments.data import DataArguments
from hftune.arguments.entry import parse_arguments
from hftune.data.splits import load_splits
from hftune.data.tokenizing.chats import ChatEncoder
from tests.unit.data.helpers import make_tokenizer


def test_generated_records(tmp_path: Path) -> None:
    arguments = DataArguments(dummy_data=300, data_cache_dir=str(tmp_path / "cache"), max_train_samples=250)
    splits = load_splits(
        ChatEncoder(make_tokenizer(), max_length=999), arguments, parse_arguments("sft", ["--output_dir", "o"])[-1]
    )
    assert len(splits.train) == 250 and splits.about["train"]["files"] == ["dummy_data"]
