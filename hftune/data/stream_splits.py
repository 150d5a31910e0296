"""`--streaming`: the files of a run as a stream that is tokenised while training."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import xxhash

from hftune.arguments.data import DataArguments
from hftune.arguments.training import StageArguments
from hftune.data.corpus.blocks import Columns
from hftune.data.corpus.streaming import StreamingDataset, StreamSettings
from hftune.data.counts import Counts
from hftune.data.encoder import Encoder
from hftune.data.formats import take_unread
from hftune.data.packing import packing_by_split
from hftune.data.readers.columns import apply_columns, parse_columns
from hftune.data.readers.files import Row, unreadable
from hftune.data.readers.hub import HUB, stream_chunks, stream_files
from hftune.data.readers.specs import parse_sources
from hftune.data.sources import concatenated, record_settings
from hftune.data.splits import Splits, encoders_by_split, load_sources, pack_sources
from hftune.data.storage import fingerprint
from hftune.distributed import ranks
from hftune.distributed.nodes import once_a_machine
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.opening.files import open_file

_SAMPLE = 1 << 16


@dataclass(frozen=True)
class StreamEncoder:
    """A row to its examples: none where nothing of it can be trained, several where its encoder makes several."""

    encoder: Encoder
    columns: dict[str, str]

    def __call__(self, row: Row) -> list[Columns]:
        """input_ids, labels and whatever lists of numbers the encoder makes, int32.

        Raises:
            DataError: The row cannot be used.
        """
        parsed = self.encoder.parse(apply_columns(row, self.columns) if self.columns else row)
        counts = Counts(rows=1)
        made = self.encoder.encode([parsed], counts)
        if counts.bordered:
            mode = self.encoder.settings()["borders_in_text"]
            _say_once(f"records of the stream spell turn borders in their text (--borders_in_text {mode})")
        for what in take_unread():
            _say_once(f"not read: {what}, in records of the stream")
        # Counts such as `length` are for summing up ahead of a run; the trainer takes columns of tokens only.
        names = [name for name, values in made.items() if values and isinstance(values[0], np.ndarray)]
        return [{name: made[name][number] for name in names} for number in range(len(made["input_ids"]))]


def _sample(file: str) -> str:
    """A file's size, and a digest of what it begins and ends with: all of it would be read by every rank before step 1.

    An address on the Hub holds the revision, which says the same.
    """
    if file.startswith(HUB):
        return file
    try:
        with open_file(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            digest = xxhash.xxh3_128(stream.read(_SAMPLE))
            stream.seek(max(0, size - _SAMPLE))
            digest.update(stream.read(_SAMPLE))
    except OSError as error:
        raise unreadable(file, str(error.strerror or error)).error from error
    return f"{''.join(Path(file).suffixes).lower()} {size} {digest.hexdigest()}"


# A stream counts nothing ahead, so what is said once a process is that there are some.
_say_once = cache(notice)


def open_stream(encoder: Encoder, data_args: DataArguments, training_args: StageArguments) -> Splits:
    """An endless stream over the training files; held-out records are tokenised ahead, as they always are.

    Raises:
        ArgumentError: A number of records of a source.
        DataError: A source that is not there; a record that cannot be used is found while training.
    """
    assert encoder.row_length is not None, "preflight lets only stages with input_ids stream"
    packing = packing_by_split(training_args, encoder.row_length)
    flag = "--dataset_name" if data_args.dataset_name else "--train_file_dir"
    specs = parse_sources(str(data_args.dataset_name or data_args.train_file_dir), flag=flag)
    for spec in specs:
        if spec.take is not None:
            raise ArgumentError(
                "a stream has all records of a source, as they come",
                place=f"--streaming, {flag} {spec.path}#{spec.take}",
                fix="leave the number out (--max_steps says how long to train), or --streaming",
            )
    files = [file for spec in specs for file in stream_files(spec.path, flag)]
    drop = data_args.on_bad_record == "drop"
    # Blocks are joined from whole documents where packing may cut them.
    used = encoder.without_limit() if "train" in packing and packing["train"].cuts else encoder
    # The files of a machine are the same for all of its processes.
    samples = once_a_machine(lambda: [*map(_sample, files)])
    settings = StreamSettings(
        data=fingerprint([], encoder.tokenizer, samples=samples, **record_settings(used, data_args)),
        seed=training_args.seed if training_args.data_seed is None else training_args.data_seed,
        block_size=packing["train"].max_length if "train" in packing else None,
    )
    train = StreamingDataset(
        partial(stream_chunks, files),
        StreamEncoder(used, parse_columns(data_args.columns)),
        settings,
        # Processes that share one row (tensor, sequence parallel) must read the same part of the stream.
        rank=training_args.mesh.data_rank(ranks.rank()),
        world=training_args.data_parallel_size,
        # One by one where blocks are joined from them: the ranks' shares of tokens are most alike then.
        group=1 if settings.block_size else training_args.per_device_train_batch_size,
        drop_bad_records=drop,
    )
    about = {"train": {"files": files, "fingerprint": settings.data[:16], "streamed": True}}
    # Held-out records are evaluated again and again, and need a length: they are tokenised ahead and cached.
    held_out = None
    if data_args.validation_file_dir:
        sources = load_sources(encoders_by_split(encoder, packing), data_args, training_args.seed, only="eval")
        whole = concatenated(pack_sources(sources["eval"], packing.get("eval"), data_args))
        about["eval"] = {"files": whole.files, "fingerprint": whole.key[:16], **whole.counts.to_dict()}
        held_out = whole.dataset
    return Splits(train, held_out, about)  # a Trainer takes either; the stages that stream look
