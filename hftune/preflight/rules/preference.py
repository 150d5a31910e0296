"""Rules about preference optimisation and reward models."""

from __future__ import annotations

from collections.abc import Iterator

from hftune.arguments.preference import DPOArguments, RMArguments
from hftune.errors import ArgumentError, UserError, did_you_mean
from hftune.logging import notice
from hftune.losses.preference import LOSSES, losses_with
from hftune.preflight.facts import Facts


def check_preferences(facts: Facts[DPOArguments]) -> Iterator[UserError]:
    """Problems of losses, of options that they do not read, and of the reference."""
    training_args = facts.training_args
    yield from _check_losses(training_args)
    yield from _check_numbers(training_args)
    yield from _check_reference(training_args)
    if facts.rows.shared_prompts and not facts.rows.padding_free:
        yield ArgumentError(
            "a padded row holds one answer, and cannot share its prompt",
            place="--shared_prompts True",
            fix="leave it out, or leave out --padding_free False",
        )


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
    # A sum of losses: those of pairs have no such weights.
    weighed = (args.desirable_weight, args.undesirable_weight) != (1.0, 1.0)
    if kinds & losses_with("unpaired") and not args.unpaired and weighed:
        notice("--desirable_weight and --undesirable_weight weigh kto and apo_zero_unpaired alone")


def _check_numbers(args: DPOArguments) -> Iterator[UserError]:
    """Problems of numbers that have no meaning for a loss, or that no loss reads."""
    kinds = set(args.loss_type)
    a_token = kinds & losses_with("a_token")
    # One row a number: whether it is wrong, the cause, the flag, the way out.
    rules: list[tuple[bool, str, str, str]] = [
        (not args.beta, "beta 0", "--beta", "give a number above 0"),
        (
            "exo_pair" in kinds and not args.label_smoothing,
            "exo_pair needs a label smoothing above 0",
            "--label_smoothing",
            "give 1e-3, as its paper does",
        ),
        (
            args.normalize_logps and bool(a_token),
            f"{' '.join(sorted(a_token))} divides by the length of an answer already",
            "--normalize_logps",
            "leave it out",
        ),
    ]
    for wrong, cause, place, fix in rules:
        if wrong:
            yield ArgumentError(cause, place=place, fix=fix)


def _check_reference(args: DPOArguments) -> Iterator[UserError]:
    if args.sync_ref_model and args.precompute_ref_log_probs:
        yield ArgumentError(
            "a reference that is renewed in training cannot be computed before it",
            place="--sync_ref_model, --precompute_ref_log_probs",
            fix="choose one",
        )
    if not args.needs_reference and (args.sync_ref_model or args.other_reference):
        flag = "--ref_model / --ref_adapters" if args.other_reference else "--sync_ref_model"
        yield ArgumentError(
            "no loss looks at a reference", place=flag, fix="leave it out, or use a loss with a reference"
        )
    if args.sync_ref_model and args.other_reference:
        yield ArgumentError(
            "another model as reference, renewed by mixing in the policy",
            place="--sync_ref_model, --ref_model",
            fix="choose one",
        )


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
