"""`hftune doctor --train`: small trainings on this machine, two of each, that must give the same numbers.

All of them are the commands that users type, on a tiny random model that is made on the spot; nothing is downloaded.
"""

from __future__ import annotations

import functools
import hashlib
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hftune import child_processes
from hftune.opening.json_file import read_json
from hftune.tools.doctor.findings import WRONG, Finding
from hftune.tools.doctor.tiny import DRAWING, STEPS, Figures, make_data, make_model

TOPIC = "training"
BITS, ROUNDING, BF16 = 0.0, 1e-4, 2e-2
"""Allowed differences, relative: none; of float32 sums in another order; of a GPU, where runs compute in bf16."""
FLOOR = 1e-2
"""Differences of smaller figures are measured against this: RL's first loss is 0, give or take rounding."""
_STOP = 2
_LIMIT = 600.0
_DATA = {"pt": "pt", "sft": "sft", "rm": "pairs", "dpo": "pairs", "rl": "prompts", "distill": "sft"}
_OWN: dict[str, tuple[str, ...]] = {
    "pt": ("--block_size", "32"),
    "rl": (
        *("--reward_funcs", "hftune.tools.doctor.tiny:uneven"),
        *(word for name, value in DRAWING.items() for word in (f"--{name}", str(value))),
    ),
    "distill": ("--teacher_model_name_or_path", "{teacher}", "--distill_mode", "offline"),
}
_COMMON = (
    *("--learning_rate", "1e-3", "--lr_scheduler_type", "constant", "--weight_decay", "0", "--warmup_steps", "0"),
    *("--max_steps", str(STEPS), "--logging_steps", "1", "--save_strategy", "no", "--report_to", "none"),
    *("--gradient_checkpointing", "False", "--max_grad_norm", "1.0"),
)

Start = Callable[[str, Sequence[str], int, Path], int]
"""Starts a stage with flags on so many processes, what they say in a log; returns the exit code."""


@dataclass(frozen=True)
class Training:
    """A run of a stage, of eight records a step.

    Args:
        flags: Those that differ from what all runs have.
        processes: That share the records.
        resumed: From a checkpoint of the same run.
    """

    stage: str
    flags: tuple[str, ...] = ()
    processes: int = 1
    resumed: bool = False


@dataclass(frozen=True)
class Row:
    """Two runs of which each step has the same loss and gradient norm, and how far they may be apart."""

    what: str
    one: Training
    other: Training
    allowed: float = ROUNDING


@dataclass(frozen=True)
class Outcome:
    """What came of a row: the figures of the step in which both runs are furthest apart, or why there are none."""

    what: str
    found: float = math.nan
    wanted: float = math.nan
    apart: float = math.inf
    allowed: float = ROUNDING
    problem: str = ""

    @property
    def holds(self) -> bool:
        """Whether both sides agree."""
        return not self.problem and self.apart <= self.allowed


def rows(processes: int) -> list[Row]:
    """All rows; those of several processes have so many, at most 2."""
    halves = ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2")
    lora = ("--use_peft", "--lora_rank", "4", "--target_modules", "all")
    noise = ("--hidden_dropout_prob", "0.2", "--attention_probs_dropout_prob", "0.2")
    dropout = (*noise, "--attn_implementation", "eager")
    saved = Training("sft", ("--save_strategy", "steps", "--save_steps", str(_STOP)))
    # RL is cut, but not shared out: which answers are drawn depends on the process that draws them.
    titles = {"pt": "PT", "sft": "SFT", "dpo": "DPO", "distill": "distillation", "rl": "RL (GRPO)"}
    cut = [
        Row(f"{title}: 8 records = 2 x 4 accumulated", Training(stage, halves), Training(stage))
        for stage, title in titles.items()
    ]

    def shared_out(what: str, zero: str, one: Training) -> Row:
        many = replace(one, flags=(*one.flags, "--deepspeed", zero), processes=processes)
        return Row(f"{what}: {zero} on {processes} process(es) = 1 process without DeepSpeed", many, one)

    return [
        *cut,
        shared_out("SFT", "zero2", Training("sft")),
        shared_out("SFT", "zero3", Training("sft")),
        shared_out("LoRA", "zero2", Training("sft", lora)),
        shared_out("RM", "zero2", Training("rm")),
        shared_out("DPO", "zero3", Training("dpo")),
        Row("SFT: side by side = padded", Training("sft"), Training("sft", ("--padding_free", "False"))),
        Row(
            "SFT: layers recomputed = nothing, with dropout",
            Training("sft", (*dropout, "--gradient_checkpointing", "True")),
            Training("sft", dropout),
            BITS,
        ),
        Row("SFT: resumed = uninterrupted", replace(saved, resumed=True), saved, BITS),
    ]


class Trainings:
    """Makes what is asked for, each run once.

    Args:
        folder: Of models, records and runs.
        gpus: That runs can use; 0: they compute on the processor.
        start: Starts one.
    """

    def __init__(self, folder: Path, gpus: int, start: Start) -> None:
        self.folder, self.gpus, self.start = folder, gpus, start
        self._made: dict[Training, Figures | str] = {}
        for name in ("llama", "teacher"):
            make_model(name, folder / name)
        make_data(folder / "data")

    def outcome(self, row: Row) -> Outcome:
        """Both runs of a row, compared."""
        found, wanted = self.figures(row.one), self.figures(row.other)
        allowed = max(row.allowed, BF16) if self.gpus else row.allowed
        if isinstance(found, str) or isinstance(wanted, str):
            return Outcome(row.what, problem=found if isinstance(found, str) else str(wanted))
        return compared(row.what, found, wanted, allowed)

    def figures(self, run: Training) -> Figures | str:
        """What it has logged with each step; or in words, that it has failed."""
        if run not in self._made:
            self._made[run] = self._figures(run)
        return self._made[run]

    def _figures(self, run: Training) -> Figures | str:
        output = self._place(run)
        words = [*self._words(run), "--output_dir", str(output)]
        if run.resumed:
            whole = replace(run, resumed=False)
            if isinstance(problem := self.figures(whole), str):
                return problem
            words += ["--resume_from_checkpoint", str(self._place(whole) / f"checkpoint-{_STOP}")]
        log = output.with_suffix(".log")
        if code := self.start(run.stage, words, run.processes, log):
            said = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines() if log.is_file() else []
            return f"hftune {run.stage} ended with exit code {code}: {' | '.join(said[-3:])[-400:]}"
        history = read_json(output / "trainer_state.json", limit=1 << 26)["log_history"]
        steps = [entry for entry in history if "loss" in entry]
        return {name: [float(entry[name]) for entry in steps] for name in ("loss", "grad_norm")}

    def _place(self, run: Training) -> Path:
        return self.folder / f"{run.stage}-{hashlib.sha256(repr(run).encode()).hexdigest()[:12]}"

    def _words(self, run: Training) -> list[str]:
        device: tuple[str, ...] = () if self.gpus else ("--use_cpu", "True")
        if self.gpus and run.stage == "rl":
            # Rounded to bf16 in two ways, two runs draw different answers, which have nothing in common.
            device = ("--bf16", "False", "--tf32", "False")
        size: tuple[str, ...] = ("--per_device_train_batch_size", str(8 // run.processes))
        size = () if size[0] in run.flags else size
        where = ("--model_name_or_path", "{llama}", "--train_file_dir", str(self.folder / "data" / _DATA[run.stage]))
        words = [*where, *_COMMON, *_OWN.get(run.stage, ()), *device, *size, *run.flags]
        return [str(self.folder / word[1:-1]) if word.startswith("{") else word for word in words]


def compared(what: str, found: Figures, wanted: Figures, allowed: float) -> Outcome:
    """The step and figure that are furthest apart, relative to the larger of both."""
    worst = Outcome(what, apart=-1.0, allowed=allowed)
    for name in ("loss", "grad_norm"):
        ours, theirs = found.get(name, []), wanted.get(name, [])
        if not ours or len(ours) != len(theirs):
            return Outcome(what, problem=f"{len(ours)} and {len(theirs)} values of {name}")
        if name == "grad_norm" and not max(map(abs, theirs)) > 0:
            return Outcome(what, problem="nothing is trained: every gradient is 0")
        for one, other in zip(ours, theirs, strict=True):
            apart = abs(one - other) / max(abs(one), abs(other), FLOOR) if math.isfinite(one - other) else math.inf
            if apart > worst.apart:
                worst = Outcome(what, one, other, apart, allowed)
    return worst


def check_training(gpus: int, variables: Mapping[str, str]) -> Iterator[Finding]:
    """Every row as it is known; where one fails, the runs stay.

    Args:
        gpus: That torch sees.
        variables: Those of the user, for the runs.
    """
    folder = Path(tempfile.mkdtemp(prefix="hftune-doctor-"))
    trainings, failed = Trainings(folder, gpus, functools.partial(_start, gpus, variables)), False
    for row in rows(min(gpus or 2, 2)):
        found = trainings.outcome(row)
        failed |= not found.holds
        said = f"{row.what}: {found.problem}"
        if not found.problem:
            apart = f"{found.apart:.1e} apart, {found.allowed:.0e} allowed"
            said = f"{row.what}: {found.found:.6g} and {found.wanted:.6g}, {apart}"
        fix = f"the runs, and what they have said, are in {folder}"
        yield Finding(TOPIC, said) if found.holds else Finding(TOPIC, said, WRONG, fix)
    if not failed:
        shutil.rmtree(folder)


def _start(gpus: int, variables: Mapping[str, str], stage: str, words: Sequence[str], processes: int, log: Path) -> int:
    """As a user types it; on no more GPUs than it has processes, or the Trainer would share a batch out among them."""
    how = ["--nproc", str(processes)] if processes > 1 else ["--launcher", "none"]
    visible = variables.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    devices = ",".join(visible.split(",")[:processes]) if gpus else ""
    command = child_processes.python("-m", "hftune.cli", stage, *how, *words)
    with log.open("w", encoding="utf-8") as stream:
        try:
            return child_processes.run(
                command,
                env={**variables, "CUDA_VISIBLE_DEVICES": devices},
                stdout=stream,
                stderr=child_processes.STDOUT,
                timeout=_LIMIT,
            ).returncode
        except child_processes.TimeoutExpired:
            return 124
