"""A folder of targets as `hftune teach` writes it, without a teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from hftune.checkpoints import manifest as manifests
from hftune.constants import IGNORE_INDEX
from hftune.data.teacher_targets import StoredTargets, shard_name
from hftune.tools.teaching import shards
from hftune.tools.teaching.shards import Shard, Work, divide, write_index
from tests.unit.data.helpers import to_dataset

K, VOCABULARY = 3, 50


def conversations(lengths: list[int], start: int = 0) -> Dataset:
    """Records of so many tokens, of which all but the first two are trained."""
    ids = [[(start + 7 * number + place) % 40 for place in range(length)] for number, length in enumerate(lengths)]
    labels = [[IGNORE_INDEX] * min(2, len(row)) + row[2:] for row in ids]
    return to_dataset({"input_ids": ids, "labels": labels})


def said_at(place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the made-up teacher says at places: ids and log-probabilities that tell the place."""
    ids = (place[:, None] + np.arange(K)) % VOCABULARY
    return ids, np.log(np.array([0.5, 0.3, 0.1]) - 1e-4 * (place[:, None] % 100))


def write(folder: Path, dataset: Dataset, **changes: Any) -> StoredTargets:
    """All shards of a data set, its index and a manifest."""
    folder.mkdir()
    work = divide(dataset, K)
    for shard in range(work.shards):
        fill(folder / shard_name(shard), work, shard)
    write_index(folder, work)
    about = {"k": K, "temperature": 1.0, "vocabulary": VOCABULARY, "tokens": int(work.places[-1])}
    about |= {"shards": work.shards, "records": len(work.records), "tokenizer": "t", "teacher": {"name": "T"}} | changes
    manifests.finish_manifest(folder, {"stage": "teach", "status": "complete", "targets": about})
    return StoredTargets(folder)


def fill(file: Path, work: Work, shard: int) -> None:
    """A shard, its later half first."""
    tokens, begin = work.tokens_of(shard), int(work.places[work.bounds[shard]])
    writer = Shard(tokens, K)
    for at in (np.arange(tokens // 2, tokens), np.arange(tokens // 2)):
        writer.write(at, *said_at(begin + at))
    writer.save(file)


SMALL = 8 * K * 10
"""A size of shards for `shards.SHARD_BYTES`: ten tokens."""

__all__ = ["SMALL", "VOCABULARY", "K", "conversations", "fill", "said_at", "shards", "write"]
