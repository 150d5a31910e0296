"""`hftune evaluate`: the environment is prepared before transformers is imported."""

from __future__ import annotations

from itertools import takewhile

from hftune.distributed import launch, ranks
from hftune.visible import say


def evaluate(argv: list[str]) -> None:
    """What models can do, with intervals; printed as tables, and kept record by record."""
    from hftune.arguments.asking import EvaluateArguments
    from hftune.arguments.stages import parse_command

    launch.prepare_environment()
    from hftune.tools.evaluating.run import evaluate as run
    from hftune.tools.reporting.tables import evaluation_sections

    # `hftune evaluate MODEL ...`: the first words are the models.
    models = list(takewhile(lambda word: not word.startswith("-"), argv))
    given = ["--models", *argv] if models else argv
    found = run(parse_command(EvaluateArguments, given), given)
    if ranks.is_main():
        say("\n\n".join(section.render() for section in evaluation_sections(found)))
