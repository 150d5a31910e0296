"""Answers of the student in the place of the records' own, before a step is counted and trained."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from typing import Any

import torch

from hftune.constants import IGNORE_INDEX, ORIGIN
from hftune.distributed import phases, ranks
from hftune.logging import notice
from hftune.models.decoding import decoding_together
from hftune.models.loading.build import compute_dtype
from hftune.trainers.features.answers import Completions
from hftune.trainers.features.engine import reporting_passes
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.reward_guards import PATIENCE, share_ended
from hftune.trainers.features.run import Run, plain_model

Record = dict[str, list[int]]


class OnPolicyAnswers(Completions, Feature):
    """Replaces the last trained answer of each record by one that the student draws now (arXiv:2306.13649).

    What stands before that answer is the prompt; earlier answers in it are not trained. All micro batches of a step are
    answered together. Records without a trained answer stay as they are.

    Args:
        share: Of the steps that train the student's own answers; which ones depends on seed and step alone, so that
            all processes agree, and a run that resumes draws the same ones.

    Attributes:
        drawing: Whether the step at hand trains the student's own answers.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.drawing = False
        self._endless = 0  # steps in a row

    def draws(self, run: Run) -> bool:
        """Whether the step that comes trains the student's own answers."""
        return _dice(run, "draws").random() < self.share

    def batches(self, run: Run, batches: Iterator[Any]) -> Iterator[Any]:
        """The micro batches of a step with the student's answers, or as they are."""
        step = list(islice(batches, run.args.gradient_accumulation_steps))
        self.drawing = bool(step) and self.draws(run)
        if self.drawing:
            step = self.answered(run, step)
        yield from step

    def answered(self, run: Run, step: list[Any]) -> list[Any]:
        """The same records with answers of the student, collated as they were; every rank must ask."""
        records = [records_of(batch) for batch in step]
        asked = [prompt for batch in records for record in batch if (prompt := prompt_of(record))]
        # A process whose records have no answers takes part all the same: under ZeRO-3 generation is a collective.
        answers = iter(self._generate(run, asked or [records[0][0]["input_ids"][:1]]))
        renewed = [[_renewed(record, answers) for record in batch] for batch in records]
        kept = [{name: batch[name] for name in (ORIGIN,) if name in batch} for batch in step]
        return [run.data_collator(batch) | more for batch, more in zip(renewed, kept, strict=True)]

    def _generate(self, run: Any, prompts: list[list[int]]) -> list[list[int]]:
        phases.enter(phases.GENERATION, run.state.global_step)
        training = run.model.training
        # Dropout would disturb what the student says; and some models cannot use a cache while they train.
        run.model.eval()
        try:
            plain = run.accelerator.unwrap_model(run.model, keep_torch_compile=False)
            together = decoding_together(plain_model(plain), compute_dtype(run.args))
            with _own_numbers(run), reporting_passes(plain), together:
                answers: list[list[int]] = run._generate_single_turn(prompts, None, {})
        finally:
            run.model.train(training)
        phases.enter(phases.DATA)
        self._measure(run, prompts, answers)
        return answers

    def _measure(self, run: Run, prompts: list[list[int]], answers: list[list[int]]) -> None:
        """Figures of the answers of all ranks, samples of this one's, and what is odd about them."""
        metrics, gather = run._metrics["train"], run.accelerator.gather
        own = torch.tensor([len(answer) for answer in answers], dtype=torch.float64, device=run.args.device)
        ended = share_ended(run, answers)
        metrics["completions/mean_length"].append(gather(own.mean()[None]).mean().item())
        metrics["completions/clipped_ratio"].append(1.0 - ended)
        run._logs["prompt"] = [run.processing_class.decode(prompt) for prompt in prompts]
        run._logs["completion"] = [run.processing_class.decode(answer) for answer in answers]
        run._logs |= {"rewards": {}, "advantages": [None] * len(answers)}
        self._endless = 0 if ended else self._endless + 1
        if self._endless == PATIENCE:
            notice(
                f"in {PATIENCE} steps no answer has ended within --max_completion_length {run.max_completion_length}: "
                "the student is never taught where to end; raise it"
            )


def _dice(run: Run, what: object) -> random.Random:
    """Random numbers of this step, whatever was drawn before: a run that resumes draws the same ones."""
    return random.Random(f"{run.args.seed} {run.state.global_step} {what}")


@contextmanager
def _own_numbers(run: Run) -> Iterator[None]:
    """In the block torch draws numbers of this step and process; those of the run stay what they are."""
    device = run.args.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(_dice(run, ranks.rank()).getrandbits(63))
        yield


def records_of(batch: dict[str, Any]) -> list[Record]:
    """The documents of a collated batch, without padding: input_ids and labels of each."""
    ids, labels = batch["input_ids"], batch["labels"]
    return [
        {"input_ids": ids[row, span].tolist(), "labels": labels[row, span].tolist()} for row, span in spans_of(batch)
    ]


def spans_of(batch: dict[str, Any]) -> list[tuple[int, slice]]:
    """The row and the places of each document of a collated batch, in their order."""
    if "cu_seq_lens_q" in batch:
        return [(0, slice(start, end)) for start, end in pairwise(batch["cu_seq_lens_q"].tolist())]
    return [(row, slice(0, length)) for row, length in enumerate(batch["attention_mask"].sum(1).tolist())]


def prompt_of(record: Record) -> list[int] | None:
    """What stands before the last trained answer; None where there is none, or nothing before it."""
    trained = [label != IGNORE_INDEX for label in record["labels"]]
    if not any(trained):
        return None
    end = len(trained) - trained[::-1].index(True)
    start = next((place + 1 for place in reversed(range(end)) if not trained[place]), 0)
    return record["input_ids"][:start] or None


def _renewed(record: Record, answers: Iterator[list[int]]) -> Record:
    """A record with the next answer in the place of its last one; as it is where it has none."""
    prompt = prompt_of(record)
    if prompt is None:
        return record
    answer = next(answers)
    return {"input_ids": [*prompt, *answer], "labels": [IGNORE_INDEX] * len(prompt) + answer}
