"""Runs of the real scripts, each made once: forked on a CPU, started as a user starts them on a GPU."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hftune import child_processes
from hftune.opening.json_file import read_json
from hftune.tools.parity import forks
from hftune.tools.parity.models import DRAWING, STEPS, Figures, make_data, make_model
from hftune.tools.reporting.progress import read_progress

STOP = 2
DATA = {"pt": "pt", "sft": "sft", "rm": "pairs", "dpo": "pairs", "rl": "prompts", "distill": "sft"}
_OWN: dict[str, tuple[str, ...]] = {
    "pt": ("--block_size", "32"),
    "rl": (
        *("--reward_funcs", "hftune.tools.parity.models:uneven"),
        *(word for name, value in DRAWING.items() for word in (f"--{name}", str(value))),
    ),
    "distill": ("--teacher_model_name_or_path", "{teacher}", "--distill_mode", "offline"),
}
COMMON = (
    *("--learning_rate", "1e-3", "--lr_scheduler_type", "constant", "--weight_decay", "0", "--warmup_steps", "0"),
    *("--max_steps", str(STEPS), "--logging_steps", "1", "--save_strategy", "no", "--report_to", "none"),
    *("--gradient_checkpointing", "False", "--per_device_train_batch_size", "8", "--max_grad_norm", "1.0"),
)
_LIMIT = 300.0
_SHOWN = 600
"""Characters of the last words of a run that failed."""


class RunFailed(Exception):
    """A run has ended with an error; the words are its last ones."""


@dataclass(frozen=True)
class Run:
    """A run of a stage's script.

    Args:
        flags: Those that differ from `COMMON`. `{few}` is a folder of data with few records, `{teacher}` a model,
            `{NAME}` any model of `MODELS`.
        after: The run that this one resumes at step `STOP`; or, with `merges`, whose adapter it begins with, merged.
        few: Whether it trains the few records, all in each batch.
        tool: What makes the records first: `tokenize`, or what is merged: `merge`.
    """

    stage: str
    flags: tuple[str, ...] = ()
    processes: int = 1
    model: str = "llama"
    few: bool = False
    after: Run | None = None
    tool: str = ""

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.stage}-{hashlib.sha256(repr(self).encode()).hexdigest()[:12]}"


class Lab:
    """Makes what is asked for, each run once.

    Args:
        folder: Of models, data and runs.
        gpus: Of this machine; 0: runs are forked, on the CPU.
    """

    def __init__(self, folder: Path, gpus: int = 0) -> None:
        self.folder, self.gpus = folder.resolve(), gpus
        # Before forks hide the GPUs from this process, from DeepSpeed in it, and from all that it starts.
        self.environment = dict(os.environ)
        self._made: dict[str, Path | RunFailed] = {}
        make_data(self.folder / "data")

    def model(self, name: str) -> Path:
        """The folder of a model."""
        folder = self.folder / "models" / name
        if not folder.is_dir():
            self._fork(functools.partial(make_model, name, folder), folder.with_suffix(".log"))
        return folder

    def data(self, run: Run) -> Path:
        """The folder of a run's records."""
        return self.folder / "data" / (DATA[run.stage] + ("-few" if run.few else ""))

    def __call__(self, run: Run) -> Path:
        """The folder of a finished run.

        Raises:
            RunFailed: It has ended with an error, now or when it was asked for before.
        """
        if run.name not in self._made:
            try:
                self._made[run.name] = self._make(run)
            except RunFailed as failed:
                self._made[run.name] = failed
        made = self._made[run.name]
        if isinstance(made, RunFailed):
            raise made
        return made

    def figures(self, run: Run) -> Figures:
        """What it has logged with each step, digests of batches, and what its last weights measure of other records."""
        folder = self(run)
        history = read_json(folder / "trainer_state.json", limit=1 << 26)["log_history"]
        steps = [entry for entry in history if "loss" in entry]
        names = {name for entry in steps for name, value in entry.items() if isinstance(value, int | float)}
        found = {name: [float(entry[name]) for entry in steps if name in entry] for name in names}
        found["batch"] = [line["batch"] for line in read_progress(folder) if line.get("batch") is not None]
        held_out = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
        return found | ({"eval_loss": held_out[-1:]} if held_out else {})

    def by_hand(self, name: str, run: Run, asked: str, *, begun: bool = False) -> Figures:
        """What a function of `plain.BY_HAND` finds of a run's records.

        Args:
            begun: From the weights that the run has saved, not from its model.
        """
        start = self(run) if begun else self.model(run.model)
        kind, colon, named = asked.partition(":{")
        asked = f"{kind}:{self.model(named.removesuffix('}'))}" if colon else asked
        key = hashlib.sha256(repr((name, run, asked)).encode()).hexdigest()[:12]
        result = self.folder / "by_hand" / f"{key}.json"
        if not result.is_file():
            result.parent.mkdir(exist_ok=True)
            work = functools.partial(_compute, name, start, self.data(run), asked, result)
            self._fork(work, result.with_suffix(".log"))
        found: Figures = read_json(result)
        return found

    def _make(self, run: Run) -> Path:
        output = self.folder / "runs" / run.name
        start = self.model(run.model)
        source = ["--train_file_dir", str(self.data(run))]
        if run.tool == "merge":
            assert run.after is not None, "what is merged"
            start = self._merged(run.after)
        if run.tool == "tokenize":
            source = ["--tokenized_dir", str(self._tokenized(run))]
        words = [*self._words(run), "--model_name_or_path", str(start), *source, "--output_dir", str(output)]
        if run.after is not None and not run.tool:
            words += ["--resume_from_checkpoint", str(self(run.after) / f"checkpoint-{STOP}")]
        self._run(f"run_{run.stage}.py", words, run.processes, output.with_suffix(".log"))
        return output

    def _words(self, run: Run) -> list[str]:
        device: tuple[str, ...] = () if self.gpus else ("--use_cpu", "True")
        if self.gpus and run.stage == "rl":
            # Rounded to bf16 in two ways, two runs draw different answers, which have nothing in common.
            device = ("--bf16", "False", "--tf32", "False")
        where = [*COMMON, *_OWN.get(run.stage, ()), *device, *run.flags]
        return [str(self._place(word)) if word.startswith("{") and word.endswith("}") else word for word in where]

    def _place(self, word: str) -> Path | str:
        name = word[1:-1]
        if name in DATA.values():
            return self.folder / "data" / f"{name}-few"
        return self.model(name) if name.isidentifier() else word

    def _tokenized(self, run: Run) -> Path:
        folder = self.folder / "tokenized" / run.name
        words = ["tokenize", f"run_{run.stage}", *self._words(run), "--model_name_or_path", str(self.model(run.model))]
        words += ["--train_file_dir", str(self.data(run)), "--output_dir", str(folder)]
        self._run("hftune", words, 1, folder.with_suffix(".log"))
        return folder

    def _merged(self, run: Run) -> Path:
        adapter = self(run)
        folder = adapter.with_name(f"{adapter.name}-merged")
        if not folder.is_dir():
            words = ["--peft_model_path", str(adapter), "--output_dir", str(folder)]
            self._run("merge_peft_adapter.py", words, 1, folder.with_suffix(".log"))
        return folder

    def _run(self, script: str, words: Sequence[str], processes: int, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        if not self.gpus:
            self._fork(functools.partial(_as_python, script, words), log, processes)
        elif code := self._start(script, words, processes, log):
            raise _failure(script, code, log)

    def _fork(self, work: Callable[[], object], log: Path, processes: int = 1) -> None:
        """In processes of their own: this one must stay without threads, or it could not fork again."""
        log.parent.mkdir(parents=True, exist_ok=True)
        if code := forks.fork_and_wait(work, log, processes, _LIMIT):
            raise _failure(log.stem, code, log)

    def _start(self, script: str, words: Sequence[str], processes: int, log: Path) -> int:
        """With a launcher, on GPUs of its own."""
        if script.startswith("run_"):
            how = ["--nproc", str(processes)] if processes > 1 else ["--launcher", "none"]
            words = [script.removeprefix("run_").removesuffix(".py"), *how, *words]
        elif script != "hftune":
            words = ["merge", *words]
        visible = self.environment.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(self.gpus)))
        devices = ",".join(visible.split(",")[:processes])
        variables = child_processes.environment(self.environment) | {"CUDA_VISIBLE_DEVICES": devices}
        with log.open("w", encoding="utf-8") as stream:
            command = child_processes.python("-m", "hftune.cli", *words)
            return child_processes.run(command, env=variables, stdout=stream, stderr=child_processes.STDOUT).returncode


def _failure(what: str, code: int, log: Path) -> RunFailed:
    said = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines() if log.is_file() else []
    return RunFailed(f"{what} ended with exit code {code}: " + " | ".join(said[-4:])[-_SHOWN:])


def _compute(*what: Any) -> None:
    from hftune.tools.parity.plain import compute

    compute(*what)


def _as_python(script: str, words: Sequence[str]) -> None:
    """In a fork: what Python's command line does with a script, or the command of hftune."""
    os.environ.update({"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"})
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    child_processes.become(script, words)
