"""Training and held-out records of a run: read, tokenised once a machine, packed, mixed, counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.arguments.data import DataArguments
from hftune.arguments.stage_table import base_stage
from hftune.arguments.training import StageArguments
from hftune.data.columns import apply_columns, check_columns, parse_columns
from hftune.data.encoder import Encoder, without_counts
from hftune.data.files import Row, chunks
from hftune.data.hub import data_files
from hftune.data.mixture import Mixture
from hftune.data.packing import Packing, packed_source, packing_by_split, select_packed_rows
from hftune.data.sources import (
    TokenizedSource,
    concatenated,
    draw_records,
    finished,
    generated_source,
    limit_sources,
    load_source,
    select_records,
    split_source,
)
from hftune.data.specs import parse_sources
from hftune.data.tokenized_folder import load_tokenised, settings_of
from hftune.distributed import ranks
from hftune.errors import ArgumentError
from hftune.logging import get_logger, notice
from hftune.on_demand import on_demand

# What only some runs need, by the argument that asks for it (blocks: `--tokenized_dir` of run_pt.py).
_ON_DEMAND = {
    "streaming": "hftune.data.endless:open_stream",
    "blocks": "hftune.data.endless:open_tokenized",
    "teacher_targets": "hftune.data.teacher_targets:taught_source",
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
        for name, parts in sources.items():
            select = select_packed_rows if name in packing else select_records
            sources[name] = limit_sources(parts, limits[name], select=select)
    about, built = {}, {}
    for name, parts in sources.items():
        whole = concatenated(parts)
        about[name] = {"files": whole.files, "fingerprint": whole.key[:16], **whole.counts.to_dict()}
        # The Trainer would take `trained` for a column of the model.
        built[name] = without_counts(whole.dataset)
        get_logger().info("%s: %s", name, describe(about[name]))
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
    limits = record_limits(data_args)
    if data_args.tokenized_dir:
        found = load_tokenised(Path(data_args.tokenized_dir), encoders)
        return {name: limit_sources([part], limits[name]) for name, part in found.items()}
    if data_args.validation_file_dir is None and data_args.validation_split_percentage > 0:
        sources = _drawn(encoders, data_args, seed)
    else:
        sources = {}
        if only != "eval":
            sources["train"] = _training_parts(encoders["train"], data_args, seed, limits["train"])
        if held := data_args.validation_file_dir:
            flag, encoder = "--validation_file_dir", encoders["eval"]
            sources["eval"] = _parts(held, flag, encoder, data_args, seed, limits["eval"])
    # A stream looks at its own records while it trains.
    if only is None:
        met = {name for parts in sources.values() for part in parts for name in part.counts.columns}
        check_columns(parse_columns(data_args.columns), met)
    return {name: finished(parts, encoders[name], data_args) for name, parts in sources.items()}


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
        return limit_sources([generated_source(encoder, data_args)], limit)
    shuffle = data_args.shuffle_seed
    if data_args.dataset_name:
        return _parts(data_args.dataset_name, "--dataset_name", encoder, data_args, seed, limit, shuffle)
    assert data_args.train_file_dir is not None, "preflight asks for one of them"
    return _parts(data_args.train_file_dir, "--train_file_dir", encoder, data_args, seed, limit, shuffle)


def _parts(
    given: str, flag: str, encoder: Encoder, data_args: DataArguments, seed: int, limit: int, shuffle: int | None = None
) -> list[TokenizedSource]:
    """The parts of a list of sources; of a single one whose first records are taken, no others are tokenised."""
    specs = parse_sources(given, flag=flag)
    # With several sources, or records that are drawn, how many there are of all is known only when they are read.
    if len(specs) == 1 and specs[0].take is None and shuffle is None:
        return [load_source(specs[0].path, flag, encoder, data_args, limit=limit)]
    named = [(spec.take, f"{flag} {spec.path}", load_source(spec.path, flag, encoder, data_args)) for spec in specs]
    return limit_sources([draw_records(part, number, seed, place) for number, place, part in named], limit, shuffle)


def record_limits(data_args: DataArguments) -> dict[str, int]:
    """How many records of "train" and "eval" are used at most, -1 for all; all where rows are counted, once packed."""
    if data_args.count_rows:
        return {"train": -1, "eval": -1}
    return {"train": data_args.max_train_samples, "eval": data_args.max_eval_samples}


def pack_sources(
    parts: list[TokenizedSource], packing: Packing | None, data_args: DataArguments
) -> list[TokenizedSource]:
    """Each part in packed rows; as it is without packing."""
    if packing is None:
        return parts
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


def describe(about: Mapping[str, Any]) -> str:
    """What `Counts.to_dict` (or `Splits.about`) says in a line; what notices say of records in words is left out."""
    parts: list[str] = []
    if "rows" in about:
        parts += [f"{about['rows']} records read", f"{about['used']} used"]
        parts += [f"{number} dropped ({reason})" for reason, number in about["dropped"].items()]
    if about.get("truncated"):
        which = ", ".join(f"{number} in the {name}" for name, number in about.get("cut", {}).items())
        parts.append(f"{about['truncated']} truncated" + (f" ({which})" if which else ""))
    if about.get("bordered"):
        parts.append(f"{about['bordered']} with turn borders in their text")
    if about.get("tokens"):
        trained = about.get("trained_tokens", 0)
        parts.append(f"{about['tokens']} tokens, {trained} trained ({100 * trained / about['tokens']:.0f} %)")
    if about.get("packing"):
        parts.append(describe_packing(about["packing"]))
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


LABELS = ("label", "kto_tag")
"""Columns by which an answer says that it is good or bad."""

ENCODERS = {
    "pt": "hftune.data.encode:TextEncoder",
    "sft": "hftune.data.encode:ChatEncoder",
    "rm": "hftune.data.encode_rewards:RewardPairEncoder",
    "rm process": "hftune.data.encode_rewards:StepEncoder",
    "dpo": "hftune.data.encode_pairs:PairEncoder",
    "dpo kto": "hftune.data.encode_pairs:MismatchedPairEncoder",
    "dpo labels": "hftune.data.encode_pairs:LabelledEncoder",
    "rl": "hftune.data.encode_prompts:PromptEncoder",
}
"""By stage, and what it is asked for beyond its usual records."""


def make_encoder(
    stage: str, tokenizer: PreTrainedTokenizerBase, args: StageArguments, data_args: DataArguments
) -> Encoder:
    """The encoder of a run.

    Args:
        stage: pt, sft, rm, dpo or rl.
    """
    made: Encoder = on_demand(ENCODERS[_kind(base_stage(stage), args, data_args)]).from_arguments(tokenizer, args)
    return made


def _kind(stage: str, args: Any, data_args: DataArguments) -> str:
    if stage == "rm" and args.reward_kind == "process":
        return "rm process"
    if stage == "dpo" and args.unpaired and _has_labels(data_args):
        return "dpo labels"
    return "dpo kto" if stage == "dpo" and "kto" in args.loss_type else stage


def _has_labels(data_args: DataArguments) -> bool:
    """Whether the first record of the training data is an answer with a label."""
    if data_args.tokenized_dir:
        # Its records are token ids; what they were before is written in its index.
        settings = settings_of(Path(data_args.tokenized_dir))
        return bool(settings.get("encoder") == "LabelledEncoder")
    given = data_args.train_file_dir or data_args.dataset_name
    if not given:
        return False
    (spec, *_) = parse_sources(given, flag="--train_file_dir")
    rows = (row for chunk in chunks(data_files(spec.path, "--train_file_dir")) for row in chunk.rows())
    # Bad records are passed over here: whoever tokenises them says what is wrong.
    first = next((row for row in rows if isinstance(row, Row)), None)
    return first is not None and any(
        name in apply_columns(first, parse_columns(data_args.columns)).value for name in LABELS
    )


# --- held-out records that are trained as well --------------------------------------------------------------------


def say_shared_records(train: Iterable[Dataset], held_out: Iterable[Dataset]) -> None:
    """Say how many held-out rows are in the training records to the letter (to the token, where they are tokenised)."""
    held = [one for dataset in held_out for one in row_digests(dataset)]
    left = set(held)
    trained = {one for dataset in train for one in row_digests(dataset) if one in left}
    shared = sum(one in trained for one in held)
    if shared:
        notice(
            f"{'all' if shared == len(held) else shared} of the {len(held)} held-out records are trained as well: the "
            "figures of an evaluation are of what the model has seen (give others with --validation_file_dir, or hold "
            "some out with --validation_split_percentage)"
        )


def say_shared_files(train: Iterable[str], held_out: Iterable[str]) -> None:
    """Say which files are both, of records that are not compared: streams, and documents tokenised ahead."""
    both = sorted({*train} & {*held_out})
    if both:
        notice(
            f"{', '.join(both[:3])}{', ...' if len(both) > 3 else ''}: trained and held out at once, so that the "
            "figures of an evaluation are of what the model has seen"
        )


def row_digests(dataset: Dataset) -> Iterator[int]:
    """64 bits a row over its columns of ids; over all its columns where it has none, as the prompts of RL."""
    ids = [name for name in dataset.column_names if name.endswith("_ids")]
    for table in dataset.select_columns(ids or dataset.column_names).with_format("arrow").iter(10_000):
        if ids:
            yield from _digests_of_ids(table, ids)
        else:
            rows = (json.dumps(row, sort_keys=True, default=str) for row in table.to_pylist())
            yield from (xxhash.xxh3_64_intdigest(row.encode()) for row in rows)


def _digests_of_ids(table: pa.Table, ids: list[str]) -> Iterator[int]:
    columns = [column.combine_chunks() for column in table.select(ids).itercolumns()]
    # A million rows are compared before each run: numbers stay where they are, no list is made of any.
    flat = [(memoryview(one.flatten().to_numpy()), one.offsets.to_numpy() - one.offsets[0].as_py()) for one in columns]
    for row in range(len(table)):
        state = xxhash.xxh3_64()
        for values, starts in flat:
            state.update(values[starts[row] : starts[row + 1]])
            state.update(b"|")
        yield state.intdigest()
