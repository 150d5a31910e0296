"""Rules of run_distill.py, one function each, which yields the problems that it finds."""

from __future__ import annotations

from collections.abc import Iterator

from hftune.arguments.distill import DistillArguments
from hftune.data.teacher_targets import StoredTargets
from hftune.errors import ArgumentError, UserError
from hftune.models.loading.build import decide_build
from hftune.opening.json_server import split_address
from hftune.preflight.facts import Facts
from hftune.preflight.model_folder import base_and_adapters
from hftune.preflight.rules import raised, refused
from hftune.preflight.teachers import FLAG, SERVER, errors_of_teacher, teacher_arguments


def check_distillation(facts: Facts[DistillArguments]) -> Iterator[UserError]:
    """Problems of teachers, of the divergence and of what the trainer cannot do."""
    yield from check_teachers(facts.training_args)
    yield from _check_targets(facts)
    for name in facts.training_args.teachers:
        yield from _check_teacher(facts, name)
    yield from refused("distill", facts)


def check_teachers(args: DistillArguments) -> Iterator[UserError]:
    """Problems of how a teacher is named and asked."""
    yield from refused("teachers", args)
    if args.teacher_server_url:
        yield from raised(split_address, args.teacher_server_url, SERVER)


def _check_targets(facts: Facts[DistillArguments]) -> Iterator[UserError]:
    """Stored targets that are damaged, or of which this run's tokens, answers or distributions are others."""
    args = facts.training_args
    if not args.teacher_targets:
        return
    try:
        stored = StoredTargets(args.teacher_targets)
    except UserError as problem:
        yield problem
        return
    if (found := stored.about["temperature"]) != args.temperature:
        fix = f"give --temperature {found}, or teach again"
        yield ArgumentError(
            f"the stored targets are of temperature {found}", place=f"--temperature {args.temperature}", fix=fix
        )


def _check_teacher(facts: Facts[DistillArguments], name: str) -> Iterator[UserError]:
    """One whose config cannot be read, that cannot keep rows apart, or whose vocabulary is another."""
    args = facts.training_args
    try:
        base, adapters = base_and_adapters(name, FLAG)
        own_args, adapter_args = teacher_arguments(base, facts.model_args, args)
        with errors_of_teacher(name):
            decide_build(own_args, adapter_args, args)
    except UserError as problem:
        yield problem
        return
    if adapter_args.quantised and adapters:
        yield ArgumentError(
            "an adapter cannot be folded into 4 or 8 bit without loss",
            place=f"{FLAG} {name}",
            fix="merge it first (merge_peft_adapter.py), or leave out --teacher_load_in_4bit and its like",
        )
