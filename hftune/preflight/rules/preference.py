"""Rules about preference optimisation and reward models."""

from __future__ import annotations

from collections.abc import Iterator

from hftune.arguments.preference import DPOArguments, RMArguments
from hftune.errors import ArgumentError, UserError, did_you_mean
from hftune.logging import notice
from hftune.losses.preference import LOSSES, losses_with
from hftune.preflight.facts import Facts
from hftune.preflight.rules import refused


def check_preferences(facts: Facts[DPOArguments]) -> Iterator[UserError]:
    """Problems of losses, of options that they do not read, and of the reference."""
    training_args = facts.training_args
    yield from _check_losses(training_args)
    yield from refused("preference", facts)


def _check_losses(args: DPOArguments) -> Iterator[UserError]:
    kinds = set(args.loss_type)
    for name in args.loss_type:
        if name not in LOSSES:
            near = did_you_mean(name, sorted(LOSSES), written="--loss_type {}")
            fix = f"{near} one of: {', '.join(sorted(LOSSES))}".strip()
            yield ArgumentError(f"there is no loss {name}", place="--loss_type", fix=fix)
    differences = losses_with("difference")
    if args.f_divergence_type != "reverse_kl" and (others := kinds & set(LOSSES) - differences - {"sft"}):
        yield ArgumentError(
            f"{', '.join(sorted(others))} with the divergence {args.f_divergence_type}, whose constant does not cancel",
            place="--f_divergence_type",
            fix=f"leave it out, or use one of: {', '.join(sorted(differences))}",
        )
    if args.use_weighting and kinds & losses_with("sorts"):
        yield ArgumentError(
            "sorted answers would get the weights of other pairs",
            place="--use_weighting",
            fix="leave it out, or use another loss than aot",
        )
    if args.normalize_logps and (a_token := kinds & losses_with("a_token")):
        cause = f"{' '.join(sorted(a_token))} divides by the length of an answer already"
        yield ArgumentError(cause, place="--normalize_logps", fix="leave it out")
    # A sum of losses: those of pairs have no such weights.
    weighed = (args.desirable_weight, args.undesirable_weight) != (1.0, 1.0)
    if kinds & losses_with("unpaired") and not args.unpaired and weighed:
        notice("--desirable_weight and --undesirable_weight weigh kto and apo_zero_unpaired alone")


def check_reward(facts: Facts[RMArguments]) -> Iterator[UserError]:
    """Problems of numbers out of range, and of what the trainers cannot do."""
    yield from refused("reward", facts)
