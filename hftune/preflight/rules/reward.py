"""Rules of run_rm.py, one function each, which yields the problems that it finds."""

from __future__ import annotations

from collections.abc import Iterator

from hftune.arguments.preference import RMArguments
from hftune.errors import ArgumentError, UserError
from hftune.preflight.facts import Facts


def check_reward(facts: Facts[RMArguments]) -> Iterator[UserError]:
    """Problems of numbers out of range, and of what the trainers cannot do."""
    training_args = facts.training_args
    if training_args.label_smoothing >= 0.5:  # --label_smoothing_factor means the same, and takes more
        yield ArgumentError(
            f"with {training_args.label_smoothing} of the labels wrong, nothing can be learned from them",
            place="--label_smoothing",
            fix="give a share from 0 to below 0.5",
        )
    if training_args.reward_kind == "process" and not training_args.step_separator:
        yield ArgumentError(
            "nothing would stand between the steps of an answer", place="--step_separator", fix="give a text"
        )
    if training_args.reward_kind == "process" and training_args.activation_offloading:
        yield ArgumentError(
            "activations are offloaded by TRL's trainers, and there is none for process reward models",
            place="--activation_offloading",
            fix="leave it out; --gradient_checkpointing saves more memory",
        )
    if not training_args.eval_do_concat_batches:
        yield ArgumentError(
            "held-out pairs are measured together, not batch by batch",
            place="--eval_do_concat_batches False",
            fix="leave it out",
        )
