"""Training and held-out records of a run: read, tokenised once a machine, counted."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.arguments import DataArguments
from hftune.data.cache import cached, fingerprint
from hftune.data.encoding import Counts
from hftune.data.mixing import Mixture
from hftune.data.sources import Row, find_files, read_rows
from hftune.distributed.ranks import main_first
from hftune.logging import get_logger

Build = Callable[..., tuple[Dataset, Counts]]


@dataclass
class Splits:
    """What a trainer is given, and what the manifest says of it (counts, files, fingerprint of each split).

    `mixture` says how records of several sources, one after the other in `train`, are drawn; None: all, once an epoch.
    """

    train: Dataset
    evaluation: Dataset | None
    about: dict[str, Any] = field(default_factory=dict)
    mixture: Mixture | None = None


def load_splits(
    build: Build, data_args: DataArguments, tokenizer: PreTrainedTokenizerBase, *, seed: int, **settings: Any
) -> Splits:
    """Both splits, through `build(rows, tokenizer, **settings)`.

    Held-out records come from `--validation_file_dir`, or are drawn with `seed` from the training records.

    Raises:
        DataError: A file or record that cannot be used, with file and line.
    """
    parts: dict[str, list[Row]] = {"train": _read(data_args.train_file_dir, "--train_file_dir")}
    files = {"train": find_files(str(data_args.train_file_dir), "--train_file_dir")}
    if data_args.validation_file_dir:
        parts["eval"] = _read(data_args.validation_file_dir, "--validation_file_dir")
        files["eval"] = find_files(data_args.validation_file_dir, "--validation_file_dir")
    elif data_args.validation_split_percentage > 0:
        parts["train"], parts["eval"] = hold_out(parts["train"], data_args.validation_split_percentage, seed)
        files["eval"] = files["train"]
    limits = {"train": data_args.max_train_samples, "eval": data_args.max_eval_samples}
    built: dict[str, Dataset] = {}
    about: dict[str, Any] = {}
    for name, rows in parts.items():
        used = rows[: limits[name]] if limits[name] > 0 else rows
        # The origins say which records of the files these are: another split or limit is another entry of the cache.
        chosen = [row.origin for row in used]
        key = fingerprint(files[name], tokenizer, build=build.__qualname__, rows=chosen, **settings)
        with main_first():
            built[name], counts = cached(
                key,
                functools.partial(build, used, tokenizer, **settings),
                cache_dir=data_args.data_cache_dir,
                overwrite=data_args.overwrite_cache,
            )
        about[name] = {"files": [str(file) for file in files[name]], "fingerprint": key[:16], **counts.to_dict()}
        get_logger().info("%s: %s", name, describe(counts))
    return Splits(built["train"], built.get("eval"), about)


def hold_out(rows: list[Row], percentage: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Training and held-out rows; at least one row on each side, each side in its order in the files."""
    count = min(max(1, round(len(rows) * percentage / 100)), len(rows) - 1)
    drawn = set(random.Random(seed).sample(range(len(rows)), count))
    return (
        [row for position, row in enumerate(rows) if position not in drawn],
        [row for position, row in enumerate(rows) if position in drawn],
    )


def describe(counts: Counts) -> str:
    """Counts in a line: rows read and used, what was dropped and why, truncated, tokens and the share trained."""
    parts = [f"{counts.rows} records read, {counts.used} used"]
    parts += [f"{number} dropped ({reason})" for reason, number in counts.dropped.items()]
    if counts.truncated:
        parts.append(f"{counts.truncated} truncated")
    if counts.tokens:
        parts.append(f"{counts.tokens} tokens, {100 * counts.trained_tokens / counts.tokens:.0f} % trained")
    return ", ".join(parts)


def _read(path: str | None, flag: str) -> list[Row]:
    assert path is not None, "preflight asks for the flag"
    return read_rows(find_files(path, flag))
