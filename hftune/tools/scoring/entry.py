"""`hftune score` and `hftune ask`: the environment is prepared before transformers is imported."""

from __future__ import annotations

from hftune.distributed import launch
from hftune.visible import say


def score(argv: list[str]) -> None:
    """A file of conversations through a reward model."""
    from hftune.arguments.stages import parse_command
    from hftune.tools.scoring.arguments import ScoreArguments

    launch.prepare_environment()
    from hftune.tools.scoring.run import score as run

    # `hftune score FILE`: the first word is the input.
    given = ["--input", *argv] if argv and not argv[0].startswith("-") else argv
    run(parse_command(ScoreArguments, given))


def ask(argv: list[str]) -> None:
    """The same questions to one model or several."""
    from hftune.arguments.asking import AskArguments
    from hftune.arguments.stages import parse_command

    launch.prepare_environment()
    from hftune.tools.reporting.tables import answer_sections
    from hftune.tools.scoring.ask import ask as run

    found = run(parse_command(AskArguments, argv), argv)
    say("\n\n".join(section.render() for section in answer_sections(found, shown=len(found["questions"]))))
