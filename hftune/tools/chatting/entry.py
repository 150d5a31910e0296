"""`hftune chat`: the environment is prepared before transformers is imported."""

from __future__ import annotations

from itertools import takewhile

from hftune.distributed import launch


def chat(argv: list[str]) -> None:
    """A conversation in the terminal."""
    from hftune.arguments.stages import parse_command
    from hftune.tools.chatting.arguments import ChatArguments

    launch.prepare_environment()
    from hftune.tools.chatting.chat import chat as run

    # `hftune chat MODEL [MODEL2]`: the first words are the models.
    models = [*takewhile(lambda word: not word.startswith("-"), argv)]
    run(parse_command(ChatArguments, ["--models", *argv] if models else argv))
