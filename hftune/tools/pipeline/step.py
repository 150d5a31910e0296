"""One command of a pipeline: the script of a stage, a merge, or a subcommand of hftune."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from hftune import child_processes
from hftune.arguments.stage_table import STAGES
from hftune.errors import ArgumentError
from hftune.tools.pipeline.gates import Gate
from hftune.tools.pipeline.launchers import Launcher
from hftune.tools.pipeline.spec import EVALUATE, SAMPLE

MERGE, ASK = "merge", "ask"
"""Scripts of steps that train nothing, with `EVALUATE` and `SAMPLE`."""
COMMANDS = {
    ASK: "hftune.arguments.asking:AskArguments",
    EVALUATE: "hftune.arguments.asking:EvaluateArguments",
    SAMPLE: "hftune.arguments.asking:SampleArguments",
}
"""Subcommands of hftune that are steps, and the classes of their arguments."""


@dataclass(frozen=True)
class Step:
    """One command.

    Args:
        name: `sft`, `merge sft`, `lr=1e-4/sft`.
        stage: Name of the stage in the file.
        script: "pt", "sft", "rm", "dpo", "rl", `MERGE`, or one of `COMMANDS`.
        folder: Its output folder.
        arguments: Name to values, as the script is given them; `output_dir` is one of them.
        places: Name to `file:line`.
        place: `file:line` of the stage.
        env: Environment variables in addition to the runner's own.
        needs: Names of the steps whose results it reads.
        base: The model at the root of what it trains, for planning while its own is not there yet.
        gates: Of an evaluation: what it must come to, or the pipeline stops.
    """

    name: str
    stage: str
    script: str
    folder: Path
    arguments: dict[str, list[str]]
    places: dict[str, str]
    place: str
    launcher: Launcher = field(default_factory=Launcher)
    env: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    base: str = ""
    gates: tuple[Gate, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether it is a stage of training."""
        return self.script in STAGES

    @property
    def argv(self) -> list[str]:
        """The arguments as words of a command line."""
        return [token for name, values in self.arguments.items() for token in (f"--{name}", *values)]

    def command(self, *more: str) -> list[str]:
        """The whole command; `more` follows the arguments."""
        if self.script in COMMANDS:
            words = [self.script, *self.argv, *more]
            alone = self.launcher.kind == "python"
            return ["hftune", *words] if alone else self.launcher.wrap_module("hftune.cli", words)
        name = "merge_peft_adapter.py" if self.script == MERGE else f"run_{self.script}.py"
        return self.launcher.wrap(_own(name), [*self.argv, *more])

    def with_port(self) -> Step:
        """The step with a port that is free now."""
        return replace(self, launcher=self.launcher.with_free_port())

    def given(self, **arguments: str) -> Step:
        """The step with other arguments."""
        return replace(self, arguments={**self.arguments, **{name: [value] for name, value in arguments.items()}})


def _own(name: str) -> str:
    """The path of one of hftune's scripts: never a file of that name in the working folder."""
    path = child_processes.script(name)
    if not Path(path).is_file():
        raise ArgumentError(
            f"{name} is not there, so that no stage can be started",
            place=path,
            fix="install hftune again (pip install --force-reinstall --no-deps hftune), or from its sources: "
            "pip install -e FOLDER",
        )
    return path
