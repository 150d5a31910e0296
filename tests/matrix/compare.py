"""What two runs of a case must have in common: the figures and the records of each step."""

from __future__ import annotations

import math
from pathlib import Path

from hftune.tools.reporting.progress import read_progress
from tests.matrix.cases import ONLINE, Case
from tests.matrix.commands import STEPS, stop

Figures = list[dict[str, float]]
"""What was logged, step by step."""

NOT_OF_TRAINING = ("time", "memory_gb", "epoch", "max_steps", "total_flos")
"""Figures of the clock and the machine; those of speed have `per_second` or `seconds` in their names."""
TOLERANCE, ROUNDED = (2e-4, 2e-2), (1.5e-1, 1.0)
"""Relative, and the figure that differences of smaller ones are measured against; the second pair where 16 bits round
what is added in another order."""
SAME_SUMS = ("resume", "recomputation", "recording", "workers")
"""Changes that leave each sum of 16 bits as it is."""
APART: tuple[tuple[dict[str, tuple[str, ...]], tuple[str, ...]], ...] = (
    # A digest of the rows as they are read: prompts that two answers share once, and in RL a round's prompts with each
    # micro batch.
    ({"change": ("layout",)}, ("batch",)),
    ({"stage": ONLINE, "change": ("cut", "unscored")}, ("batch",)),
    ({"change": ("unscored",)}, ("completions/", "entropy", "kl", "logps/", "num_tokens", "tokens", "frac_", "clip_")),
)
"""Figures, by how their names begin, that differ with reason, and the values of cases in which they do."""


def read(folder: Path) -> Figures:
    """The figures of training that do not tell the time."""
    steps = [line for line in read_progress(folder) if "loss" in line]
    return [
        {name: value for name, value in step.items() if value is not None and _is_of_training(name)} for step in steps
    ]


def _is_of_training(name: str) -> bool:
    return name not in NOT_OF_TRAINING and not any(word in name for word in ("second", "time", "mfu"))


def differences(case: Case, one: Figures, other: Figures) -> list[str]:
    """What differs between the two runs of a case, in words; `one` is the first run's."""
    if case.change == "resume":
        one = one[stop(case) :]
    if len(one) != len(other) or not one:
        return [f"{len(one)} steps, then {len(other)}"]
    said = []
    for step, (before, after) in enumerate(zip(one, other, strict=True), start=STEPS - len(one) + 1):
        for name in sorted(before.keys() | after.keys()):
            a, b = before.get(name), after.get(name)
            if _is_to_be_same(case, name, step) and (a is None or b is None or not _near(case, name, a, b)):
                said.append(f"{name} of step {step} is {a}, then {b}")
    return said


def _is_to_be_same(case: Case, name: str, step: int) -> bool:
    """Whether a figure says nothing of what was changed."""
    if case.change == "unscored" and (case.stage != "online_dpo" or case.rounds == "halves"):
        # The loss of the others is a mean over all answers, and which pairs share a step of a round is drawn after the
        # answers are: from the first step on it is another run.
        return name.startswith("reward") and step == 1
    if any(name.startswith(names) and case.has(values) for values, names in APART):
        return False
    # At first the policy is the reference, and which of two zeros is larger is a matter of rounding.
    return not (name == "rewards/accuracies" and step == 1)


def _near(case: Case, name: str, a: float, b: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    rounded = case.precision == "bf16" and case.change not in SAME_SUMS
    # KTO's is the difference of two sums of log-probabilities, each of some hundred nats: 16 bits hold three digits.
    of_sums = name == "kl" and case.stage == "kto"
    if rounded and ("accurac" in name or of_sums):
        return True
    tolerance, smallest = ROUNDED if rounded else TOLERANCE
    smallest = max(smallest, 1.0) if of_sums else smallest
    return a == b if name == "batch" else abs(a - b) <= tolerance * max(abs(a), smallest)
