"""How likely each record is under a model: the mean loss of the tokens that training would learn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from hftune.constants import IGNORE_INDEX
from hftune.data.batches.collators import CausalCollator
from hftune.data.counts import LONGER, Context, Counts
from hftune.data.encode import ChatEncoder, TextEncoder
from hftune.data.encoder import Encoder
from hftune.data.formats import take_unread
from hftune.data.readers.base import Row
from hftune.data.readers.columns import apply_columns
from hftune.errors import DataError
from hftune.logging import notice
from hftune.models.kernels.answer_head import add_answer_head
from hftune.tools.checking.arguments import DataCheckArguments
from hftune.tools.checking.records import TEXT, learnt, to_record
from hftune.tools.checking.scan import place_of
from hftune.tools.checking.sources import Source
from hftune.tools.talking.loading import load_talker

_WINDOW = 512
"""Records in memory at a time; those are batched by length."""


@dataclass
class _Tokens:
    """The tokens of a record and those that are learnt; the loss, once it is known."""

    record: int
    file: str
    line: int
    ids: np.ndarray
    labels: np.ndarray
    total: float = math.nan

    @property
    def count(self) -> int:
        """Tokens that are learnt; the first has none before it to be predicted by."""
        return int((self.labels[1:] != IGNORE_INDEX).sum())


class Losses:
    """The mean losses of records, record by record and over all of them.

    Args:
        args: The model, and how it is loaded.
    """

    def __init__(self, args: DataCheckArguments) -> None:
        talker = load_talker(str(args.model), args, "--model")
        self._model, tokenizer = talker.model, talker.tokenizer
        add_answer_head(self._model)
        self._collate = CausalCollator(int(tokenizer.pad_token_id or 0))
        self._context, self._batch = Context.of(self._model, tokenizer), args.batch_tokens
        self._length = min(args.max_length, self._context.tokens or args.max_length)
        self._too_long = self._cut = 0
        self._texts = TextEncoder(tokenizer, append_eos=tokenizer.eos_token_id is not None)
        # Without a template there are no conversations for this model.
        self._chats = ChatEncoder(tokenizer, max_length=args.max_length) if tokenizer.chat_template else None

    def of(self, sources: list[Source], columns: dict[str, str]) -> Iterator[tuple[int, str, int, float]]:
        """(number, file, line, loss) of each record of the sources that has one; the number counts all of them."""
        tokens = self._tokens(sources, columns)
        while window := list(islice(tokens, _WINDOW)):
            self._run(window)
            for one in window:
                yield one.record, one.file, one.line, one.total / one.count
        if self._cut:
            notice(f"{self._cut} records are longer than {self._length} tokens: their loss is that of their beginning")
        if self._too_long:
            notice(f"{self._too_long} records are longer than anything the model can read, and have no loss")

    def _tokens(self, sources: list[Source], columns: dict[str, str]) -> Iterator[_Tokens]:
        number = -1
        for source in sources:
            for _, chunk in source.chunks():
                for row in chunk.rows():
                    # Counted as the scan counts: errors about whole files are no records.
                    number += isinstance(row, Row) or place_of(row)[1] > 0
                    if isinstance(row, Row) and (made := self._encoded(row, columns)) is not None:
                        yield _Tokens(number, row.file, row.line, *made)
                take_unread()

    def _encoded(self, row: Row, columns: dict[str, str]) -> tuple[np.ndarray, np.ndarray] | None:
        """Ids and labels; None for a record without anything to learn."""
        try:
            row = apply_columns(row, columns)
            encoder: Encoder | None = self._texts if to_record(row).kind == TEXT else self._chats
            shown = learnt(row)
            if encoder is None or shown is None:
                return None
            parsed, counts = encoder.parse(shown), Counts()
            for text in [parsed] if isinstance(parsed, str) else [one.text for one in parsed]:
                self._context.check_text(text, row.origin)
            found = encoder.encode([parsed], counts)
        except DataError as error:
            self._too_long += error.kind == LONGER
            return None
        self._cut += bool(counts.truncated or any(len(ids) > self._length for ids in found["input_ids"]))
        if not found["input_ids"]:
            return None
        # Of a conversation that a template makes several rows of, the last holds its last answer.
        ids, labels = (np.asarray(found[name][-1])[: self._length] for name in ("input_ids", "labels"))
        return (ids, labels) if (labels[1:] != IGNORE_INDEX).any() else None

    def _run(self, window: list[_Tokens]) -> None:
        """Fill in the losses, longest records first, so that batches have next to no padding."""
        order = sorted(window, key=lambda one: -len(one.ids))
        while order:
            size = max(1, self._batch // len(order[0].ids))
            batch, order = order[:size], order[size:]
            self._forward(batch)

    @torch.no_grad()
    def _forward(self, batch: list[_Tokens]) -> None:
        rows = self._collate([{"input_ids": one.ids.tolist(), "labels": one.labels.tolist()} for one in batch])
        device: Any = self._model.device
        inputs = {name: rows[name].to(device) for name in ("input_ids", "attention_mask")}
        target = torch.full_like(rows["labels"], IGNORE_INDEX)
        # A token is predicted at the place before it.
        target[:, :-1] = rows["labels"][:, 1:]
        at = (target != IGNORE_INDEX).flatten().nonzero()[:, 0]
        said = self._model(
            **inputs, answer_at=at.to(device), answer_ids=target.flatten()[at].to(device), answer_detail=0
        )
        sums = torch.zeros(len(batch)).index_add_(0, at // target.shape[1], -said.log_probs.float().cpu())
        for one, total in zip(batch, sums.tolist(), strict=True):
            one.total = total


class Outlying:
    """Which losses are far above the others: more than `_FAR` times the usual distance above the median."""

    _FAR = 6.0

    def __init__(self, losses: np.ndarray) -> None:
        known = losses[np.isfinite(losses)]
        self.median = float(np.median(known)) if len(known) else math.nan
        # Not the standard deviation, which outliers would raise themselves.
        spread = float(np.median(np.abs(known - self.median))) if len(known) else math.nan
        self.limit = self.median + self._FAR * max(spread, 0.05)

    def numbers(self, losses: np.ndarray) -> list[int]:
        """The records, worst first."""
        far = np.flatnonzero(np.isfinite(losses) & (losses > self.limit))
        return far[np.argsort(-losses[far], kind="stable")].tolist()
