"""How records are shared out, and what is recomputed, changes no number: 20 losses and gradient norms of each setting.

python -m tests.table.parity --work FOLDER [--only sft-full] [--seconds 60] [--write-docs]

Cells are run by the table's driver, and what has a result in FOLDER is not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tests.architectures import make_model
from tests.conftest import ROOT
from tests.table.cells import DATA, GLOBAL_BATCH, METHODS, MODES, SCRIPTS, Mode
from tests.table.data import write_data
from tests.table.drive import RESULT
from tests.table.plain import changes
from tests.table.table import drive

STEPS = 20
TOLERANCE = 1e-4
"""Of the loss, and of the gradient norm, in float32."""
RATES = {"full": "2e-4", "lora": "2e-3"}

ENGINES: dict[str, Mode] = {
    **{name: mode for name, mode in MODES.items() if name != "ddp"},
    "ddp": MODES["ddp"],
    "zero3_hpz": Mode(2, 3, "ds_configs/zero3_hpz.json"),
}
RECOMPUTED: dict[str, tuple[str, ...]] = {
    "none": ("--activation_checkpointing", "none"),
    "full": ("--activation_checkpointing", "full"),
    "attention": ("--activation_checkpointing", "attention"),
    "mlp": ("--activation_checkpointing", "mlp"),
    "every 2": ("--activation_checkpointing_every", "2"),
    "reentrant": ("--gradient_checkpointing_kwargs", '{"use_reentrant": true}'),
}
RECOMPUTED_ON = ("alone", "zero2", "zero3")


Curve = list[tuple[float, float]]
"""Loss and gradient norm of each step."""


@dataclass(frozen=True)
class Setting:
    """One run: stage, method, how the work is shared, what is recomputed."""

    script: str
    method: str
    engine: str
    recomputed: str = "none"

    @property
    def name(self) -> str:
        """Also that of its folder."""
        return "-".join([self.script, self.method, self.engine, self.recomputed]).replace(" ", "")

    @property
    def reference(self) -> Setting:
        """The same in one process, without DeepSpeed, with nothing recomputed."""
        return Setting(self.script, self.method, "alone")

    def as_line(self, work: Path) -> dict[str, Any]:
        """What the driver runs."""
        mode = ENGINES[self.engine]
        return {
            "name": self.name,
            "script": self.script,
            "processes": mode.processes,
            "reload": None,
            "flags": [
                *("--model_name_or_path", str(work / "models" / "llama")),
                *("--train_file_dir", str(work / "data" / DATA[self.script]), "--attn_implementation", "eager"),
                *("--per_device_train_batch_size", str(GLOBAL_BATCH // mode.processes), "--max_steps", str(STEPS)),
                *("--lr_scheduler_type", "constant", "--logging_steps", "1", "--save_strategy", "no"),
                *("--report_to", "none", *SCRIPTS[self.script], *METHODS[self.method]),
                *("--learning_rate", RATES[self.method], *RECOMPUTED[self.recomputed], *mode.flags),
            ],
        }


def settings() -> list[Setting]:
    """All, references first."""
    every = [
        *(Setting(*point) for point in product(("sft", "pt"), RATES, ENGINES)),
        *(Setting(*point) for point in product(("sft", "pt"), RATES, RECOMPUTED_ON, RECOMPUTED)),
    ]
    return sorted(dict.fromkeys(every), key=lambda setting: setting != setting.reference)


def run(wanted: Iterable[Setting], work: Path, seconds: float | None = None) -> dict[Setting, Curve]:
    """Losses and gradient norms by step of those that have a result, run now or before.

    Raises:
        AssertionError: A run has failed.
    """
    wanted = list(wanted)
    write_data(work / "data")
    if not (work / "models" / "llama" / "tokenizer.json").is_file():
        make_model("llama", work / "models" / "llama", **changes("llama"))
    drive([setting.as_line(work) for setting in wanted], work, seconds)
    return {setting: curve for setting in wanted if (curve := read(setting, work))}


def read(setting: Setting, work: Path) -> Curve:
    """(loss, gradient norm) a step; empty for a setting without a result."""
    folder = work / "cells" / setting.name
    if not (folder / RESULT).is_file():
        return []
    result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    assert result["code"] == 0, f"{setting.name}: {result['said'][-1500:]}"
    history = json.loads((folder / "out" / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [(entry["loss"], entry["grad_norm"]) for entry in history if "loss" in entry]


def distance(curve: Curve, reference: Curve) -> tuple[float, float]:
    """The largest relative differences of losses and of gradient norms over all steps."""
    assert len(curve) == len(reference) == STEPS
    pairs = list(zip(curve, reference, strict=True))
    return max(abs(a - b) / b for (a, _), (b, _) in pairs), max(abs(a - b) / b for (_, a), (_, b) in pairs)


def distances(curves: dict[Setting, Curve]) -> dict[Setting, tuple[float, float]]:
    """Of every setting whose reference was run, the reference left out."""
    return {
        setting: distance(curve, curves[setting.reference])
        for setting, curve in curves.items()
        if setting != setting.reference and setting.reference in curves
    }


def table(found: dict[Setting, tuple[float, float]]) -> Iterator[str]:
    """Lines of a page: what is furthest away, by way to share the work and by what is recomputed."""
    columns = [(script, method) for script in ("sft", "pt") for method in RATES]
    heads = [f"{script.upper()} {method}" for script, method in columns]
    yield "| | recomputed | " + " | ".join(heads) + " |"
    yield "| --- | --- |" + " ---: |" * len(columns)
    rows = dict.fromkeys((setting.engine, setting.recomputed) for setting in settings())
    for engine, recomputed in rows:
        values = [found.get(Setting(script, method, engine, recomputed)) for script, method in columns]
        if any(values):
            shown = [f"{value[0]:.0e} / {value[1]:.0e}" if value else "" for value in values]
            yield f"| {engine} | {recomputed} | " + " | ".join(shown) + " |"


def main() -> None:
    """Run what is missing and print the table; the exit code says whether all of it is within the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", default="", help="settings whose name begins with this text, and their references")
    parser.add_argument("--seconds", type=float, help="stop after the run in which this time is over")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/deepspeed.md")
    arguments = parser.parse_args()
    wanted = [s for s in settings() if s.name.startswith(arguments.only)]
    found = distances(run(dict.fromkeys([*(s.reference for s in wanted), *wanted]), arguments.work, arguments.seconds))
    lines = list(table(found))
    print("\n".join(lines))
    if arguments.write_docs:
        write_docs(lines)
    sys.exit(any(max(values) > TOLERANCE for values in found.values()))


def write_docs(lines: list[str]) -> None:
    """Between two marks of the page."""
    page = ROOT / "docs" / "deepspeed.md"
    text = page.read_text(encoding="utf-8")
    begin, end = "<!-- parity -->\n", "<!-- /parity -->"
    before, after = text.split(begin)[0], text.split(end)[1]
    page.write_text(before + begin + "\n".join(lines) + "\n" + end + after, encoding="utf-8")


if __name__ == "__main__":
    main()
