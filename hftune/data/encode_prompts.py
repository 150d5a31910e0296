"""Prompts for RL, with every column that reward functions may ask for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from datasets import Dataset, Features, Json
from transformers import PreTrainedTokenizerBase

from hftune.data.counts import Counts
from hftune.data.encoder import Encoder, Keep, keep_in_memory
from hftune.data.files import Row
from hftune.data.records import Prompt, to_prompt
from hftune.data.rendering import Renderer, require_chat_template
from hftune.data.turn_tokens import TurnTokenGuard, token_ids
from hftune.errors import DataError
from hftune.logging import notice
from hftune.template_arguments import FIELD, FLAG, KIND

if TYPE_CHECKING:
    from hftune.arguments.rl_algorithms import GRPOArguments, RLOOArguments


_OFFERED = ("tools", "functions")


class PromptEncoder(Encoder):
    """Prompts for RL. A prompt that is too long is dropped and counted: cut messages would ask something else.

    Columns prompt (a list of messages), and every other column that a row has: None where others lack it.

    Args:
        max_prompt_length: Tokens of the rendered prompt with its generation prompt; None is no limit.
        system_prompt: The system message of prompts that have none of their own.
        borders_in_text: What becomes of turn tokens that contents spell, a mode of `TurnTokenGuard`.
    """

    # Which columns there are is known when all rows are read; until then each travels as JSON.
    schema = pa.schema({"record": pa.string()})
    length_flag = "--max_prompt_length"
    dummy_kind = "prompt"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_prompt_length: int | None,
        system_prompt: str | None = None,
        borders_in_text: str = "split",
    ) -> None:
        require_chat_template(tokenizer)
        self.tokenizer, self.max_prompt_length, self.system_prompt = tokenizer, max_prompt_length, system_prompt
        self.render = Renderer(tokenizer)
        self.shown = self.render.arguments
        self.guard = TurnTokenGuard(tokenizer, borders_in_text, self.render)

    @classmethod
    def from_arguments(cls, tokenizer: PreTrainedTokenizerBase, args: GRPOArguments | RLOOArguments) -> PromptEncoder:
        """The encoder that the flags of run_rl.py ask for."""
        return cls(
            tokenizer,
            max_prompt_length=args.max_prompt_length,
            system_prompt=args.system_prompt,
            borders_in_text=args.borders_in_text,
        )

    def settings(self) -> dict[str, Any]:
        """For the fingerprint."""
        about = {"encoder": "prompts", "max_prompt_length": self.max_prompt_length, "borders_in_text": self.guard.mode}
        return about | ({} if self.system_prompt is None else {"system_prompt": self.system_prompt})

    def read(self, row: Row) -> tuple[Prompt, str]:
        """The prompt of a row, and its text as the model will see it."""
        prompt = to_prompt(row)
        own = {name: value for name, value in prompt.template_arguments.items() if value != self.shown.get(name)}
        if own:
            raise DataError(
                f"a prompt of RL with {FIELD} of its own ({', '.join(own)}): all prompts are shown alike",
                fix=f"Leave it out, and give {FLAG} for the run.",
                kind=KIND,
            )
        if self.system_prompt is not None and prompt.messages[0]["role"] != "system":
            # The record's own system text wins.
            prompt.messages.insert(0, {"role": "system", "content": self.system_prompt})
        prompt.messages = self.render.reads.said(prompt.messages, None)
        return prompt, self.guard.text(self.render, prompt.messages, add_generation_prompt=True)

    def encode(self, parsed: list[tuple[Prompt, str]], counts: Counts) -> dict[str, list[Any]]:
        """Each prompt as JSON."""
        columns: dict[str, list[Any]] = {"record": []}
        if not parsed:  # a chunk of bad records; transformers does not tokenise no text
            return columns
        texts = [text for _, text in parsed]
        # Only their number counts; the trainer tokenises prompts itself, when answers are drawn.
        encoded = token_ids(self.tokenizer, texts, add_special_tokens=False)
        for (prompt, text), ids in zip(parsed, encoded, strict=True):
            counts.note_texts([text])
            if self.max_prompt_length is not None and len(ids) > self.max_prompt_length:
                counts.drop("prompt longer than max_prompt_length")
                continue
            counts.used += 1
            counts.tokens += len(ids)
            # TRL writes them, by the template itself.
            said = self.render.reads.named(prompt.messages)
            # `default=str`: dates of Parquet files have no form in JSON.
            columns["record"].append(json.dumps([said, prompt.extra], ensure_ascii=False, default=str))
        return columns

    def finish(self, dataset: Dataset, keep: Keep = keep_in_memory) -> Dataset:
        """The columns that prompts have: read twice, since all records decide which."""
        have: Counter[str] = Counter()
        offered = 0
        for _, extras in _read(dataset):
            have.update(name for extra in extras for name in extra)
            offered += sum(any(extra.get(name) for name in _OFFERED) for extra in extras)
        _say_columns(have, offered, len(dataset))
        # All as JSON: Arrow has one type a column. Objects with other keys (arguments of tools) would get each other's
        # keys, with nulls, and values of other types would be refused.
        features = Features({name: Json() for name in ("prompt", *have)})

        def batches() -> Iterator[pa.RecordBatch]:
            for prompts, extras in _read(dataset):
                columns = {"prompt": prompts, **{name: [extra.get(name) for extra in extras] for name in have}}
                # `datasets` would take a text such as "42" for JSON, and write numbers with ten digits.
                written = {
                    name: [None if value is None else json.dumps(value) for value in values]
                    for name, values in columns.items()
                }
                yield from Dataset.from_dict(written, features=features).data.table.to_batches()

        return keep(features.arrow_schema, batches())


def _read(dataset: Dataset) -> Iterator[tuple[list[Any], list[dict[str, Any]]]]:
    """Messages and further columns, a thousand records at a time."""
    for batch in dataset.select_columns("record").iter(1024):
        prompts, extras = zip(*map(json.loads, batch["record"]), strict=True)
        yield [*prompts], [*extras]


def _say_columns(have: Counter[str], offered: int, number: int) -> None:
    """What all prompts do not have, and what the model is not shown."""
    partial = [f"{name} ({count} of {number})" for name, count in have.items() if count < number]
    if partial:
        notice(f"columns that not every prompt has are None for the others: {', '.join(partial)}")
    if offered:
        notice(
            f"{offered} of {number} prompts offer tools, which the model is not shown: in RL it calls functions "
            "of --tools; reward functions get them"
        )
