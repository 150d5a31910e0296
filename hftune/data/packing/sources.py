"""The records of a source in packed rows, from the cache where they are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import xxhash

from hftune.arguments.data import DataArguments
from hftune.constants import IGNORE_INDEX
from hftune.data.counts import Counts
from hftune.data.packing.rows import pack_into
from hftune.data.packing.settings import Packing
from hftune.data.sources import TokenizedSource, select_records
from hftune.data.storage.cache import cached


def packed_source(part: TokenizedSource, packing: Packing, data_args: DataArguments) -> TokenizedSource:
    """The records in packed rows, and their counts with tokens as packed and `packing` filled in."""

    def write(folder: Path) -> Counts:
        stats = pack_into(folder, part.dataset, packing)
        about = {"strategy": packing.strategy, **stats.to_dict()}
        return replace(part.counts, tokens=stats.tokens, trained_tokens=stats.trained_tokens, packing=about)

    key = xxhash.xxh3_128(f"{part.key} {packing}".encode()).hexdigest()
    dataset, counts = cached(key, write, cache_dir=data_args.data_cache_dir, overwrite=data_args.overwrite_cache)
    # The key stays that of the records: it names the data in the manifest, however they are packed.
    return replace(part, dataset=dataset, counts=counts)


def limit_packed_rows(part: TokenizedSource, limit: int) -> TokenizedSource:
    """At most `limit` packed rows of a part, with what is in them counted."""
    rows = len(part.dataset)
    assert part.counts.packing is not None, "packed before"
    if limit >= rows:
        return part
    kept = select_records(part, range(limit))
    table = kept.dataset.select_columns(["input_ids", "labels"]).with_format("arrow")[:]
    labels = pc.list_flatten(table["labels"])
    tokens, trained = len(labels), int(pc.sum(pc.not_equal(labels, IGNORE_INDEX)).as_py())
    room = limit * part.counts.packing["max_length"]
    about = part.counts.packing | {"packs": limit, "of": rows, "fill": round(tokens / room, 4)}
    about |= {"tokens": tokens, "trained_tokens": trained}
    counts = replace(part.counts, tokens=tokens, trained_tokens=trained, packing=about)
    return replace(kept, counts=counts)
