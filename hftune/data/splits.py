"""Training and held-out records of a run: read, tokenised once a machine, counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset

from hftune.arguments import DataArguments, StageArguments
from hftune.data.encoding import Counts
from hftune.data.parts import Part, divide, first, load_part
from hftune.data.saved import load_tokenised
from hftune.data.tokenised import Encoder, without_counts
from hftune.logging import get_logger


@dataclass
class Splits:
    """What a trainer is given, and what the manifest says of it (counts, files, fingerprint of each split)."""

    train: Dataset
    evaluation: Dataset | None
    about: dict[str, Any] = field(default_factory=dict)


def load_splits(encoder: Encoder, data_args: DataArguments, training_args: StageArguments) -> Splits:
    """Both splits, as `encoder` makes them.

    Raises:
        DataError: A file or record that cannot be used, with file and line; or nothing left.
    """
    parts = load_parts(encoder, data_args, training_args.seed)
    about = {}
    for name, part in parts.items():
        origin = {"files": [str(file) for file in part.files], "fingerprint": part.key[:16]}
        about[name] = origin | part.counts.to_dict()
        get_logger().info("%s: %s", name, describe(part.counts))
    built = {name: without_counts(part.dataset) for name, part in parts.items()}
    return Splits(built["train"], built.get("eval"), about)


def load_parts(encoder: Encoder, data_args: DataArguments, seed: int) -> dict[str, Part]:
    """Tokenised training records ("train") and, where there are any, held-out ones ("eval").

    Held-out records come from `--validation_file_dir`, or are drawn with `seed` from the training records. With
    `--tokenized_dir` both are read from there.

    Raises:
        DataError: A file or record that cannot be used, with file and line; or nothing left.
    """
    limits = {"train": data_args.max_train_samples, "eval": data_args.max_eval_samples}
    if data_args.tokenized_dir:
        found = load_tokenised(Path(data_args.tokenized_dir), encoder)
        return {name: first(part, limits[name]) for name, part in found.items()}
    if data_args.validation_file_dir is None and data_args.validation_split_percentage > 0:
        whole = load_part(data_args.train_file_dir, "--train_file_dir", encoder, data_args)
        train, held = divide(whole, data_args.validation_split_percentage, seed)
        return {"train": first(train, limits["train"]), "eval": first(held, limits["eval"])}
    flags = {"train": "train_file_dir", "eval": "validation_file_dir"}
    return {
        name: load_part(getattr(data_args, flag), f"--{flag}", encoder, data_args, limit=limits[name])
        for name, flag in flags.items()
        if name == "train" or getattr(data_args, flag)
    }


def describe(counts: Counts) -> str:
    """Counts in a line: rows read and used, what was dropped and why, truncated, tokens and the share trained."""
    parts = [f"{counts.rows} records read, {counts.used} used"]
    parts += [f"{number} dropped ({reason})" for reason, number in counts.dropped.items()]
    if counts.truncated:
        parts.append(f"{counts.truncated} truncated")
    if counts.tokens:
        parts.append(f"{counts.tokens} tokens, {100 * counts.trained_tokens / counts.tokens:.0f} % trained")
    return ", ".join(parts)
