"""What a manifest may not decide: a folder may come from anywhere, and running it again must not run its author's code.

The command is parsed as the script will parse it, so that no alias, config file or other tool's name hides anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hftune.arguments.raw_arguments import given_on_command_line
from hftune.arguments.stages import parse_stage
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
    _, _, _, training = parse_stage(stage, words)
    for name, value in _of_code(training):
        if name not in named:
            cause = f"the manifest has the run load code: --{name} {value}"
            fix = "if you trust whoever made the folder, say it yourself: hftune reproduce FOLDER"
            yield ManifestError(cause, place=f"--{name}", fix=f"{fix} --{name} {value}")
    for name, value in _of_places(training):
        if name not in named:
            cause = f"the manifest has the run send something to others: --{name} {value}"
            yield ManifestError(
                cause, place=f"--{name}", fix=f"if you want that: hftune reproduce FOLDER --{name} {value}"
            )


def _of_code(training: Any) -> Iterator[tuple[str, str]]:
    if training.trust_remote_code:
        yield "trust_remote_code", "True"
    for name in ("callbacks", "reward_funcs", "tools"):
        # `FILE.py:NAME` and `MODULE:NAME`; hftune's own have no colon, or are a module of its.
        found = [text for text in getattr(training, name, None) or [] if ":" in text and not text.startswith(_OWN)]
        if found:
            yield name, " ".join(found)


def _of_places(training: Any) -> Iterator[tuple[str, str]]:
    if training.push_to_hub:
        yield "push_to_hub", "True"
    trackers = training.report_to if isinstance(training.report_to, list) else [training.report_to]
    if trackers := [str(one) for one in trackers if one not in (None, "none")]:
        yield "report_to", " ".join(trackers)
    for name in ("teacher_server_url", "vllm_server_base_url"):
        if value := getattr(training, name, None):
            yield name, str(value)
    if getattr(training, "use_vllm", False) and getattr(training, "vllm_mode", "") == "server":
        yield "vllm_server_host", str(training.vllm_server_host)
