"""`hftune sample`: the environment is prepared before transformers is imported."""

from __future__ import annotations

from hftune.distributed import launch


def sample(argv: list[str]) -> None:
    """Answers to prompts, scored, and those that are kept as training data."""
    from hftune.arguments.asking import SampleArguments
    from hftune.arguments.stages import parse_command

    launch.prepare_environment()
    from hftune.tools.sampling.run import sample as run

    # `hftune sample MODEL ...`: the first word is the model.
    given = ["--model_name_or_path", *argv] if argv and not argv[0].startswith("-") else argv
    run(parse_command(SampleArguments, given), given)
