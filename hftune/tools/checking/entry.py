"""`hftune data check`: where it begins."""

from __future__ import annotations

from hftune.arguments.stages import parse_command
from hftune.distributed import launch
from hftune.errors import ArgumentError, did_you_mean
from hftune.tools.checking import DataCheckArguments

COMMANDS = {"check": DataCheckArguments}
"""What stands behind `hftune data`."""


def data(argv: list[str]) -> None:
    """What is in data, and what should not be trained.

    Raises:
        ArgumentError: No word that is known.
    """
    if not argv or argv[0] not in COMMANDS:
        word = argv[0].partition("=")[0] if argv else ""
        near = did_you_mean(word, [*COMMANDS], written="`hftune data {}`")
        raise ArgumentError(
            f"there is no `hftune data {word}`" if word else "`hftune data` needs a word",
            fix=f"{near} hftune data check FILE [--against EVAL] --output_dir OUT".strip(),
        )
    # `hftune data check FILE FOLDER`: what stands before the first flag are the files.
    given = argv[1:]
    # Not in the table of removed names: other commands have it.
    if any(word.partition("=")[0] == "--model" for word in given):
        fix = "`hftune preview` counts tokens, `hftune evaluate MODEL --eval_tasks loss` measures losses"
        raise ArgumentError("`hftune data check` runs no model any more", place="--model", fix=fix)
    args = parse_command(COMMANDS[argv[0]], ["--files", *given] if given and not given[0].startswith("-") else given)
    launch.prepare_environment()

    from hftune.tools.checking.run import check

    check(args, argv)
