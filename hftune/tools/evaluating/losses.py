"""Losses of held-out records: on the tokens that SFT trains, summed up for each record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hftune.constants import IGNORE_INDEX
from hftune.data.collators import CausalCollator
from hftune.data.counts import FIX, Context, Counts
from hftune.data.encode import ChatEncoder
from hftune.data.files import Row
from hftune.inference.generate import batches_by_length
from hftune.inference.loading import Talker
from hftune.models.kernels.heads import add_answer_head
from hftune.trainers.features.token_loss import next_tokens


class RecordLosses:
    """Computes losses by one model.

    Args:
        max_length: Longer records lose their end; None: none does.
        borders_in_text: See `--borders_in_text`.
    """

    def __init__(self, talker: Talker, max_length: int | None, borders_in_text: str, batch_tokens: int) -> None:
        self.model, self.batch_tokens = talker.model, batch_tokens
        self.collate = CausalCollator(int(talker.tokenizer.pad_token_id or 0))
        self.encode = ChatEncoder(talker.tokenizer, max_length=max_length, borders_in_text=borders_in_text)
        fix = f"--max_length cuts the ends of longer records; or {FIX}"
        self.context = Context.of(talker.model, talker.tokenizer, fix)
        add_answer_head(self.model)

    def __call__(self, rows: Sequence[Row]) -> list[tuple[float, int]]:
        """Of each record the sum of the losses of its trained tokens, in nats, and how many these are.

        Raises:
            DataError: A record that cannot be used, or does not fit into the model's context.
        """
        found = [(0.0, 0)] * len(rows)
        owners: list[int] = []
        records: list[dict[str, Any]] = []
        for number, row in enumerate(rows):
            # Several rows of one record, where the template rewrites earlier turns.
            parsed = self.encode.parse(row)
            for one in parsed:
                self.context.check_text(one.text, row.origin)
            columns = self.encode.encode([parsed], Counts())
            for ids, labels in zip(columns["input_ids"], columns["labels"], strict=True):
                self.context.check(len(ids), row.origin)
                owners.append(number)
                records.append({"input_ids": ids, "labels": labels})
        for batch in batches_by_length([len(one["input_ids"]) for one in records], 0, self.batch_tokens):
            for place, (loss, tokens) in zip(batch, self._sums([records[place] for place in batch]), strict=True):
                before = found[owners[place]]
                found[owners[place]] = before[0] + loss, before[1] + tokens
        return found

    @torch.no_grad()
    def _sums(self, records: list[dict[str, Any]]) -> list[tuple[float, int]]:
        """Loss and tokens of each row of a batch."""
        batch = {name: tensor.to(self.model.device) for name, tensor in self.collate(records).items()}
        labels = next_tokens(batch)
        trained = labels != IGNORE_INDEX
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        at = trained.reshape(-1).nonzero().squeeze(1)
        said = self.model(**inputs, answer_at=at, answer_ids=labels[trained], answer_detail=0).log_probs.double().cpu()
        return [(-float(part.sum()), len(part)) for part in said.split(trained.sum(1).tolist())]
