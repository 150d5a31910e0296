"""`--dummy_data`: generated records, tokenised."""

from __future__ import annotations

from functools import partial

from hftune.arguments.data import DataArguments
from hftune.data.encoder import Encoder
from hftune.data.readers.dummy import FILE, dummy_chunks
from hftune.data.sources import TokenizedSource, cached_source, record_settings
from hftune.data.storage.cache import fingerprint


def generated_source(encoder: Encoder, data_args: DataArguments) -> TokenizedSource:
    """`--dummy_data` records."""
    assert data_args.dummy_data is not None
    kind = encoder.dummy_kind
    key = fingerprint(
        [], encoder.tokenizer, **record_settings(encoder, data_args), records=[data_args.dummy_data, kind]
    )
    read = partial(dummy_chunks, data_args.dummy_data, kind)
    return cached_source(key, read, encoder, data_args, [FILE], "--dummy_data")
