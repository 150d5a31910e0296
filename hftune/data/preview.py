"""What a run will train on, shown as text: trained tokens in one colour, masked ones in another, counts below."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any

from rich.console import Console
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from hftune import terminal
from hftune.constants import IGNORE_INDEX
from hftune.data.splits import Splits, describe
from hftune.visible import visible, whole

TRAINED, MASKED, TERMINATOR = "bold green", "dim", "bold reverse green"
OPEN, CLOSE = "«", "»"
"""Around trained text, so that it can be told without colours, too."""

SHOWN_CHARACTERS = 2000

_SIDES = ("prompt_ids", "chosen_ids", "rejected_ids")


def preview(
    data: Splits,
    tokenizer: PreTrainedTokenizerBase,
    samples: int,
    *,
    rows_per_step: int,
    console: Console | None = None,
) -> None:
    """Print `samples` examples of each split and what became of all records.

    Args:
        rows_per_step: Rows of a training batch over all processes and accumulation steps.
    """
    console = console or Console(file=terminal.out(), highlight=False, soft_wrap=True)
    for name, dataset in (("train", data.train), ("eval", data.evaluation)):
        if dataset is None:
            continue
        for number, example in enumerate(islice(_examples(dataset), samples), start=1):
            console.rule(f"{name} {number}", align="left")
            for part in describe_example(example, tokenizer):
                console.print(part)
    console.rule("counts", align="left")
    for name, about in data.about.items():
        console.print(Text(visible(f"{name}: {describe(about)}")))
    # A stream has no length, so neither has an epoch.
    if hasattr(data.train, "__len__"):
        steps = math.ceil(len(data.train) / rows_per_step)
        console.print(f"an epoch: {len(data.train)} rows, {steps} steps of {rows_per_step}")
    console.print(_legend())


def describe_example(example: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> Iterator[Text]:
    """One example of any stage as coloured text, a part for each side or document."""
    if "prompt" in example:
        yield Text("\n").join(Text(visible(f"{turn['role']}: {turn['content']}"), MASKED) for turn in example["prompt"])
        extra = {key: value for key, value in example.items() if key != "prompt"}
        if extra:
            yield Text(visible(f"for reward functions: {extra}"))
    elif "input_ids" in example:
        yield from _documents(example, tokenizer)
    else:
        for side in (name for name in _SIDES if name in example):
            ids = example[side]
            # Only answers next to a prompt of their own are told apart; a reward model reads prompt and answer as one.
            trained = side != "prompt_ids" and "prompt_ids" in example
            shown = coloured(ids, ids if trained else [IGNORE_INDEX] * len(ids), tokenizer)
            yield Text(f"{side.removesuffix('_ids')} ({len(ids)} tokens): ").append_text(shown)


def text_samples(data: Splits, tokenizer: PreTrainedTokenizerBase, samples: int) -> list[list[tuple[str, bool]]]:
    """The first training examples as runs of text and whether each is trained; what is very long loses its end.

    An endless dataset is left alone: what is taken from it would not be trained.
    """
    found: list[list[tuple[str, bool]]] = []
    if not hasattr(data.train, "__len__"):
        return found
    for example in islice(_examples(data.train), samples):
        text = Text("\n").join(describe_example(example, tokenizer))[:SHOWN_CHARACTERS]
        trained = sorted(
            (span.start, span.end) for span in text.spans if str(span.style) in (str(TRAINED), str(TERMINATOR))
        )
        found.append(_cut(text.plain, trained))
    return found


def _cut(text: str, trained: list[tuple[int, int]]) -> list[tuple[str, bool]]:
    """The text in runs, without the signs around what is trained."""
    pieces, at = [], 0
    for start, end in trained:
        pieces += [(text[at:start], False), (text[start:end], True)]
        at = end
    pieces.append((text[at:], False))
    kept = [(piece.strip(OPEN + CLOSE) if marked else piece, marked) for piece, marked in pieces]
    return [(piece, marked) for piece, marked in kept if piece]


def coloured(ids: Sequence[int], labels: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> Text:
    """Tokens as text: runs of trained tokens between `OPEN` and `CLOSE`, a special token at the end of a run marked."""
    text, special = Text(), set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    pairs = zip(ids, labels, strict=True)
    for trained, run in groupby(pairs, key=lambda pair: pair[1] != IGNORE_INDEX):
        tokens = [token for token, _ in run]
        if not trained:
            text.append(visible(whole(tokenizer.decode(tokens))), MASKED)
            continue
        ends = tokens[-1] in special
        text.append(OPEN, TRAINED).append(visible(whole(tokenizer.decode(tokens[:-1] if ends else tokens))), TRAINED)
        if ends:
            text.append(visible(tokenizer.decode(tokens[-1:])), TERMINATOR)
        text.append(CLOSE, TRAINED)
    return text


def _documents(example: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> Iterator[Text]:
    """The documents of a row: one, or those that are packed into it."""
    # Lists, or tensors where rows come from tokenised folders.
    ids = [int(token) for token in example["input_ids"]]
    if "labels" in example:
        labels = [int(label) for label in example["labels"]]
    else:  # an answer in steps: the tokens at which these are scored
        labels = [token if place in example["ends"] else IGNORE_INDEX for place, token in enumerate(ids)]
    lengths = [int(length) for length in example["seq_lengths"]] if "seq_lengths" in example else [len(ids)]
    start = 0
    for number, length in enumerate(lengths, start=1):
        part = slice(start, start + length)
        shown = coloured(ids[part], labels[part], tokenizer)
        packed = f"document {number} of {len(lengths)}, " if len(lengths) > 1 else ""
        trained = sum(label != IGNORE_INDEX for label in labels[part])
        yield Text(f"({packed}{length} tokens, {trained} trained) ").append_text(shown)
        start += length


def _examples(dataset: Any) -> Iterator[dict[str, Any]]:
    """The first examples of a map-style or an endless dataset."""
    # Not by __getitem__: torch gives it to endless datasets as well.
    if hasattr(dataset, "__len__"):
        return (dataset[index] for index in range(len(dataset)))
    return iter(dataset)


def _legend() -> Text:
    text = Text("legend: ").append("masked", MASKED).append(" ")
    return text.append(f"{OPEN}trained", TRAINED).append("terminator", TERMINATOR).append(CLOSE, TRAINED)
