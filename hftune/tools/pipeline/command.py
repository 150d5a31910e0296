"""hftune pipeline run FILE       run every stage that is not finished; the same command resumes after anything
  --from STAGE --to STAGE --only STAGE      a part of it
  --force [STAGE]                            again, even if nothing has changed
  --ignore_gates                             go on after a stage that hurt a capability more than its gate allows
  --dry_run                                  all stages on 8 records and 2 steps, into a scratch folder
hftune pipeline plan FILE      the commands, what would run and why, memory and time of each stage
  --gpus 8xH200 --no_estimate                for other devices than those that are here; the commands alone
hftune pipeline check FILE     ask the scripts' parsers about every argument, and start nothing
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from hftune.arguments.raw_arguments import refuse_one_dash
from hftune.errors import ArgumentError
from hftune.secrets import command_without_secrets
from hftune.tools.pipeline.checking import check_steps
from hftune.tools.pipeline.dry_run import in_small, scratch_folder
from hftune.tools.pipeline.planning import show_plan
from hftune.tools.pipeline.progress import Screen
from hftune.tools.pipeline.references import Names
from hftune.tools.pipeline.runner import Choice, Runner
from hftune.tools.pipeline.spec import Spec, read_spec
from hftune.tools.pipeline.steps import steps_of
from hftune.visible import say


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # Words that it cannot place are quoted: of a flag that names a secret, its name alone.
        told = " ".join(command_without_secrets(message.split()))
        raise ArgumentError(told, fix="hftune pipeline --help")


def main(argv: list[str]) -> None:
    """Run the subcommand that the first word names."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        say(__doc__)
        return
    # No abbreviations: `--for` must not force anything to run again.
    parser = _Parser(prog="hftune pipeline", allow_abbrev=False)
    parser.add_argument("action", choices=["run", "plan", "check"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--from", dest="first", metavar="STAGE")
    parser.add_argument("--to", dest="last", metavar="STAGE")
    parser.add_argument("--only", metavar="STAGE")
    parser.add_argument("--force", nargs="*", metavar="STAGE")
    parser.add_argument("--dry_run", "--dry-run", action="store_true")
    parser.add_argument("--ignore_gates", "--ignore-gates", action="store_true")
    parser.add_argument("--gpus", help="plan: devices of each machine, 8xH200; left out: those that are here")
    parser.add_argument("--no_estimate", action="store_true", help="plan: the commands alone")
    for word in argv:
        refuse_one_dash(word)
    options = parser.parse_args(argv)
    spec = read_spec(options.file)
    if options.action == "run":
        run(spec, options)
        return
    steps = steps_of(spec)
    check_steps(steps)
    # `run` is not checked here: the runner does so before the first step that starts, and not at all if none does.
    screen = Screen()
    if options.action == "check":
        screen.say(f"{options.file}: {len(steps)} steps, nothing wrong")
    else:
        show_plan(steps, screen, measured=not options.no_estimate, gpus=options.gpus)


def run(spec: Spec, options: argparse.Namespace) -> None:
    """Run the stages, or try them on few records (`--dry_run`)."""
    steps, folder = steps_of(spec), output_folder(spec)
    force = () if options.force is None else tuple(options.force) or ("*",)
    choice = Choice(options.first, options.last, options.only, force)
    if not options.dry_run:
        Runner(folder, ignore_gates=options.ignore_gates).run(steps, choice)
        return
    with scratch_folder(folder) as scratch:
        Runner(scratch).run(in_small(steps, folder, scratch), choice)
    say("the dry run found nothing wrong; its results are removed")


def output_folder(spec: Spec) -> Path:
    """The folder that holds the folders of all stages."""
    return Path(str(Names(spec.values).resolve(spec.output_dir).value))
