"""Prompts for RL, and memory that does not grow with the records."""

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
from hftune.data.encode_pairs import Limits, MismatchedPairEncoder
from hftune.data.encode_prompts import PromptEncoder
from hftune.data.encoder import Encoder, write_batches
from hftune.data.sources import TokenizedSource, finished
from hftune.data.storage import open_folder
from hftune.errors import DataError
from hftune.logging import notices
from tests.unit.data.helpers import make_tokenizer, prompts_dataset, row, template, user


def test_prompts_keep_every_column(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(question="a", answer="1", level=3), row(prompt=[user("b")], answer="2")]
    dataset, counts = prompts_dataset(rows, chatml, max_prompt_length=None)
    assert dataset.to_dict() == {"prompt": [[user("a")], [user("b")]], "answer": ["1", "2"], "level": [3, None]}
    assert notices()[-1] == "columns that not every prompt has are None for the others: level (1 of 2)"
    # <|im_start|> user \n a <|im_end|> \n <|im_start|> assistant \n
    assert (counts.rows, counts.used, counts.tokens, counts.trained_tokens) == (2, 2, 18, 0)


def test_long_prompts_are_dropped_whole(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(prompt="a"), row(prompt="ab")]
    dataset, counts = prompts_dataset(rows, chatml, max_prompt_length=9)
    assert (len(dataset), counts.dropped) == (1, {"prompt longer than max_prompt_length": 1})
    with pytest.raises(DataError, match="Give a larger --max_prompt_length"):
        prompts_dataset(rows, chatml, max_prompt_length=8)


def test_a_system_message_for_prompts_without_one(chatml: PreTrainedTokenizerFast) -> None:
    asked = {"role": "user", "content": "a"}
    rows = [row(prompt="a"), row(messages=[{"role": "system", "content": "own"}, asked]), row(question="a", answer="4")]
    dataset, counts = prompts_dataset(rows, chatml, max_prompt_length=None, system_prompt="S")
    firsts = [messages[0] for messages in dataset["prompt"]]
    assert [(first["role"], first["content"]) for first in firsts] == [
        ("system", "S"),
        ("system", "own"),
        ("system", "S"),
    ]
    assert all(messages[1:] == [asked] for messages in dataset["prompt"])
    _, plain = prompts_dataset(rows, chatml, max_prompt_length=None)
    assert counts.tokens > plain.tokens
    encoder = PromptEncoder(chatml, max_prompt_length=None, system_prompt="S")
    assert encoder.settings() == PromptEncoder(chatml, max_prompt_length=None).settings() | {"system_prompt": "S"}


def calling(arguments: Any) -> list[dict[str, Any]]:
    """A conversation in which a function is called with these arguments, in the canonical form."""
    called = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return [user("a"), {"role": "assistant", "content": "", "tool_calls": [called]}, {"role": "tool", "content": "1"}]


ARGUMENTS = [{"x": 1}, {"x": "one"}, {"x": [1, "a", {"b": None}]}, {"y": {"z": 0.5}}, {}]


@pytest.mark.parametrize("number", range(1, len(ARGUMENTS)))
def test_arguments_of_tools_stay_as_they_are(number: int) -> None:
    """Neither refused for their types nor filled with each other's keys, in prompts and in columns for rewards."""
    given = [ARGUMENTS[0], ARGUMENTS[number]]
    schemas = [[{"name": "f", "parameters": {"x": {"enum": [value]}}}] for value in (1, "a")]
    rows = [row(messages=calling(one), tools=tools) for one, tools in zip(given, schemas, strict=True)]
    dataset, _ = prompts_dataset(rows, make_tokenizer(template("qwen3")), max_prompt_length=None)
    assert dataset["prompt"][:] == [calling(one) for one in given]
    assert dataset["tools"][:] == schemas


def test_tools_that_the_model_is_not_shown_are_said(
    chatml: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("hftune.data.encode_prompts.notice", said.append)
    prompts_dataset([row(prompt="a"), row(prompt="b", tools=[{"name": "f"}])], chatml, max_prompt_length=None)
    assert any(line.startswith("1 of 2 prompts offer tools, which the model is not shown") for line in said)


IDS = [[*range(at, at + 40)] for at in range(500)]


def encoder_of(kind: str, tokenizer: PreTrainedTokenizerFast) -> tuple[Encoder, dict[str, list[Any]]]:
    """An encoder, and five hundred records as it encodes them."""
    if kind == "prompts":
        told = [{"answer": f"{at} " * 30, "level": at} for at in range(500)]
        records = [json.dumps([[user(f"question {at}")], extra]) for at, extra in enumerate(told)]
        return PromptEncoder(tokenizer, max_prompt_length=None), {"record": records}
    own = {"chosen_ids": IDS, "rejected_ids": IDS[::-1], "length": [120] * 500}
    return MismatchedPairEncoder(tokenizer, limits=Limits(99)), {"prompt_ids": IDS, **own}


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


@pytest.mark.parametrize("kind", ["prompts", "pairs"])
def test_memory_does_not_grow_with_the_records(kind: str, chatml: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    encoder, columns = encoder_of(kind, chatml)
    finish(tmp_path / "first", 1, encoder, columns)  # what is imported and kept for good
    few, _, _ = finish(tmp_path / "few", 4, encoder, columns)
    many, arrow, dataset = finish(tmp_path / "many", 12, encoder, columns)
    assert len(dataset) == 12 * 500 and ("answer" if kind == "prompts" else "kl_ids") in dataset.column_names
    assert many < 1.25 * few and arrow < 1e5, "the records lie in the cache"


def test_values_of_a_column_keep_their_types_wherever_they_stand(chatml: PreTrainedTokenizerFast) -> None:
    """Texts stay texts and numbers keep their digits, though a thousand records at a time are looked at."""
    cases: dict[str, list[Any]] = {
        "numbers": [2**60 + 1, 0.5, 3.141592653589793],
        "texts": ["a", None, "42"],
        "mixed": ["42", True, 2**63],
        "lists": [None, ["a", {"b": None}], {"c": 1}],
        "nothing": [None, None, None],
    }
    rows = [{name: values[at // 1500] for name, values in cases.items()} for at in range(4500)]
    records = [json.dumps([[user("a")], extra]) for extra in rows]
    dataset = PromptEncoder(chatml, max_prompt_length=None).finish(Dataset.from_dict({"record": records}))
    for name, values in cases.items():
        assert dataset[name][::1500] == values
        assert [type(one) for one in dataset[name][::1500]] == [type(one) for one in values]
