"""The learning rate at every step equals the closed form, for each group and after resuming."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError
from hftune.trainers.optimizers.schedules import learning_rate_factor, make_schedule, shape_options, wsd_factor

STEPS, WARMUP, RATE, FLOOR = 40, 8, 2e-4, 0.1


def training(*flags: str) -> Any:
    """Training arguments at the rate 2e-4."""
    return parse_arguments("pt", ["--model_name_or_path", "m", "--output_dir", "o", "--learning_rate", "2e-4", *flags])[
        3
    ]


def over(step: int, end: int = STEPS) -> float:
    """Share of the time after the warm-up that is over, at most 1."""
    return min(1.0, (step - WARMUP) / (end - WARMUP))


# Flags, and the factor after the warm-up; during the warm-up it is step / 8.
FORMS: dict[str, tuple[list[str], Callable[[int], float]]] = {
    "constant": ([], lambda step: 1.0),
    "constant_with_warmup": ([], lambda step: 1.0),
    "linear": ([], lambda step: 1 - over(step)),
    "cosine": ([], lambda step: (1 + math.cos(math.pi * over(step))) / 2),
    "cosine two waves": (["--num_cycles", "2"], lambda step: (1 + math.cos(4 * math.pi * over(step))) / 2),
    "cosine_with_restarts": (
        ["--num_cycles", "3"],
        lambda step: 0.0 if over(step) == 1 else (1 + math.cos(math.pi * (3 * over(step) % 1))) / 2,
    ),
    "polynomial": (
        ["--power", "2", "--lr_end", "2e-5"],
        lambda step: 0.1 + 0.9 * (1 - over(step)) ** 2,
    ),
    "inverse_sqrt": ([], lambda step: math.sqrt(WARMUP / step)),
    # A tenth of 40 steps decays.
    "warmup_stable_decay": ([], lambda step: min(1.0, (STEPS - min(step, STEPS)) / 4)),
    "warmup_stable_decay long": (
        ["--lr_wsd_decay_steps", "0.5", "--lr_wsd_decay_style", "1-sqrt"],
        lambda step: 1 - math.sqrt(max(0, min(step, STEPS) - 20) / 20),
    ),
}
STYLES: dict[str, Callable[[float], float]] = {
    "linear": lambda p: 1 - p,
    "cosine": lambda p: (1 + math.cos(math.pi * p)) / 2,
    "1-sqrt": lambda p: 1 - math.sqrt(p),
    "exponential": lambda p: 2 * 0.5**p - 1,
}
FLOORED = {
    "linear": lambda step: FLOOR + (1 - FLOOR) * (1 - over(step)),
    "cosine": lambda step: FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * over(step))) / 2,
    "cosine_with_min_lr": lambda step: FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * over(step))) / 2,
    "cosine_with_restarts": lambda step: (
        FLOOR if over(step) == 1 else FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * over(step))) / 2
    ),
    "polynomial": lambda step: FLOOR + (1 - FLOOR) * (1 - over(step)),
    "inverse_sqrt": lambda step: max(FLOOR, math.sqrt(WARMUP / step)),
    "warmup_stable_decay": lambda step: FLOOR + (1 - FLOOR) * min(1.0, (STEPS - min(step, STEPS)) / 4),
}


def expected(after: Callable[[int], float], step: int, warms_up: bool = True) -> float:
    """The closed form with its linear warm-up."""
    return step / WARMUP if warms_up and step < WARMUP else after(step)


@pytest.mark.parametrize("name", FORMS)
def test_closed_forms(name: str) -> None:
    flags, after = FORMS[name]
    kind = name.split()[0]
    warmup = [] if kind == "constant" else ["--warmup_steps", str(WARMUP)]
    factor = learning_rate_factor(training("--lr_scheduler_type", kind, *warmup, *flags), STEPS)
    for step in range(STEPS + 5):
        assert factor(step) == pytest.approx(expected(after, step, bool(warmup)), abs=1e-12), step


@pytest.mark.parametrize("kind", FLOORED)
def test_a_floor(kind: str) -> None:
    flags = ["--lr_scheduler_type", kind, "--warmup_steps", "0.2", "--min_lr", "2e-5"]
    factor = learning_rate_factor(training(*flags), STEPS)
    for step in range(STEPS + 5):
        assert factor(step) == pytest.approx(expected(FLOORED[kind], step), abs=1e-12), step


@pytest.mark.parametrize("kind", ["linear", "cosine", "warmup_stable_decay"])
def test_an_end_before_the_last_step(kind: str) -> None:
    """The schedule is that of a shorter run, and then stays where it ended."""
    flags = ["--lr_scheduler_type", kind, "--warmup_steps", "0.2", "--min_lr", "2e-5"]
    short = learning_rate_factor(training(*flags), 20)
    factor = learning_rate_factor(training(*flags, "--lr_decay_steps", "20"), STEPS)
    assert [factor(step) for step in range(20)] == [short(step) for step in range(20)]
    assert [factor(step) for step in range(20, STEPS)] == pytest.approx([FLOOR] * 20)


def test_options_of_transformers_are_handed_on() -> None:
    """Under their own names they mean what our flags mean."""
    flags = ["--lr_scheduler_type", "warmup_stable_decay", "--warmup_steps", "8", "--min_lr", "2e-5"]
    theirs = training(*flags, "--lr_scheduler_kwargs", '{"num_decay_steps": 10, "decay_type": "1-sqrt"}')
    ours = training(*flags, "--lr_wsd_decay_steps", "10", "--lr_wsd_decay_style", "1-sqrt")
    steps = range(STEPS + 5)
    expected = [learning_rate_factor(ours, STEPS)(step) for step in steps]
    assert [learning_rate_factor(theirs, STEPS)(step) for step in steps] == pytest.approx(expected)


def test_a_warm_up_of_its_own() -> None:
    """cosine_warmup_with_min_lr is transformers' as it is: it starts at 1 / warm-up, not at 0."""
    flags = ["--lr_scheduler_type", "cosine_warmup_with_min_lr", "--warmup_steps", "8", "--min_lr", "2e-5"]
    factor = learning_rate_factor(training(*flags), STEPS)
    assert factor(0) == pytest.approx(1 / 8)
    # Step 39 is the last of 40: (39 - 8 + 1) / 32 = 1, the floor.
    assert factor(39) == pytest.approx(FLOOR)


def run(
    args: Any, optimizer: torch.optim.Optimizer, start: dict | None = None, steps: int = STEPS
) -> list[list[float]]:
    """Rates of all groups before each of `steps` steps."""
    schedule = make_schedule(args, optimizer, STEPS)
    if start:
        schedule.load_state_dict(start)
    rates = []
    for _ in range(steps):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    return rates


def two_groups() -> torch.optim.Optimizer:
    """One at the rate 2e-4, one at 16 times that."""
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    return torch.optim.SGD([{"params": [weights[0]], "lr": 2e-4}, {"params": [weights[1]], "lr": 32e-4}])


def test_resuming_follows_the_arguments_of_now() -> None:
    """The checkpoint holds the step; a floor that was asked for since then counts."""
    before = training("--lr_scheduler_type", "cosine", "--warmup_steps", "8")
    optimizer = two_groups()
    schedule = make_schedule(before, optimizer, STEPS)
    for _ in range(15):
        optimizer.step()
        schedule.step()
    state = schedule.state_dict()
    now = training("--lr_scheduler_type", "cosine", "--warmup_steps", "8", "--min_lr", "2e-5")
    factor = learning_rate_factor(now, STEPS)
    resumed = two_groups()
    rates = run(now, resumed, start=state, steps=10)
    # The first rate after loading is the checkpoint's optimizer's; from its first step on, the schedule's.
    assert [low for low, _ in rates[1:]] == pytest.approx([RATE * factor(step) for step in range(16, 25)])
    assert [high for _, high in rates] == pytest.approx([16 * low for low, _ in rates]), "each group keeps its share"
    torch.save(state, "/dev/null")


def test_floors_of_plateaus_are_in_proportion() -> None:
    flags = ["--eval_strategy", "steps", "--min_lr", "2e-5"]
    plateau = make_schedule(training("--lr_scheduler_type", "reduce_lr_on_plateau", *flags), two_groups(), STEPS)
    assert plateau.min_lrs == pytest.approx([2e-5, 32e-5])
    greedy = make_schedule(training("--lr_scheduler_type", "greedy", *flags), two_groups(), STEPS)
    assert greedy.min_lrs == pytest.approx([2e-5, 32e-5])


@pytest.mark.parametrize(
    "flags, part",
    [
        (["--lr_scheduler_type", "polynomial", "--warmup_steps", "40"], "leaves none for the decay"),
        (
            ["--lr_scheduler_type", "wsd", "--warmup_steps", "30", "--lr_wsd_decay_steps", "20"],
            "longer than the schedule",
        ),
    ],
)
def test_no_steps_left(flags: list[str], part: str) -> None:
    with pytest.raises(ArgumentError, match=part):
        learning_rate_factor(training(*flags), STEPS)


@given(
    warmup=st.integers(0, 9), stable=st.integers(0, 9), decay=st.integers(1, 9), style=st.sampled_from(sorted(STYLES))
)
def test_any_warm_up_stable_and_decay(warmup: int, stable: int, decay: int, style: str) -> None:
    """Up in equal parts, flat at 1, down without a rise, and 0 from the end on."""
    end = warmup + stable + decay
    factors = [wsd_factor(step, warmup=warmup, decay=decay, end=end, style=style) for step in range(end + 3)]
    assert factors[:warmup] == [step / warmup for step in range(warmup)]
    assert factors[warmup : end - decay + 1] == [1.0] * (stable + 1)
    down = factors[end - decay :]
    assert down == sorted(down, reverse=True) and down[-3:] == pytest.approx([0.0] * 3, abs=1e-12)
    assert down[:decay] == pytest.approx([STYLES[style](step / decay) for step in range(decay)], abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "flags", "wanted"),
    [
        ("polynomial", ["--power", "2"], {"more": 1, "power": 2.0}),
        ("polynomial", ["--power", "2", "--lr_end", "1e-6"], {"more": 1, "power": 2.0, "lr_end": 1e-6}),
        ("polynomial", ["--min_lr", "1e-5", "--lr_end", "1e-6"], {"more": 1, "lr_end": 0.0}),
        ("cosine", ["--num_cycles", "1.5", "--power", "2"], {"more": 1, "num_cycles": 1.5}),
        ("cosine_with_restarts", ["--num_cycles", "3"], {"more": 1, "num_cycles": 3}),
        ("cosine_with_min_lr", ["--min_lr", "2e-5"], {"more": 1, "min_lr_rate": 0.1}),
        ("linear", ["--num_cycles", "3", "--min_lr", "2e-5", "--power", "3"], {"more": 1}),
    ],
)
def test_options_are_those_given_and_those_of_flags(kind: str, flags: list[str], wanted: dict[str, Any]) -> None:
    args = training("--lr_scheduler_type", kind, "--lr_scheduler_kwargs", '{"more": 1}', *flags)
    assert shape_options(args) == pytest.approx(wanted)
    plain = training("--lr_scheduler_type", kind, *flags)
    assert shape_options(plain) == pytest.approx({name: value for name, value in wanted.items() if name != "more"})
    assert all(type(shape_options(args)[name]) is type(value) for name, value in wanted.items())
