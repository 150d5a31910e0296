"""Losses of held-out records: on the tokens that SFT trains, summed up for each record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from hftune.data.counts import FIX, Context, Counts
from hftune.data.encode import ChatEncoder
from hftune.data.readers.base import Row
from hftune.data.teacher_targets import trained_places
from hftune.inference.generate import batches_by_length, scored_rows
from hftune.inference.loading import Talker
from hftune.models.kernels.answer_head import add_answer_head


class RecordLosses:
    """Computes losses by one model.

    Args:
        max_length: Longer records lose their end; None: none does.
        borders_in_text: See `--borders_in_text`.
    """

    def __init__(self, talker: Talker, max_length: int | None, borders_in_text: str, batch_tokens: int) -> None:
        self.model, self.pad, self.batch_tokens = talker.model, int(talker.tokenizer.pad_token_id or 0), batch_tokens
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
        ids: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        for number, row in enumerate(rows):
            # Several rows of one record, where the template rewrites earlier turns.
            parsed = self.encode.parse(row)
            for one in parsed:
                self.context.check_text(one.text, row.origin)
            columns = self.encode.encode([parsed], Counts())
            for one_ids in columns["input_ids"]:
                self.context.check(len(one_ids), row.origin)
            owners += [number] * len(columns["input_ids"])
            ids += columns["input_ids"]
            labels += columns["labels"]
        for batch in batches_by_length([len(one) for one in ids], 0, self.batch_tokens):
            sums = self._sums([ids[place] for place in batch], [labels[place] for place in batch])
            for place, (loss, tokens) in zip(batch, sums, strict=True):
                before = found[owners[place]]
                found[owners[place]] = before[0] + loss, before[1] + tokens
        return found

    @torch.no_grad()
    def _sums(self, ids: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> Iterable[tuple[float, int]]:
        """Loss and tokens of each row of a batch."""
        trained = [trained_places(one) for one in labels]
        given, at = scored_rows(ids, trained, self.pad, self.model.device)
        wanted = np.concatenate([one[mask] for one, mask in zip(labels, trained, strict=True)]).astype(np.int64)
        answers = torch.from_numpy(wanted).to(at.device)
        said = self.model(**given, answer_at=at, answer_ids=answers, answer_detail=0).log_probs.double().cpu()
        return [(-float(part.sum()), len(part)) for part in said.split([int(mask.sum()) for mask in trained])]
