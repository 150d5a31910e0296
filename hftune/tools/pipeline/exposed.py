"""Finds secrets that a pipeline would put on command lines, which `ps` shows and launchers print."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.secrets import command_without_secrets, variable_says_secret
from hftune.tools.pipeline.launchers import PRINTED
from hftune.tools.pipeline.state import HUB_TOKENS
from hftune.tools.pipeline.step import Step


def with_quiet_token(step: Step) -> Step:
    """The step with the Hub's token in HF_TOKEN instead of on its command line."""
    # The last one counts, as on a command line.
    tokens = [values[-1] for name, values in step.arguments.items() if name in HUB_TOKENS and values]
    arguments = {name: values for name, values in step.arguments.items() if name not in HUB_TOKENS}
    return replace(step, arguments=arguments, env={**step.env, "HF_TOKEN": tokens[-1]}) if tokens else step


def exposures(step: Step) -> Iterator[ArgumentError]:
    """Problems: secrets that would be on the step's command line, each with its line in the file."""
    # What the runner will start: the Hub's token is in a variable by then, and no exposure.
    for name, values in with_quiet_token(step).arguments.items():
        words = [f"--{name}", *values]
        if command_without_secrets(words) != words:
            yield ArgumentError(
                f"{name} holds a secret, and command lines are shown by `ps` and in the launcher's log",
                place=step.places.get(name, step.place),
                fix=_way_out(name, step.arguments[name]),
            )
    # The launcher's own options, apart from the script's arguments.
    launched = step.launcher.wrap("script", [])
    if command_without_secrets(launched) != launched:
        cause = f"the launcher {step.launcher.kind} is given a secret, and command lines are shown by `ps`"
        yield ArgumentError(cause, place=step.place, fix="give it in the environment: env: {NAME: ...}")
    if step.launcher.other_machines:
        # To reach other machines a variable is put on an `ssh` or pdsh command line there, and into the launcher's log.
        for name in sorted({**os.environ, **step.env}):
            if name.startswith(PRINTED) and variable_says_secret(name):
                fix = f"unset {name} here and set it on each machine, or launch with torchrun or srun"
                cause = f"DeepSpeed's launcher prints {name} as it hands it to other machines"
                yield ArgumentError(cause, place=step.place, fix=fix)


def _way_out(name: str, values: list[str]) -> str:
    if name == "deepspeed" and "".join(values).lstrip().startswith("{"):
        return (
            "write the config to a file and name that, or give the secret in a variable, as COMET_API_KEY: env: {...}"
        )
    return "give it in a variable of the environment (env: {NAME: ...}; for the Hub HF_TOKEN), or in a file"


def say_variables_not_passed_on(steps: Iterable[Step], environment: Mapping[str, str]) -> None:
    """Say which variables do not reach other machines: DeepSpeed's launcher passes on only some."""
    missing: dict[str, None] = {}
    for step in map(with_quiet_token, steps):
        names = [*step.env, *(["HF_TOKEN"] if "HF_TOKEN" in environment else [])]
        missing |= dict.fromkeys(name for name in names if step.launcher.loses(name))
    if missing:
        # `hf auth login` stores it in a file on each machine, which needs no variable.
        token = "; for the Hub's token run `hf auth login` on each machine" if "HF_TOKEN" in missing else ""
        notice(f"the launcher does not hand {', '.join(missing)} to other machines: set them there{token}")
