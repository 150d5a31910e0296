"""The data of a run without an end: tokenised folders of pre-training, and raw records tokenised while training."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from transformers import PreTrainedTokenizerBase

from hftune.arguments.data import DataArguments
from hftune.arguments.training import PTArguments, StageArguments
from hftune.data.blocks import BlockDataset, Columns, HeldOutBlocks, Settings, check_tokens
from hftune.data.columns import apply_columns, parse_columns
from hftune.data.counts import Counts
from hftune.data.documents import Documents
from hftune.data.encoder import Encoder
from hftune.data.files import Row, unreadable
from hftune.data.formats import take_unread
from hftune.data.hub import HUB, stream_chunks, stream_files
from hftune.data.mixture import as_shares
from hftune.data.packing import packing_by_split
from hftune.data.sources import concatenated, record_settings
from hftune.data.specs import parse_sources, parse_weights
from hftune.data.splits import Splits, encoders_by_split, load_sources, pack_sources
from hftune.data.storage import fingerprint
from hftune.data.streaming import StreamingDataset, StreamSettings
from hftune.data.tokenized_folder import INDEX, check_index, held_out_within
from hftune.distributed import ranks
from hftune.distributed.nodes import once_a_machine
from hftune.errors import ArgumentError
from hftune.logging import get_logger, notice
from hftune.opening.files import open_file

# The file by which a folder of `Dataset.save_to_disk` is known.
_SAVED = "state.json"


def open_tokenized(encoder: Encoder, data_args: DataArguments, training_args: PTArguments) -> Splits:
    """An endless `BlockDataset` over `--tokenized_dir`, and the held-out blocks of `--validation_tokenized_dir`.

    The first process of a machine reads all of what `hftune tokenize` wrote, to see whether it is whole (a second for
    some gigabytes); of other folders nothing is read but lengths.

    Raises:
        ArgumentError: Folders and weights that do not fit together.
        DataError: A folder that does not hold tokenised documents.
    """
    tokenizer, block_size = encoder.tokenizer, training_args.block_size
    seed = training_args.seed if training_args.data_seed is None else training_args.data_seed
    folders = find_folders(data_args.tokenized_dir, data_args.datasets)
    # Without a limit: blocks are cut while training, so `hftune tokenize` has written whole documents.
    check_index(_split(data_args.tokenized_dir), encoder.without_limit())
    # Opened once for all checks; later the workers of the DataLoader map the same files.
    sources = [Documents(folder, name) for name, folder in folders.items()]
    shares = as_shares(parse_weights(data_args.weights, list(folders), "--weights")) if data_args.weights else None
    settings = Settings(seed, data_args.logical_shards, data_args.shuffle_buffer)
    train = BlockDataset(
        sources, block_size, shares, settings, vocabulary=len(tokenizer), epoch_blocks=data_args.num_samples_each_epoch
    )
    about = {"train": _describe(train, sources)}
    _say(train, tokenizer)
    held_out: Any = None
    validation = data_args.validation_tokenized_dir or held_out_within(_split(data_args.tokenized_dir))
    if validation:
        found = find_folders(validation, None, "--validation_tokenized_dir", split="eval")
        kept = [Documents(folder, name) for name, folder in found.items()]
        parts = [HeldOutBlocks(documents, block_size, len(tokenizer)) for documents in kept]
        held_out = torch.utils.data.ConcatDataset(parts)
        about["eval"] = _counts(kept, len(held_out))
    return Splits(train, held_out, about)


def find_folders(
    given: str | None, datasets: str | None, flag: str = "--tokenized_dir", *, split: str = "train"
) -> dict[str, Path]:
    """Source names and their folders, in the order in which they were named.

    Args:
        given: Folders with a comma between them. Each is a tokenised folder, or holds some.
        datasets: Names of sub-folders of `given`, or paths, with a comma between them; None: all that are there.
        flag: The flag of `given`, for errors.
        split: What is taken of a folder of `hftune tokenize`, which holds several.

    Raises:
        ArgumentError: A folder that is not there or holds nothing, or two of one name.
    """
    roots = [Path(part).expanduser() for part in _split(given)]
    if datasets:
        chosen = [_named(name, roots) for name in _split(datasets)]
    else:
        chosen = [folder for root in roots for folder in _below(root, flag)]
    chosen = [folder / split if (folder / INDEX).is_file() else folder for folder in chosen]
    # Of a folder of `hftune tokenize` the splits are all called train and eval.
    names = [folder.parent.name if (folder.parent / INDEX).is_file() else folder.name for folder in chosen]
    # The state of a checkpoint knows sources by name; two of one name would share a position.
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ArgumentError(
            f"two sources are called {', '.join(twice)}",
            place="--datasets" if datasets else flag,
            fix="Rename a folder: its name tells sources apart in checkpoints.",
        )
    return dict(zip(names, chosen, strict=True))


def _below(root: Path, flag: str) -> list[Path]:
    """The folder itself if it is tokenised, else its tokenised sub-folders by name."""
    if _is_tokenised(root):
        return [root]
    found = sorted(folder for folder in root.iterdir() if _is_tokenised(folder)) if root.is_dir() else []
    if not found:
        cause = f"{root} holds no tokenised folder" if root.is_dir() else f"there is no folder {root}"
        raise ArgumentError(cause, place=flag, fix="Give what `hftune tokenize` or `Dataset.save_to_disk` wrote.")
    return found


def _is_tokenised(folder: Path) -> bool:
    return (folder / _SAVED).is_file() or (folder / INDEX).is_file()


def _named(name: str, roots: list[Path]) -> Path:
    """The tokenised folder that a name of `--datasets` means."""
    places = [root / name for root in roots] or [Path(name).expanduser()]
    for place in places:
        if _is_tokenised(place):
            return place
    tried = " and ".join(str(place) for place in places)
    raise ArgumentError(
        f"there is no tokenised folder {tried}",
        place="--datasets",
        fix="Give names of sub-folders of --tokenized_dir, or paths.",
    )


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _counts(sources: list[Documents], blocks: int) -> dict[str, Any]:
    """What the manifest says of a split, in the words it has for records."""
    documents, tokens = sum(map(len, sources)), sum(source.tokens for source in sources)
    return {
        "files": [str(source.folder) for source in sources],
        "rows": documents,
        "used": documents,
        "dropped": {},
        "truncated": 0,
        "tokens": tokens,
        # All but the first token of each document and of each block.
        "trained_tokens": max(0, tokens - documents - blocks),
        "blocks": blocks,
    }


def _describe(train: BlockDataset, sources: list[Documents]) -> dict[str, Any]:
    # Settings, shares and layouts: all that decides the order of the blocks.
    state = train.state(0)
    fingerprint = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]
    return {"fingerprint": fingerprint, "sources": state["sources"], **_counts(sources, train.epoch_blocks)}


def _say(train: BlockDataset, tokenizer: PreTrainedTokenizerBase) -> None:
    """Sources and their shares; and what would otherwise only show in what the model writes: missing ends of text."""
    total = sum(train.schedule.shares)
    for source, share in zip(train.sources, train.schedule.shares, strict=True):
        documents = source.documents
        get_logger().info(
            "data: %s: %s documents, %s tokens, %.1f %% of the blocks",
            documents.name,
            f"{len(documents):,}",
            f"{documents.tokens:,}",
            100 * share / total,
        )
        unended = _without_end(documents, source.boundaries.tolist(), tokenizer)
        if unended:
            notice(
                f"{documents.folder}: {unended} documents looked at do not end with the tokenizer's EOS, so the model "
                "will not learn from them where a text ends"
            )
    get_logger().info("data: an epoch is %s blocks of %d tokens", f"{train.epoch_blocks:,}", train.block_size)


def _without_end(documents: Documents, boundaries: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """How many of the first documents of the shards lack EOS, as "3 of 2048"; "" for none.

    Raises:
        DataError: One of them holds a token that the tokenizer does not have: found before the model loads.
    """
    # The first document of each shard: some thousand from all over the corpus, read in no time.
    looked_at = [document for document in sorted(set(boundaries)) if document < len(documents)]
    lacking = 0
    for document in looked_at:
        length = int(documents.lengths(document, document + 1)[0])
        ids = documents.read(document, 0, length)
        if length:
            check_tokens(documents, document, ids, len(tokenizer))
        lacking += length > 0 and int(ids[-1]) != tokenizer.eos_token_id
    return f"{lacking} of {len(looked_at)}" if lacking else ""


# --- --streaming -----------------------------------------------------------------------------------------------------

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
