"""`hftune completion`: prints the script for a shell; it holds all names, so that completing starts no Python."""

from __future__ import annotations

from collections.abc import Mapping

from hftune.arguments.entry import kept
from hftune.errors import ArgumentError, did_you_mean
from hftune.visible import say

HELP = """Completion of commands, arguments and their values behind `hftune`.

hftune completion bash > ~/.local/share/bash-completion/completions/hftune      bash, with the package bash-completion
eval "$(hftune completion bash)"                                                bash without it, in ~/.bashrc
eval "$(hftune completion zsh)"                                                 zsh, in ~/.zshrc behind compinit
hftune completion fish > ~/.config/fish/completions/hftune.fish                 fish

The script holds the names of this version: write it again after an update. The first call takes seconds."""

SHELLS = ("bash", "zsh", "fish")


def completion(argv: list[str], commands: Mapping[str, str]) -> None:
    """Print a shell's script.

    Args:
        argv: The shell.
        commands: All subcommands but the stages -> where the classes of their arguments are.

    Raises:
        ArgumentError: No shell, or one that is not known.
    """
    if not argv or {"-h", "--help"} & {*argv}:
        say(HELP)
        return
    if len(argv) != 1 or argv[0] not in SHELLS:
        name = argv[0].partition("=")[0]
        fix = f"{did_you_mean(name, SHELLS)} one of: {', '.join(SHELLS)}".strip()
        raise ArgumentError(f"`hftune completion` knows no shell {name}", fix=fix)

    def made() -> str:
        # It brings the parsers of all stages, which take seconds.
        from hftune.tools.completing.scripts import script

        return script(argv[0], commands)

    say(kept("completion", argv, made), end="")
