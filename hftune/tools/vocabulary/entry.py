"""`hftune vocab`: the environment is prepared before transformers is imported."""

from __future__ import annotations

from hftune.distributed import launch
from hftune.errors import ArgumentError, did_you_mean
from hftune.visible import say


def vocab(argv: list[str]) -> None:
    """Tokens and rows before training: add, extend, train, merge, resize."""
    launch.prepare_environment()
    from hftune.tools.vocabulary import command

    name, rest = (argv[0], argv[1:]) if argv else ("help", [])
    if name in ("-h", "--help", "help"):
        say(command.__doc__)
        return
    if name not in command.COMMANDS:
        near = did_you_mean(name, command.COMMANDS, written="`hftune vocab {}`")
        fix = f"{near} one of: {', '.join(command.COMMANDS)}".strip()
        raise ArgumentError(f"there is no `hftune vocab {name}`", fix=fix)
    from hftune.tools.vocabulary.arguments import parse_vocab_arguments

    command.run(name, parse_vocab_arguments(rest))
