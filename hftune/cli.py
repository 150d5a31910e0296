"""The `hftune` command: what goes with the scripts, before and after a run. Its subcommands are `commands.csv`."""

from __future__ import annotations

import os
import sys

from hftune import __version__
from hftune.arguments.stage_table import STAGES, stage_of
from hftune.errors import ArgumentError, did_you_mean, run_tool
from hftune.logging import quiet_libraries
from hftune.on_demand import on_demand
from hftune.tables import read_table
from hftune.visible import TYPED, say

_ROWS = {row["name"]: row for row in read_table(__package__, "commands.csv")}
COMMANDS = {name: row for name, row in _ROWS.items() if row["run"]}
REMOVED = {name: row["does"] for name, row in _ROWS.items() if not row["usage"]}
MEANT = {name: row["usage"] for name, row in _ROWS.items() if row["usage"] and not row["run"]}
"""Subcommands of other tools, and what does the same here."""
WITHOUT_PAGE = ("preview", "tokenize", "data", "export", "launch", "lineage", "report")
"""Subcommands whose help is their line in the table; the others have a page of their own."""
START = "hftune.tools.pipeline.starting:start"
"""Takes a stage, whose name is a subcommand as well, and the words behind it."""


def main() -> None:
    """Run the subcommand that the command line names."""
    quiet_libraries()  # before a tool imports any of them
    if sys.argv[1:2] != ["launch"]:  # behind it a script is typed
        os.environ[TYPED] = "1"
    run_tool(lambda: dispatch(sys.argv[1:]))


def dispatch(argv: list[str]) -> None:
    """Run the subcommand that the first word names; the second is, for some, the script whose arguments follow.

    Raises:
        ArgumentError: No such subcommand or script.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        lines = "\n".join(_line(name) for name in COMMANDS).replace("{stages}", "|".join(STAGES))
        say(f"{str(__doc__).partition(' Its')[0]}\n\n{lines}\nhftune --version      the version")
        return
    if argv[0] in ("--version", "-V"):
        say(f"hftune {__version__}")
        return
    if stage := stage_of(argv[0]):
        on_demand(START)(stage, argv[1:])
        return
    for words in (argv[0], " ".join(argv[:2])):
        if words in REMOVED:
            raise ArgumentError(f"`hftune {words}` was removed", fix=REMOVED[words])
    if argv[0] not in COMMANDS:
        names, meant = [*STAGES, *COMMANDS], MEANT.get(argv[0])
        near = f"`hftune {meant}` does that;" if meant else did_you_mean(argv[0], names, written="`hftune {}`")
        fix = f"{near} one of: {', '.join(names)}".strip()
        # A word may be `--hub_token=X`: its value is not repeated.
        raise ArgumentError(f"there is no `hftune {argv[0].partition('=')[0]}`", fix=fix)
    if argv[0] in WITHOUT_PAGE and argv[1:2] in (["-h"], ["--help"]):
        say(_line(argv[0]))
    else:
        _run(COMMANDS[argv[0]], argv[1:])


def _line(name: str) -> str:
    row = COMMANDS[name]
    return f"hftune {row['usage']}      {row['does']}".rstrip()


def _run(command: dict[str, str], words: list[str]) -> None:
    if not command["first"]:
        on_demand(command["run"])(words)
        return
    # It loads models: the environment is prepared before transformers is imported.
    on_demand("hftune.distributed.launch:prepare_environment")()
    argv = [command["first"], *words] if words and not words[0].startswith("-") else words
    arguments = on_demand("hftune.arguments.stages:parse_command")(on_demand(command["arguments"]), argv)
    on_demand(command["run"])(arguments, argv)


def completion(argv: list[str]) -> None:
    """`hftune completion`, which is told what there is to complete."""
    holders = {name: row["arguments"] for name, row in COMMANDS.items()}
    on_demand("hftune.tools.completing:completion")(argv, holders)


if __name__ == "__main__":
    main()
