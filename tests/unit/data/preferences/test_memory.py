"""What is decided by all records together is decided without all of them in memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from hftune.data.counts import Counts
from hftune.data.encode_pairs import LabelledEncoder, MismatchedPairEncoder
from hftune.data.encode_prompts import PromptEncoder
from hftune.data.encoder import Encoder, write_batches
from hftune.data.sources import TokenizedSource, finished
from hftune.data.storage.arrow_folder import open_folder
from tests.unit.data.helpers import user

IDS = [[*range(at, at + 40)] for at in range(500)]


def encoder_of(kind: str, tokenizer: PreTrainedTokenizerFast) -> tuple[Encoder, dict[str, list[Any]]]:
    """An encoder, and five hundred records as it encodes them."""
    if kind == "prompts":
        told = [{"answer": f"{at} " * 30, "level": at} for at in range(500)]
        records = [json.dumps([[user(f"question {at}")], extra]) for at, extra in enumerate(told)]
        return PromptEncoder(tokenizer, max_prompt_length=None), {"record": records, "origin": [""] * 500}
    if kind == "labelled":
        own = {"completion_ids": IDS, "label": [True, False] * 250}
        return LabelledEncoder(tokenizer, max_length=99), {"prompt_ids": IDS, **own, "length": [80] * 500}
    own = {"chosen_ids": IDS, "rejected_ids": IDS[::-1], "length": [120] * 500}
    return MismatchedPairEncoder(tokenizer, max_length=99), {"prompt_ids": IDS, **own}


def finish(folder: Path, times: int, encoder: Encoder, columns: dict[str, list[Any]]) -> tuple[int, int, Dataset]:
    """Bytes that Python holds at most while the records are finished and Arrow after that, and the records."""
    fields = [one for one in encoder.schema if one.name in columns]
    batch = pa.RecordBatch.from_pydict(columns, schema=pa.schema(fields))
    folder.mkdir()
    write_batches(folder, batch.schema, [batch] * times)
    part = TokenizedSource(open_folder(folder), Counts(), [], f"{times}")
    args: Any = SimpleNamespace(
        data_cache_dir=str(folder / "cache"), overwrite_cache=False, on_bad_record="", columns=""
    )
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    (made,) = finished([part], encoder, args)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return held, pa.total_allocated_bytes() - before, made.dataset


@pytest.mark.parametrize("kind", ["prompts", "labelled", "pairs"])
def test_memory_does_not_grow_with_the_records(kind: str, chatml: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    encoder, columns = encoder_of(kind, chatml)
    finish(tmp_path / "first", 1, encoder, columns)  # what is imported and kept for good
    few, _, _ = finish(tmp_path / "few", 8, encoder, columns)
    many, arrow, dataset = finish(tmp_path / "many", 32, encoder, columns)
    assert len(dataset) == 32 * 500 and ("answer" if kind == "prompts" else "kl_ids") in dataset.column_names
    assert many < 1.25 * few and arrow < 1e5, "the records lie in the cache"


def test_types_of_all_records_decide_wherever_they_stand(chatml: PreTrainedTokenizerFast) -> None:
    """As Arrow infers them from a whole column, though a thousand records at a time are looked at."""
    large = 2**60 + 1
    cases: dict[str, tuple[list[Any], str]] = {
        "whole": ([1, None, 2], "Value('int64')"),
        "numbers": ([1, 0.5, 2], "Value('float64')"),
        "exact": ([large, 0.5, 2], "Json("),
        "texts": (["a", None, "b"], "Value('string')"),
        "flags": ([True, None, False], "Value('bool')"),
        "flags and numbers": ([True, 1, 2], "Json("),
        "mixed": (["a", 1, None], "Json("),
        "lists": ([None, ["a"], None], "Json("),
        "nothing": ([None, None, None], "Value('null')"),
    }
    rows = [{name: values[at // 1500] for name, (values, _) in cases.items()} for at in range(4500)]
    records = [json.dumps([[user("a")], extra]) for extra in rows]
    dataset = PromptEncoder(chatml, max_prompt_length=None).finish(Dataset.from_dict({"record": records}))
    for name, (values, kind) in cases.items():
        assert str(dataset.features[name]).startswith(kind), name
        assert dataset[name][::1500] == values
