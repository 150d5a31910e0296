"""`hftune score`: a file of conversations through a reward model, in constant memory."""

from __future__ import annotations

import json
import sys
from collections import Counter
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
from hftune.data.counts import FIX, Context, Counts, describe_turn_tokens
from hftune.data.encode_rewards import CHOSEN, REJECTED, Scored, ScoringEncoder
from hftune.data.files import Row, chunks, find_files
from hftune.data.formats import describe_unread, take_unread
from hftune.errors import ArgumentError, DataError, UserError, raise_together
from hftune.logging import get_logger, notice
from hftune.publishing.folder import published_file
from hftune.publishing.places import FILE, check_place
from hftune.trainers.rewards.loading import load_reward_model, scores_steps, step_separator
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
    dtype, trusted = getattr(torch, args.dtype), args.trust_remote_code
    model, tokenizer = load_reward_model(
        args.model, dtype, flag="--model", trust_remote_code=trusted, template_arguments=args.template_arguments
    )
    # Not spread over GPUs: reward models are run by a single process, a batch at a time.
    model.to("cuda" if torch.cuda.is_available() and not args.use_cpu else "cpu")
    make = ScoringEncoder(
        tokenizer,
        steps=scores_steps(model),
        separator=args.step_separator or step_separator(args.model),
        max_length=args.max_length,
        borders_in_text=args.borders_in_text,
        context=Context.of(model, tokenizer, f"--max_length keeps the end of longer ones; or {FIX}"),
    )
    scale, tally = read_scale(args.model), Tally()
    with _opened(args.output) as out:
        rows = _good_rows((row for chunk in chunks(files) for row in chunk.rows()), make, args, tally)
        # Batches of similar lengths need a choice of records; the whole file need not fit into memory.
        while window := list(islice(rows, WINDOW)):
            run_batches(model, [one for _, found in window for one in found], tokenizer.pad_token_id, args.batch_tokens)
            for row, found in window:
                scores = scores_of(found, scale)
                tally.add(scores, found)
                # `default`: Parquet has dates and decimals, for which JSON has no type.
                out.write(json.dumps(row.value | scores, ensure_ascii=False, default=str) + "\n")
    tally.say(args.output)
    if tally.counts.bordered:
        notice(describe_turn_tokens(tally.counts, args.borders_in_text))
    for line in describe_unread(take_unread()):
        notice(line)
    return tally.figures()


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


def _good_rows(
    rows: Iterable[Row | DataError], make: ScoringEncoder, args: ScoreArguments, tally: Tally
) -> Iterator[tuple[Row, list[Scored]]]:
    """Records with their conversations; a bad record stops the run, or is dropped and counted."""
    for row in rows:
        try:
            if isinstance(row, DataError):
                raise row
            found = make(row)
        except DataError as error:
            if args.on_bad_record != "drop":
                raise
            tally.dropped[error.kind] += 1
            continue
        yield row, found


def _opened(output: str | None) -> AbstractContextManager[TextIO]:
    """A stream for the scores: a file that is published once it is whole, or standard output."""
    return nullcontext(sys.stdout) if output is None else published_file(Path(output), flag="--output")


def scores_of(found: list[Scored], scale: RewardScale | None) -> dict[str, Any]:
    """The fields that are added to a record."""
    written: dict[str, Any] = {}
    for one in found:
        assert one.outputs is not None
        # A chain of steps is as good as its worst one; a product would punish long answers.
        value = min(one.outputs) if one.outputs else None
        written[f"score{one.name}"] = value
        if scale is not None and value is not None:
            written[f"normalized_score{one.name}"] = scale.normalise(value)
        if one.ends is not None:
            written[f"step_scores{one.name}"] = one.outputs
    return written


class Tally:
    """Scores and counts of all records, for the last lines of the log."""

    def __init__(self) -> None:
        self.records = self.truncated = 0
        self.values: list[float] = []
        self.margins: list[float] = []
        self.dropped: Counter[str] = Counter()
        self.counts = Counts()

    def add(self, scores: dict[str, Any], found: list[Scored]) -> None:
        """Add a record to the counts."""
        self.records += 1
        self.counts.rows += 1
        self.counts.note_turn_tokens(token for one in found for token in one.turn_tokens)
        self.truncated += sum(one.truncated for one in found)
        self.values += [value for one in found if (value := scores[f"score{one.name}"]) is not None]
        chosen, rejected = scores.get(f"score{CHOSEN}"), scores.get(f"score{REJECTED}")
        if chosen is not None and rejected is not None:
            self.margins.append(chosen - rejected)

    def figures(self) -> dict[str, float]:
        """The figures as plain numbers: records, and accuracy and margin where there were pairs."""
        if not self.margins:
            return {"records": self.records}
        # A tie is not right: a model that scores all alike has accuracy 0.
        accuracy = fmean(margin > 0 for margin in self.margins)
        return {"records": self.records, "accuracy": accuracy, "margin": fmean(self.margins)}

    def say(self, output: str | None) -> None:
        """Log the counts and means of all records."""
        if self.dropped:
            why = ", ".join(f"{number} x {kind}" for kind, number in self.dropped.items())
            notice(f"{sum(self.dropped.values())} records left out: {why}")
        if self.truncated:
            notice(f"{self.truncated} conversations lost their beginning (--max_length)")
        mean = f", mean score {fmean(self.values):.4g}" if self.values else ""
        found, pairs = self.figures(), ""
        if self.margins:
            pairs = f"; {len(self.margins)} pairs: accuracy {found['accuracy']:.3f}, margin {found['margin']:.4g}"
        get_logger().info("%s records scored%s%s%s", self.records, mean, pairs, f" -> {output}" if output else "")
