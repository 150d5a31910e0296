"""`hftune doctor --train`: small trainings on this machine, two of each, that must give the same numbers.

All of them are the commands that users type, on a tiny random model that is made on the spot; nothing is downloaded.
"""

from __future__ import annotations

import functools
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hftune import child_processes
from hftune.opening.json_file import read_json
from hftune.tools.doctor.findings import WRONG, Finding
from hftune.tools.doctor.tiny import STEPS, Figures, make_data, make_model

TOPIC = "training"
BITS, ROUNDING, BF16 = 0.0, 1e-4, 2e-2
"""Allowed differences, relative: none; of float32 sums in another order; of a GPU, where runs compute in bf16."""
FLOOR = 1e-2
"""Differences of smaller figures are measured against this: RL's first loss is 0, give or take rounding."""
_STOP = 2
_LIMIT = 600.0
_SIZE = "--per_device_train_batch_size"
_DATA = {"pt": "pt", "sft": "sft", "rm": "pairs", "dpo": "pairs", "rl": "prompts", "distill": "sft"}
_OWN: dict[str, tuple[str, ...]] = {
    "pt": ("--block_size", "32"),
    "rl": (
        *("--reward_funcs", "hftune.tools.doctor.tiny:uneven"),
        *("--num_generations", "4", "--beta", "0.05", "--max_completion_length", "8", "--learning_rate", "1e-2"),
    ),
    "distill": ("--teacher_model_name_or_path", "{home}/teacher", "--distill_mode", "offline"),
}
_COMMON = (
    *("--learning_rate", "1e-3", "--lr_scheduler_type", "constant", "--weight_decay", "0", "--warmup_steps", "0"),
    *("--max_steps", str(STEPS), "--logging_steps", "1", "--save_strategy", "no", "--report_to", "none"),
    *("--gradient_checkpointing", "False", "--max_grad_norm", "1.0", "--model_name_or_path", "{home}/llama"),
)

Flags = tuple[str, ...]
Start = Callable[[str, Sequence[str], int, Path], int]
"""Starts a stage with flags on so many processes, what they say in a log; returns the exit code."""


class Row(NamedTuple):
    """Two runs of a stage, of eight records a step, in which each step has the same loss and gradient norm.

    Args:
        one, other: Flags of each beside those that all runs have; `{other}` in one is the folder of the other.
        processes: Of one.
        allowed: How far they may be apart.
    """

    what: str
    stage: str
    one: Flags
    other: Flags = ()
    processes: int = 1
    allowed: float = ROUNDING


class Outcome(NamedTuple):
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
    halves = (_SIZE, "4", "--gradient_accumulation_steps", "2")
    lora = ("--use_peft", "--lora_rank", "4", "--target_modules", "all")
    noise = ("--hidden_dropout_prob", "0.2", "--attention_probs_dropout_prob", "0.2", "--attn_implementation", "eager")
    saved = ("--save_strategy", "steps", "--save_steps", str(_STOP))
    # RL is cut, but not shared out: which answers are drawn depends on the process that draws them.
    titles = {"pt": "PT", "sft": "SFT", "dpo": "DPO", "distill": "distillation", "rl": "RL (GRPO)"}
    cut = [Row(f"{title}: 8 records = 2 x 4 accumulated", stage, halves) for stage, title in titles.items()]

    def shared_out(what: str, stage: str, zero: str, flags: Flags = ()) -> Row:
        told = f"{what}: {zero} on {processes} process(es) = 1 process without DeepSpeed"
        return Row(told, stage, (*flags, "--deepspeed", zero), flags, processes)

    return [
        *cut,
        shared_out("SFT", "sft", "zero2"),
        shared_out("SFT", "sft", "zero3"),
        shared_out("LoRA", "sft", "zero2", lora),
        shared_out("RM", "rm", "zero2"),
        shared_out("DPO", "dpo", "zero3"),
        Row("SFT: side by side = padded", "sft", (), ("--padding_free", "False")),
        Row(
            *("SFT: layers recomputed = nothing, with dropout", "sft"),
            one=(*noise, "--gradient_checkpointing", "True"),
            other=noise,
            allowed=BITS,
        ),
        Row(
            *("SFT: resumed = uninterrupted", "sft"),
            one=(*saved, "--resume_from_checkpoint", f"{{other}}/checkpoint-{_STOP}"),
            other=saved,
            allowed=BITS,
        ),
    ]


class Trainings:
    """Makes the runs of rows, each once.

    Args:
        folder: Of models, records and runs.
        gpus: That runs can use; 0: they compute on the processor.
        start: Starts one.
    """

    def __init__(self, folder: Path, gpus: int, start: Start) -> None:
        self.folder, self.gpus, self.start = folder, gpus, start
        self._made: dict[tuple[str, Flags, int], tuple[Figures | str, Path]] = {}
        for name in ("llama", "teacher"):
            make_model(name, folder / name)
        make_data(folder / "data")

    def outcome(self, row: Row) -> Outcome:
        """Both runs of a row, compared."""
        wanted, place = self._run(row.stage, row.other, 1)
        found, _ = self._run(row.stage, tuple(w.replace("{other}", str(place)) for w in row.one), row.processes)
        if isinstance(wanted, str) or isinstance(found, str):
            return Outcome(row.what, problem=wanted if isinstance(wanted, str) else str(found))
        return compared(row.what, found, wanted, max(row.allowed, BF16) if self.gpus else row.allowed)

    def _run(self, stage: str, flags: Flags, processes: int) -> tuple[Figures | str, Path]:
        """What a run has logged with each step, or in words that it has failed; and its folder."""
        key = stage, flags, processes
        if key not in self._made:
            output = self.folder / f"{stage}-{len(self._made)}"
            self._made[key] = self._figures(stage, self._words(stage, flags, processes), processes, output), output
        return self._made[key]

    def _figures(self, stage: str, words: list[str], processes: int, output: Path) -> Figures | str:
        log = output.with_suffix(".log")
        if code := self.start(stage, [*words, "--output_dir", str(output)], processes, log):
            said = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines() if log.is_file() else []
            return f"hftune {stage} ended with exit code {code}: {' | '.join(said[-3:])[-400:]}"
        history = read_json(output / "trainer_state.json", limit=1 << 26)["log_history"]
        steps = [entry for entry in history if "loss" in entry]
        return {name: [float(entry[name]) for entry in steps] for name in ("loss", "grad_norm")}

    def _words(self, stage: str, flags: Flags, processes: int) -> list[str]:
        device: Flags = () if self.gpus else ("--use_cpu", "True")
        if self.gpus and stage == "rl":
            # Rounded to bf16 in two ways, two runs draw different answers, which have nothing in common.
            device = ("--bf16", "False", "--tf32", "False")
        own = (*_OWN.get(stage, ()), "--train_file_dir", f"{{home}}/data/{_DATA[stage]}", _SIZE, str(8 // processes))
        # Of a flag that stands there twice the last one counts.
        return [word.replace("{home}", str(self.folder)) for word in (*_COMMON, *own, *device, *flags)]


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
        apart = f"{found.apart:.1e} apart, {found.allowed:.0e} allowed"
        said = f"{row.what}: {found.problem or f'{found.found:.6g} and {found.wanted:.6g}, {apart}'}"
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
