"""`hftune data check`: its arguments, and where it begins."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.arguments.stages import parse_command
from hftune.distributed import launch
from hftune.errors import ArgumentError, did_you_mean
from hftune.tools.checking.result import KINDS


@dataclass
class DataCheckArguments:
    """What is in data, and what should not be trained."""

    files: list[str] | None = field(
        default=None, metadata={"help": "Files and folders of records, in any format of any stage; also given alone."}
    )
    against: list[str] | None = field(
        default=None, metadata={"help": "Files and folders of evaluation data, which must not stand in the others."}
    )
    output_dir: str | None = field(
        default=None, metadata={"help": "Folder for a page, the findings and, with --drop, the records that are left."}
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace an earlier result there."})
    drop: list[str] | None = field(
        default=None,
        metadata={"help": "Kinds of findings whose records are left out of what is written.", "choices": [*KINDS]},
    )
    columns: str | None = field(
        default=None, metadata={"help": "Columns with names of their own: prompt=question response=answer."}
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes; left out: one for each core."}
    )


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
