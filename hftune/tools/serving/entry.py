"""`hftune serve`: the environment is prepared before transformers is imported."""

from __future__ import annotations

from hftune.distributed import launch


def serve(argv: list[str]) -> None:
    """A model, its adapters and a reward model behind addresses as OpenAI's."""
    from hftune.arguments.stages import parse_command
    from hftune.tools.serving.arguments import ServeArguments

    launch.prepare_environment()
    from hftune.tools.serving.run import serve as run

    # `hftune serve FOLDER`: the first word is the model.
    given = ["--model", *argv] if argv and not argv[0].startswith("-") else argv
    run(parse_command(ServeArguments, one_flag(given, "--adapter")))


def one_flag(argv: list[str], flag: str) -> list[str]:
    """The words of a command with all values of a repeated flag behind one of it, at the end."""
    kept: list[str] = []
    values: list[str] = []
    taking = False
    for word in argv:
        name, given, value = word.partition("=")
        if name == flag:
            taking = not given
            values += [value] if given else []
        elif taking and not word.startswith("-"):
            values.append(word)
        else:
            taking = False
            kept.append(word)
    return [*kept, flag, *values] if values else kept
