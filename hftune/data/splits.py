"""Training and held-out records of a run: read, tokenised once a machine, packed, mixed, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset

from hftune.arguments.data import DataArguments
from hftune.arguments.training import StageArguments
from hftune.data.counts import Counts
from hftune.data.encoder import Encoder, without_counts
from hftune.data.mixture import Mixture
from hftune.data.packing.rows import Packing, packing_by_split
from hftune.data.readers.columns import check_columns, parse_columns
from hftune.data.readers.specs import parse_sources
from hftune.data.shared_records import say_shared_files, say_shared_records
from hftune.data.sources import (
    TokenizedSource,
    concatenated,
    draw_records,
    finished,
    limit_source,
    limit_sources,
    load_source,
    split_source,
)
from hftune.distributed import ranks
from hftune.errors import ArgumentError
from hftune.logging import get_logger
from hftune.on_demand import on_demand

# What only some runs need, by the argument that asks for it (blocks: `--tokenized_dir` of run_pt.py).
_ON_DEMAND = {
    "streaming": "hftune.data.stream_splits:open_stream",
    "blocks": "hftune.data.folder_splits:open_tokenized",
    "tokenized_dir": "hftune.data.tokenized_folder:load_tokenised",
    "dummy_data": "hftune.data.generated:generated_source",
    "packing": "hftune.data.packing.rows:packed_source",
    "teacher_targets": "hftune.data.teacher_targets:taught_source",
    "count_rows": "hftune.data.packing.rows:limit_packed_rows",
}


@dataclass
class Splits:
    """What a trainer is given, and what the manifest says of it (counts, files, fingerprint of each split).

    `mixture` says how records of several sources, one after the other in `train`, are drawn; None: all, once an epoch.
    """

    train: Dataset
    evaluation: Dataset | None
    about: dict[str, Any] = field(default_factory=dict)
    mixture: Mixture | None = None


Sources = dict[str, list[TokenizedSource]]
"""The parts of "train" and, where records are held out, of "eval"; one a source."""


def load_data(encoder: Encoder, data_args: DataArguments, training_args: StageArguments) -> Splits:
    """What a run trains on: records tokenised ahead, a stream, or the blocks of tokenised folders (pre-training)."""
    makes_blocks = encoder.row_length == "block_size" and data_args.tokenized
    if not makes_blocks and not data_args.streaming:
        return load_splits(encoder, data_args, training_args)
    found: Splits = on_demand(_ON_DEMAND["blocks" if makes_blocks else "streaming"])(encoder, data_args, training_args)
    say_shared_files(*(found.about.get(name, {}).get("files", []) for name in ("train", "eval")))
    return found


def load_splits(encoder: Encoder, data_args: DataArguments, training_args: StageArguments) -> Splits:
    """Both splits, as `encoder` makes them, packed where the training arguments say so.

    Raises:
        DataError: A file or record that cannot be used, with file and line; or nothing left.
        ArgumentError: Settings of the two splits that do not go together.
    """
    packing = packing_by_split(training_args, encoder.row_length) if encoder.row_length else {}
    # Tokenised one by one, joined after that: a source keeps its cache entry when another one is added.
    sources = load_sources(encoders_by_split(encoder, packing), data_args, training_args.seed)
    if "eval" in sources and ranks.is_main():
        say_shared_records(*([part.dataset for part in sources[name]] for name in ("train", "eval")))
    weights = _weights(data_args)
    # Packed as one, so that the rows of small sources are filled up by others; by weights each source is drawn alone,
    # and its rows must hold no other.
    if weights is None:
        sources = {name: [concatenated(parts)] for name, parts in sources.items()}
    if getattr(training_args, "teacher_targets", None):
        taught_source = partial(on_demand(_ON_DEMAND["teacher_targets"]), encoder.tokenizer, training_args, data_args)
        sources = {name: [taught_source(part) for part in parts] for name, parts in sources.items()}
    sources = {name: pack_sources(parts, packing.get(name), data_args) for name, parts in sources.items()}
    # MedicalGPT's meaning of --max_train_samples in pre-training: blocks, which are known only now.
    if data_args.count_rows:
        limits = {"train": data_args.max_train_samples, "eval": data_args.max_eval_samples}
        sources = {
            name: _rows_wanted(parts, limits[name], packed=name in packing) if limits[name] > 0 else parts
            for name, parts in sources.items()
        }
    about, built = {}, {}
    for name, parts in sources.items():
        whole = concatenated(parts)
        about[name] = {"files": whole.files, "fingerprint": whole.key[:16], **whole.counts.to_dict()}
        # The Trainer would take `trained` for a column of the model.
        built[name] = without_counts(whole.dataset)
        get_logger().info("%s: %s", name, describe(whole.counts))
    mixture = _mixture([len(part.dataset) for part in sources["train"]], weights, data_args)
    return Splits(built["train"], built.get("eval"), about, mixture)


def encoders_by_split(encoder: Encoder, packing: dict[str, Packing]) -> dict[str, Encoder]:
    """The encoder of each split: what is cut while packing must not be cut before."""
    return {
        name: encoder.without_limit() if name in packing and packing[name].cuts else encoder
        for name in ("train", "eval")
    }


def load_sources(
    encoders: dict[str, Encoder], data_args: DataArguments, seed: int, *, only: str | None = None
) -> Sources:
    """Tokenised records of each split and source.

    Held-out records come from `--validation_file_dir`, or are drawn with `seed` from each source of the training
    records. With `--tokenized_dir` both are read from there.

    Args:
        only: Load this split alone, from its files.

    Raises:
        DataError: A file or record that cannot be used, with file and line; or nothing left.
        ArgumentError: `--columns` names what no record has.
    """
    if data_args.tokenized_dir:
        limits = record_limits(data_args)
        found = on_demand(_ON_DEMAND["tokenized_dir"])(Path(data_args.tokenized_dir), encoders)
        return {name: [limit_source(part, limits[name])] for name, part in found.items()}
    sources = _read(encoders, data_args, seed, only)
    # A stream looks at its own records while it trains.
    if only is None:
        met = {name for parts in sources.values() for part in parts for name in part.counts.columns}
        check_columns(parse_columns(data_args.columns), met)
    return {name: finished(parts, encoders[name], data_args) for name, parts in sources.items()}


def _read(encoders: dict[str, Encoder], data_args: DataArguments, seed: int, only: str | None) -> Sources:
    """See `load_sources`; which columns a split has is not decided yet."""
    limits = record_limits(data_args)
    if data_args.validation_file_dir is None and data_args.validation_split_percentage > 0:
        return _drawn(encoders, data_args, seed)
    sources = {}
    if only != "eval":
        sources["train"] = _training_parts(encoders["train"], data_args, seed, limits["train"])
    if data_args.validation_file_dir:
        sources["eval"] = _parts(
            data_args.validation_file_dir, "--validation_file_dir", encoders["eval"], data_args, seed, limits["eval"]
        )
    return sources


def _drawn(encoders: dict[str, Encoder], data_args: DataArguments, seed: int) -> Sources:
    """Both splits from the training records."""
    # Both come from one cache entry, which is made by one encoder.
    if encoders["train"].settings() != encoders["eval"].settings():
        raise ArgumentError(
            "held-out records drawn from the training records cannot be cut in another way than those",
            place="--eval_packing",
            fix="leave it out, or give --validation_file_dir in place of --validation_split_percentage",
        )
    # Limits come after the split: held-out records stay the same whatever the limit of the others is.
    whole = _training_parts(encoders["train"], data_args, seed, -1)
    limits = record_limits(data_args)
    divided = [split_source(part, data_args.validation_split_percentage, seed) for part in whole]
    return {
        "train": limit_sources([train for train, _ in divided], limits["train"], data_args.shuffle_seed),
        "eval": limit_sources([held for _, held in divided], limits["eval"]),
    }


def _training_parts(encoder: Encoder, data_args: DataArguments, seed: int, limit: int) -> list[TokenizedSource]:
    if data_args.dummy_data is not None:
        return limit_sources([on_demand(_ON_DEMAND["dummy_data"])(encoder, data_args)], limit)
    shuffle = data_args.shuffle_seed
    if data_args.dataset_name:
        return _parts(data_args.dataset_name, "--dataset_name", encoder, data_args, seed, limit, shuffle)
    assert data_args.train_file_dir is not None, "preflight asks for one of them"
    return _parts(data_args.train_file_dir, "--train_file_dir", encoder, data_args, seed, limit, shuffle)


def _parts(
    given: str,
    flag: str,
    encoder: Encoder,
    data_args: DataArguments,
    seed: int,
    limit: int,
    shuffle: int | None = None,
) -> list[TokenizedSource]:
    """The parts of a list of sources; with a single one, what lies behind `limit` is not tokenised."""
    specs = parse_sources(given, flag=flag)
    # With several sources the limit counts over all of them, and how many each has is known only when it is read.
    if len(specs) == 1 and specs[0].take is None:
        return [load_source(specs[0].path, flag, encoder, data_args, limit=limit, seed=shuffle)]
    named = [(spec.take, f"{flag} {spec.path}", load_source(spec.path, flag, encoder, data_args)) for spec in specs]
    return limit_sources([draw_records(part, number, seed, place) for number, place, part in named], limit, shuffle)


def record_limits(data_args: DataArguments) -> dict[str, int]:
    """How many records of "train" and "eval" are used at most, -1 for all; all where rows are counted, once packed."""
    if data_args.count_rows:
        return {"train": -1, "eval": -1}
    return {"train": data_args.max_train_samples, "eval": data_args.max_eval_samples}


def _rows_wanted(parts: list[TokenizedSource], limit: int, *, packed: bool) -> list[TokenizedSource]:
    """At most `limit` rows over all parts, as they are trained."""
    limited = on_demand(_ON_DEMAND["count_rows"]) if packed else limit_source
    kept: list[TokenizedSource] = []
    for part in parts:
        left = limit - sum(len(other.dataset) for other in kept)
        if left > 0:
            kept.append(limited(part, left))
    return kept


def pack_sources(
    parts: list[TokenizedSource], packing: Packing | None, data_args: DataArguments
) -> list[TokenizedSource]:
    """Each part in packed rows; as it is without packing."""
    if packing is None:
        return parts
    packed_source = on_demand(_ON_DEMAND["packing"])
    return [packed_source(part, packing, data_args) for part in parts]


def _weights(data_args: DataArguments) -> list[float] | None:
    """The weight of each training source; None where all records are taken as they are."""
    if data_args.mix_strategy == "concat" or not data_args.train_file_dir:
        return None
    specs = parse_sources(data_args.train_file_dir, data_args.train_dataset_prob)
    weights = [spec.weight for spec in specs if spec.weight is not None]
    return weights or None


def _mixture(sizes: Sequence[int], weights: list[float] | None, data_args: DataArguments) -> Mixture | None:
    """How an epoch is drawn: with `under` until a source is used up, with `over` until all are."""
    if weights is None:
        wanted = data_args.num_samples_each_epoch
        return Mixture((sum(sizes),), None, wanted) if wanted else None
    # `limit_sources` leaves out sources of which nothing is left; weights could not be told apart any more.
    if len(sizes) < len(weights):
        raise ArgumentError(
            "a source has no record left", place="--max_train_samples", fix="raise it, or use --num_samples_each_epoch"
        )
    # How long an epoch would be in which this source is used up exactly once.
    lengths = [size * sum(weights) / weight for size, weight in zip(sizes, weights, strict=True)]
    length = min(lengths) if data_args.mix_strategy == "under" else max(lengths)
    number = data_args.num_samples_each_epoch or max(1, round(length))
    return Mixture(tuple(sizes), tuple(weights), number)


def describe(counts: Counts) -> str:
    """Counts in a line: rows read and used, what was dropped and why, truncated, tokens and the share trained."""
    parts = [f"{counts.rows} records read, {counts.used} used"]
    parts += [f"{number} dropped ({reason})" for reason, number in counts.dropped.items()]
    if counts.truncated:
        which = ", ".join(f"{number} in the {name}" for name, number in counts.cut.items())
        parts.append(f"{counts.truncated} truncated" + (f" ({which})" if which else ""))
    if counts.bordered:
        parts.append(f"{counts.bordered} with turn borders in their text")
    if counts.tokens:
        parts.append(f"{counts.tokens} tokens, {100 * counts.trained_tokens / counts.tokens:.0f} % trained")
    if counts.packing:
        parts.append(describe_packing(counts.packing))
    return ", ".join(parts)


def describe_packing(about: dict[str, Any]) -> str:
    """What `PackStats` and the strategy say, in a line."""
    parts = f"packed ({about['strategy']}) into {about.get('of', about['packs'])} rows of {about['max_length']}"
    parts += f", the first {about['packs']} of them used" if "of" in about else ""
    parts += f", {100 * about['fill']:.1f} % full"
    if about["split_documents"]:
        parts += f", {about['split_documents']} split"
    if about["untrained_tokens"]:
        parts += f", {about['untrained_tokens']} tokens left out in rows with nothing to train"
    return parts
