"""What a manifest may not decide: a folder may come from anywhere, and running it again must not run its author's code.

The command is read as the script will read it, so that no alias, config file or other tool's name hides anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from hftune.arguments.parser import read_entries
from hftune.arguments.raw_arguments import given_on_command_line, take_config
from hftune.arguments.stages import parser_for
from hftune.errors import ManifestError, UserError
from hftune.tools.reproducing.again import plain

_OWN = "hftune."


def untrusted(stage: str, words: list[str], rest: list[str]) -> Iterator[UserError]:
    """Problems: code that the run would run, and places to which it would send something, unless the user named them.

    Args:
        words: The whole command line of the script.
        rest: What of it the user gave.
    """
    named = {plain(name) for name, _ in given_on_command_line(rest)}
    asked = _asked(stage, words)
    for name, value in _of_code(asked):
        if name not in named:
            cause = f"the manifest has the run load code: --{name} {value}"
            fix = "if you trust whoever made the folder, say it yourself: hftune reproduce FOLDER"
            yield ManifestError(cause, place=f"--{name}", fix=f"{fix} --{name} {value}")
    for name, value in _of_places(asked):
        if name not in named:
            cause = f"the manifest has the run send something to others: --{name} {value}"
            fix = f"if you want that: hftune reproduce FOLDER --{name} {value}"
            yield ManifestError(cause, place=f"--{name}", fix=fix)


def _asked(stage: str, words: list[str]) -> dict[str, list[str]]:
    """The values of all arguments by hftune's names. What is wrong with them the script says."""
    config, rest = take_config(words)
    # Of one process: no argument below depends on how many there are.
    found = parser_for(stage, words).translated(read_entries(config, rest), 1, 1).entries
    return {entry.name: [str(value) for value in entry.values] for entry in found}


def _of_code(asked: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    if _is_on(asked.get("trust_remote_code")):
        yield "trust_remote_code", "True"
    for name in ("callbacks", "reward_funcs", "tools"):
        # `FILE.py:NAME` and `MODULE:NAME`; hftune's own have no colon, or are a module of its.
        found = [text for text in asked.get(name, []) if ":" in text and not text.startswith(_OWN)]
        if found:
            yield name, " ".join(found)


def _of_places(asked: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    if _is_on(asked.get("push_to_hub")):
        yield "push_to_hub", "True"
    for name in ("report_to", "teacher_server_url", "vllm_server_base_url", "vllm_server_host"):
        found = [text for text in asked.get(name, []) if text.lower() not in ("none", "")]
        if found:
            yield name, " ".join(found)


def _is_on(values: list[str] | None) -> bool:
    """Whether a switch is on: it was given, and without a word that turns it off."""
    return values is not None and " ".join(values).strip().lower() not in ("false", "no", "0", "f", "n", "none")
