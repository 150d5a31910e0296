"""`hftune score`: a file of conversations through a reward model, in constant memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

import torch

from hftune.arguments.asking import ScoreArguments
from hftune.checkpoints.folder_checks import check_recorded_whole
from hftune.checkpoints.inputs import inputs_of
from hftune.checkpoints.reward_scale import RewardScale, read_scale
from hftune.data.counts import FIX, Counts, describe_turn_tokens
from hftune.data.encode_rewards import CHOSEN, REJECTED, Scored, ScoringEncoder
from hftune.data.files import Row, chunks, find_files
from hftune.data.formats import describe_unread, take_unread
from hftune.errors import ArgumentError, DataError, UserError, raise_together
from hftune.inference.judging import RewardScorer, score_of
from hftune.logging import get_logger, notice
from hftune.publishing.folder import published_file
from hftune.publishing.places import FILE, check_place
from hftune.trainers.rewards.score_batches import run_batches

WINDOW = 1024
"""Records in memory at a time; those are batched by length."""


def score(args: ScoreArguments, argv: Sequence[str] = ()) -> dict[str, float]:
    """Score all records of a file or folder; each is written with its scores, in the order that they came in.

    A conversation gets `score`, a preference pair `score_chosen` and `score_rejected`, raw; where the model knows its
    scale also `normalized_score...`. A process model gives `step_scores`, the probability that each step is right,
    and their least as `score`.

    Returns:
        records, and for pairs accuracy and margin.

    Raises:
        ArgumentError: No input, no reward model, or an output that is there already.
        DataError: A record that cannot be used, unless they are dropped.
    """
    raise_together(check_score(args))
    assert args.model is not None and args.input is not None
    files = find_files(args.input, "--input")
    loading = {"dtype": getattr(torch, args.dtype), "flag": "--model", "template_arguments": args.template_arguments}
    reading = {"max_length": args.max_length, "borders_in_text": args.borders_in_text}
    reading |= {"separator": args.step_separator} if args.step_separator else {}
    fix = f"--max_length keeps the end of longer ones; or {FIX}"
    scorer = RewardScorer(args.model, args, loading, fix, **reading)
    scale, counts, values, margins = read_scale(args.model), Counts(), list[float](), list[float]()
    with _opened(args.output) as out:
        rows = _encoded((row for chunk in chunks(files) for row in chunk.rows()), scorer.make, args, counts)
        # Batches of similar lengths need a choice of records; the whole file need not fit into memory.
        while window := list(islice(rows, WINDOW)):
            run_batches(scorer.model, [one for _, found in window for one in found], scorer.pad, args.batch_tokens)
            for row, found in window:
                scores = scores_of(found, scale)
                values += [value for one in found if (value := scores[f"score{one.name}"]) is not None]
                chosen, rejected = (scores.get(f"score{name}") for name in (CHOSEN, REJECTED))
                if chosen is not None and rejected is not None:
                    margins.append(chosen - rejected)
                # `default`: Parquet has dates and decimals, for which JSON has no type.
                out.write(json.dumps(row.value | scores, ensure_ascii=False, default=str) + "\n")
    return _told(counts, values, margins, args)


def check_score(args: ScoreArguments) -> Iterator[UserError]:
    """Everything that is wrong with the arguments."""
    if not args.input:
        yield ArgumentError("no file was named", place="--input", fix="hftune score FILE --model FOLDER")
    if not args.model:
        yield ArgumentError("no reward model was named", place="--model", fix="give an output folder of run_rm.py")
    yield from check_recorded_whole(args.model, "--model")
    if args.output:
        yield from check_place(
            args.output,
            inputs_of(args),
            kind=FILE,
            overwrite=args.overwrite_output,
            flag="--output",
            overwrite_flag="--overwrite_output",
        )


def _encoded(
    rows: Iterable[Row | DataError], make: ScoringEncoder, args: ScoreArguments, counts: Counts
) -> Iterator[tuple[Row, list[Scored]]]:
    """Records with their conversations, counted; a bad record stops the run, or is dropped."""
    for row in rows:
        try:
            if isinstance(row, DataError):
                raise row
            found = make(row)
        except DataError as error:
            if args.on_bad_record != "drop":
                raise
            counts.drop(error.kind)
            continue
        counts.rows += 1
        counts.note_turn_tokens(token for one in found for token in one.turn_tokens)
        counts.truncated += sum(one.truncated for one in found)
        yield row, found


def _opened(output: str | None) -> AbstractContextManager[TextIO]:
    """A stream for the scores: a file that is published once it is whole, or standard output."""
    return nullcontext(sys.stdout) if output is None else published_file(Path(output), flag="--output")


def scores_of(found: list[Scored], scale: RewardScale | None) -> dict[str, Any]:
    """The fields that are added to a record."""
    written: dict[str, Any] = {}
    for one in found:
        value = score_of(one)
        written[f"score{one.name}"] = value
        if scale is not None and value is not None:
            written[f"normalized_score{one.name}"] = scale.normalise(value)
        if one.ends is not None:
            written[f"step_scores{one.name}"] = one.outputs
    return written


def _told(counts: Counts, values: list[float], margins: list[float], args: ScoreArguments) -> dict[str, float]:
    """Log counts and means of all records, and return those that `score` does."""
    if counts.dropped:
        why = ", ".join(f"{number} x {kind}" for kind, number in counts.dropped.items())
        notice(f"{sum(counts.dropped.values())} records left out: {why}")
    if counts.truncated:
        notice(f"{counts.truncated} conversations lost their beginning (--max_length)")
    if counts.bordered:
        notice(describe_turn_tokens(counts, args.borders_in_text))
    for line in describe_unread(take_unread()):
        notice(line)
    found: dict[str, float] = {"records": counts.rows}
    told = f"{counts.rows} records scored" + (f", mean score {fmean(values):.4g}" if values else "")
    if margins:
        # A tie is not right: a model that scores all alike has accuracy 0.
        found |= {"accuracy": fmean(margin > 0 for margin in margins), "margin": fmean(margins)}
        told += f"; {len(margins)} pairs: accuracy {found['accuracy']:.3f}, margin {found['margin']:.4g}"
    get_logger().info("%s%s", told, f" -> {args.output}" if args.output else "")
    return found
