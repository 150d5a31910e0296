"""Rules of run_distill.py, one function each, which yields the problems that it finds."""

from __future__ import annotations

from collections.abc import Iterator

from hftune.arguments.distill import DistillArguments
from hftune.data.teacher_targets import FLAG as TARGETS
from hftune.data.teacher_targets import StoredTargets
from hftune.errors import ArgumentError, UserError
from hftune.models.loading.build import decide_build
from hftune.opening.json_server import split_address
from hftune.preflight.facts import Facts
from hftune.preflight.model_folder import base_and_adapters
from hftune.preflight.rules import Clashes, clashes, raised
from hftune.preflight.teachers import FLAG, SERVER, errors_of_teacher, teacher_arguments


def check_distillation(facts: Facts[DistillArguments]) -> Iterator[UserError]:
    """Problems of teachers, of the divergence and of what the trainer cannot do."""
    yield from check_teachers(facts.training_args)
    yield from _check_targets(facts)
    for name in facts.training_args.teachers:
        yield from _check_teacher(facts, name)
    args = facts.training_args
    if args.loss_type not in (None, "nll") or args.label_smoothing_factor:
        yield ArgumentError(
            "the loss is the divergence from the teacher",
            place="--loss_type, --label_smoothing_factor",
            fix="leave them out; --hard_label_share mixes in the plain loss of the records' tokens",
        )
    if args.mesh.sequence > 1 or args.tensor_parallel_size > 1 or args.expert_parallel_size > 1:
        yield ArgumentError(
            "a teacher reads whole rows, on one device or partitioned by ZeRO-3",
            place="--sequence_parallel_size, --tensor_parallel_size, --expert_parallel_size",
            fix="use ZeRO-3 for what one device cannot hold",
        )
    if facts.model_args.adds_tokens:
        yield ArgumentError(
            "a teacher has nothing to say of tokens that it does not know",
            place="--add_tokens, --add_special_tokens",
            fix="leave them out, or train teacher and student with them first (run_sft.py)",
        )


def check_teachers(args: DistillArguments) -> Iterator[UserError]:
    """Problems of how teachers are named, asked and weighed."""
    yield from _check_server(args)
    if args.temperature <= 0:
        yield ArgumentError("no distribution has this temperature", place="--temperature", fix="give a number above 0")
    if not (args.teachers or args.teacher_targets or args.teacher_server_url):
        yield ArgumentError(
            "no teacher was named",
            place="--teacher_model_name_or_path",
            fix="name the model to learn from, a folder or a Hub name; or --teacher_server_url; or --teacher_targets, "
            "from hftune teach",
        )
    weights = args.teacher_weights
    if weights and len(weights) != len(args.teachers):
        yield ArgumentError(
            f"{len(weights)} weights for {len(args.teachers)} teachers", place="--teacher_weights", fix="one for each"
        )
    elif weights and not sum(weights) > 0:
        yield ArgumentError("all teachers have weight 0", place="--teacher_weights", fix="give one a weight above 0")


def _check_server(args: DistillArguments) -> Iterator[UserError]:
    """An address that is none, and what a server is not asked for."""
    url = args.teacher_server_url
    if not url:
        return
    yield from raised(split_address, url, SERVER)
    loaded = "the server has loaded the teacher: start it so"
    others: Clashes = {
        TARGETS: (args.teacher_targets, "what a teacher says is stored already"),
        f"several {FLAG}": (len(args.teacher_model_name_or_path or []) > 1, "a server is asked as one teacher"),
        # p^(1/T) sums over all tokens, and the server does not say those of the rest.
        f"--temperature {args.temperature}": (
            args.temperature != 1.0,
            "a server says probabilities at temperature 1; at another the rest of its tokens cannot be known",
        ),
        "--teacher_load_in_4bit": (args.teacher_load_in_4bit, loaded),
        "--teacher_load_in_8bit": (args.teacher_load_in_8bit, loaded),
        "--teacher_dtype": (args.teacher_dtype != "auto", loaded),
        "--teacher_model_revision": (args.teacher_model_revision, loaded),
    }
    yield from clashes(SERVER, others)


def _check_targets(facts: Facts[DistillArguments]) -> Iterator[UserError]:
    """Stored targets that are damaged, or of which this run's tokens, answers or distributions are others."""
    args = facts.training_args
    if not args.teacher_targets:
        return
    strategy = args.packing_strategy
    others: Clashes = {
        FLAG: (args.teachers, "what a teacher says is stored already"),
        f"--distill_mode {args.distill_mode}": (
            args.share_on_policy,
            "a teacher must be there to judge the student's own answers",
        ),
        "--streaming": (
            facts.data_args.streaming,
            "a stream does not look for stored targets; hftune teach has read all records once, and they are cached",
        ),
        f"--packing_strategy {strategy}": (
            (args.packing or args.eval_packing) and strategy != "bfd",
            "targets are those of whole records, and this packing cuts them; bfd does not",
        ),
    }
    yield from clashes(TARGETS, others)
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
