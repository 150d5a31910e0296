"""`hftune teach`: what a teacher says of a data set, computed once and stored for `run_distill.py`."""

from __future__ import annotations


def teach(argv: list[str]) -> None:
    """What a teacher says of the records of run_distill.py, as a folder that it takes with `--teacher_targets`."""
    from hftune.arguments.entry import parse_arguments

    arguments = parse_arguments("distill", argv)

    # After parsing: a wrong command is refused before seconds of imports.
    from hftune.tools.teaching.run import teach as run

    run(arguments, argv)
