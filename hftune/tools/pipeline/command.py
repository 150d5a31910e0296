"""hftune pipeline run FILE       run every stage that is not finished; the same command resumes after anything
  --from STAGE --to STAGE --only STAGE      a part of it
  --force [STAGE]                            again, even if nothing has changed
  --ignore_gates                             go on after a stage that hurt a capability more than its gate allows
  --dry_run                                  all stages on 8 records and 2 steps, into a scratch folder
hftune pipeline plan FILE      the commands, what would run and why
hftune pipeline check FILE     ask the scripts' parsers about every argument, and start nothing
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hftune.arguments.raw_arguments import refuse_one_dash
from hftune.errors import raise_together
from hftune.publishing.folder import clear_work, make_work, work_folder_locked
from hftune.secrets import to_copy
from hftune.tools.pipeline.checking import check_apart, check_steps, exposures
from hftune.tools.pipeline.runner import Choice, Runner
from hftune.tools.pipeline.spec import EVALUATE, SAMPLE, Spec, read_spec
from hftune.tools.pipeline.state import AGAIN, DAMAGED, DONE, RESUME, state_of
from hftune.tools.pipeline.steps import COMMANDS, Step, output_folder, steps_of
from hftune.tools.words import Words
from hftune.visible import say

RECORDS, STEPS = 8, 2
_SMALL = {
    "max_train_samples": str(RECORDS),
    "max_eval_samples": str(RECORDS),
    "max_steps": str(STEPS),
    "save_strategy": "no",
    "eval_strategy": "no",
    "load_best_model_at_end": "False",
    "logging_steps": "1",
    "report_to": "none",
    "push_to_hub": "False",
    "per_device_train_batch_size": "1",
    "gradient_accumulation_steps": "1",
}
_OTHER_NAMES = ("global_batch_size", "train_iters", "num_steps", "save_steps", "eval_steps", "save_total_limit")
"""Arguments that would say something else, or nothing any more."""
_FEWER = {EVALUATE: ("max_eval_samples",), SAMPLE: ("max_train_samples",)}


def in_small(step: Step) -> Step:
    """The same step on few records."""
    arguments = dict(step.arguments)
    if step.script in COMMANDS:
        arguments |= {"max_new_tokens": ["2"]}
        arguments |= {name: [str(RECORDS)] for name in _FEWER.get(step.script, ())}
        if step.script == SAMPLE:
            # Answers of two tokens are all cut, and score alike: what trains on them would have no record.
            arguments["keep_all"] = ["True"]
    elif step.trains:
        small = dict(_SMALL)
        if step.script == "rl":
            # A whole group of answers must fill a batch (TRL refuses others); 16 tokens are enough to see one scored.
            small["per_device_train_batch_size"] = arguments.get("num_generations", ["8"])[0]
            small["max_completion_length"] = "16"
        # Taken out before ours are put in, which some of them would contradict.
        arguments = {name: values for name, values in arguments.items() if name not in _OTHER_NAMES}
        arguments |= {name: [value] for name, value in small.items()}
        held_out = {"validation_file_dir", "validation_split_percentage"} & arguments.keys()
        if "streaming" in arguments or "tokenized_dir" in arguments or not held_out:
            arguments.pop("max_eval_samples")  # refused where no records are held out
    # What two steps have made of a model would open no gate.
    return replace(step, arguments=arguments, gates=())


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """A folder alongside the pipeline's; removed if all goes well, left to look at if not.

    Raises:
        ArgumentError: Something that no dry run made has its name, or another one is at work in it.
    """
    work = folder.with_name(f"{folder.name}.dry_run")
    with work_folder_locked(work, work, "output_dir"):
        clear_work(work)
        # No `finally` around it: after a failure the logs and half results are what the user wants to see.
        yield make_work(work)
        clear_work(work)


def show_plan(steps: Sequence[Step]) -> None:
    """Print every command, and whether it would run."""
    # Names of steps that would run again; later steps that read their results may have to as well.
    again: set[str] = set()
    for number, step in enumerate(steps, start=1):
        say(f"[{number}/{len(steps)}] {step.name}: {_verdict(step, again)}")
        say(f"  {to_copy(step.env, step.command())}")


def _verdict(step: Step, again: set[str]) -> str:
    """A text that says what `run` would do, and why."""
    state = state_of(step)
    changed = sorted(again & {*step.needs})
    if state.verdict == DONE and not changed:
        return "finished and unchanged, will be skipped"
    again.add(step.name)
    if state.verdict == DAMAGED:
        return f"its result was changed after it was written: {'; '.join(state.reasons)}"
    if state.verdict == AGAIN:
        return f"will run again, since {'; '.join(state.reasons)}"
    if state.verdict == DONE:
        return f"will run again if {' or '.join(changed)} comes to another result"
    return "was interrupted, will resume" if state.verdict == RESUME else "will run"


def main(argv: list[str]) -> None:
    """Run the subcommand that the first word names."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        say(__doc__)
        return
    parser = Words("hftune pipeline")
    parser.add_argument("action", choices=["run", "plan", "check"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--from", dest="first", metavar="STAGE")
    parser.add_argument("--to", dest="last", metavar="STAGE")
    parser.add_argument("--only", metavar="STAGE")
    parser.add_argument("--force", nargs="*", metavar="STAGE")
    parser.add_argument("--dry_run", "--dry-run", action="store_true")
    parser.add_argument("--ignore_gates", "--ignore-gates", action="store_true")
    for word in argv:
        refuse_one_dash(word)
    options = parser.parse_args(argv)
    spec = read_spec(options.file)
    steps = steps_of(spec)
    # Before anything starts, be it only the parsers, whose messages quote what was typed.
    raise_together({problem.render(): problem for step in steps for problem in exposures(step)}.values())
    if options.action == "run":
        run(spec, steps, options)
        return
    check_steps(steps)
    if options.action == "check":
        say(f"{options.file}: {len(steps)} steps, nothing wrong")
    else:
        show_plan(steps)


def run(spec: Spec, steps: list[Step], options: argparse.Namespace) -> None:
    """Run the stages, or try them on few records (`--dry_run`)."""
    force = () if options.force is None else tuple(options.force) or ("*",)
    choice = Choice(options.only or options.first, options.only or options.last, force)
    folder = output_folder(spec)

    def runner(folder: Path) -> Runner:
        return Runner(folder, check=lambda: check_apart(options.file), ignore_gates=options.ignore_gates)

    if not options.dry_run:
        runner(folder).run(steps, choice)
        return
    with scratch_folder(folder) as scratch:
        elsewhere = replace(spec, top=spec.top.having({"output_dir": str(scratch)}))
        runner(scratch).run([*map(in_small, steps_of(elsewhere))], choice)
    say("the dry run found nothing wrong; its results are removed")
