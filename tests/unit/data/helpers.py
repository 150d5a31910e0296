"""A tokenizer made on the spot, real chat templates, and rows, for the tests of this folder."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trl
from datasets import Dataset, Features, List, Value
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from hftune.data.counts import Counts, all_dropped
from hftune.data.encode import ChatEncoder, TextEncoder
from hftune.data.encode_pairs import Limits, PairEncoder
from hftune.data.encode_prompts import PromptEncoder
from hftune.data.encode_rewards import RewardPairEncoder
from hftune.data.encoder import Encoder, _encode_chunk, keep_in_memory, without_counts
from hftune.data.files import ParsedChunk, Row, chunks
from hftune.data.packing import Packing, PackStats, pack_into
from hftune.data.rendering import Renderer
from hftune.data.turns import TurnFinder

CORPUS = [
    "hello world, how are you?",
    "The answer is 42.\n\nThank you.",
    "你好，世界！今天天气很好。",
    "user",
    "assistant",
    "system",
    "tool",
]
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|end|>",
    "<|user|>",
    "<|assistant|>",
    "<|start|>",
    "<|return|>",
]
SPECIAL += ["<|message|>", "<|channel|>", "<|eot_id|>", "<bos>", "<end_of_turn>", "<start_of_turn>"]
# Templates that differ little from another one, which stays among the quick tests.
ALIKE = re.compile(
    r"(gemma4_v\d|nemotron_3_(super|ultra|5)|qwen3_(6|8|vl|5_nothink|instruct)|muse_glimmer|lfm2_(2_5|v2)|qwen2_5_vl"
    r"|cohere2|gemma3|llama3_[12]|phi3_5|idefics3|llava_next)"
    r"|(?!deepseekv3).*_training"
)
TEMPLATES = Path(trl.__file__).parent / "chat_templates"

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""No default system turn and no reasoning: the text can be written down by hand."""


def template(name: str) -> str:
    """The text of a chat template that TRL ships."""
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def _trained(trim_offsets: bool) -> str:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False),
    )
    return backend.to_str()


def make_tokenizer(chat_template: str | None = CHATML, *, trim_offsets: bool = False) -> PreTrainedTokenizerFast:
    """Byte-level BPE of 256 bytes, the special tokens and all merges of a few lines; a new one, to be changed."""
    backend = Tokenizer.from_str(_trained(trim_offsets))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|endoftext|>", pad_token="<|endoftext|>", bos_token="<bos>"
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def row(line: int = 1, /, **value: Any) -> Row:
    """A row of data.jsonl."""
    return Row(value, "data.jsonl", line)


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """An assistant turn that calls a function, in canonical form."""
    return assistant("", tool_calls=[{"type": "function", "function": {"name": name, "arguments": arguments}}])


def to_dataset(columns: dict[str, list[list[int]]]) -> Dataset:
    """A dataset of int32 lists."""
    return Dataset.from_dict(columns, features=Features({name: List(Value("int32")) for name in columns}))


def render_with_spans(
    messages: list[dict[str, Any]], tokenizer: PreTrainedTokenizerFast, tools: Any = None, **settings: Any
) -> tuple[str, list[tuple[int, int]]]:
    """The text of a conversation and (start, end) of its spans, by the exact way."""
    finder = TurnFinder(messages, Renderer(tokenizer), tools)
    found = finder.checked([finder.span(turn) for turn in finder.trained_turns(**settings)])
    return finder.text, [(span.start, span.end) for span in found]


def read_rows(files: list[Path]) -> list[Row]:
    """The records of some files in order; the first bad one is raised."""
    rows: list[Row] = []
    for read in (read for chunk in chunks(files) for read in chunk.rows()):
        if not isinstance(read, Row):
            raise read
        rows.append(read)
    return rows


def tokenise_rows(rows: list[Row], encoder: Encoder) -> tuple[Dataset, Counts]:
    """What a run makes of these rows, in memory."""
    payload, counts, fault = _encode_chunk(ParsedChunk([*rows]), encoder, drop=False, columns={})
    if fault is not None:
        raise fault
    if not counts.used:
        raise all_dropped(counts, encoder.length_flag)
    batch = pa.ipc.read_record_batch(payload, encoder.schema)
    return without_counts(encoder.finish(keep_in_memory(encoder.schema, [batch]))), counts


def pack(dataset: Dataset, max_length: int, strategy: str = "bfd", **settings: Any) -> tuple[Dataset, PackStats]:
    """Documents in packed rows, in memory."""
    with tempfile.TemporaryDirectory() as folder:
        stats = pack_into(Path(folder), dataset, Packing(max_length, strategy, **settings))
        return Dataset.load_from_disk(folder, keep_in_memory=True), stats


def tokenize_chat(rows: list[Row], tokenizer: PreTrainedTokenizerFast, **settings: Any) -> tuple[Dataset, Counts]:
    return tokenise_rows(rows, ChatEncoder(tokenizer, **settings))


def tokenize_texts(rows: list[Row], tokenizer: PreTrainedTokenizerFast, **settings: Any) -> tuple[Dataset, Counts]:
    return tokenise_rows(rows, TextEncoder(tokenizer, **settings))


def with_limits(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of an encoder of pairs, with the lengths among them as `Limits`."""
    names = {"total": "max_length", "prompt": "max_prompt_length", "completion": "max_completion_length"}
    names |= {"too_long": "too_long", "characters": "max_characters"}
    given = {ours: settings[name] for ours, name in names.items() if name in settings}
    return {name: value for name, value in settings.items() if name not in names.values()} | {"limits": Limits(**given)}


def tokenize_pairs(rows: list[Row], tokenizer: PreTrainedTokenizerFast, **settings: Any) -> tuple[Dataset, Counts]:
    return tokenise_rows(rows, PairEncoder(tokenizer, **with_limits(settings)))


def tokenize_reward_pairs(
    rows: list[Row], tokenizer: PreTrainedTokenizerFast, **settings: Any
) -> tuple[Dataset, Counts]:
    return tokenise_rows(rows, RewardPairEncoder(tokenizer, **with_limits(settings)))


def prompts_dataset(rows: list[Row], tokenizer: PreTrainedTokenizerFast, **settings: Any) -> tuple[Dataset, Counts]:
    return tokenise_rows(rows, PromptEncoder(tokenizer, **settings))


def slow_if_alike(names: Iterable[str]) -> list[Any]:
    """Names of templates as parameters of a test; those of `ALIKE` are slow."""
    return [pytest.param(name, marks=pytest.mark.slow) if ALIKE.match(name) else name for name in names]


SYSTEM = {"role": "system", "content": "S"}
HG = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]
UA = [user("Q"), assistant("A")]
TOOL = {"name": "f", "description": "d", "parameters": {}}
Q, C, R = [user("Q")], [assistant("C")], [assistant("R")]
