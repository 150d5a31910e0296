"""The rows of `hftune parity`, as data, and the losses by hand that they are held against."""

from __future__ import annotations

import math

import pytest
import torch

from hftune.tools.parity import plain
from hftune.tools.parity.entry import chosen, parity, taken
from hftune.tools.parity.measure import runs_of
from hftune.tools.parity.models import MODELS, uneven
from hftune.tools.parity.plain import BY_HAND, DIVERGENCES, PAIRS
from hftune.tools.parity.rows import ByHand, Known
from hftune.tools.parity.runs import STOP, Run
from hftune.tools.parity.table import all_rows

ROWS = all_rows()


def test_there_are_rows_of_every_stage_and_each_has_its_own_words() -> None:
    assert len(ROWS) >= 80
    words = [(row.group, row.what) for row in ROWS]
    assert len(set(words)) == len(words)
    assert {row.found.stage for row in ROWS} == {"pt", "sft", "rm", "dpo", "rl", "distill"}


def test_no_row_compares_a_run_with_itself() -> None:
    for row in ROWS:
        assert row.found != row.wanted, row.what
        assert row.figures and row.tolerance >= 0, row.what
    names = {run.name: run for row in ROWS for run in runs_of(row)}
    assert len(names) == len(set(names.values())), "each run has a folder of its own"


def test_what_rows_name_is_there() -> None:
    for row in ROWS:
        assert all(run.model in MODELS for run in runs_of(row)), row.what
        if isinstance(row.wanted, ByHand):
            assert row.wanted.name in BY_HAND
            if row.wanted.name == "preferences":
                assert row.wanted.asked.partition(":")[0] in PAIRS
            assert row.wanted.run.few and row.found.few, "all records in each step"
        if row.found.after is not None and not row.found.tool:
            assert str(STOP) in row.found.after.flags, "a checkpoint is there to resume from"


def test_the_formulas_of_the_rates() -> None:
    """Two steps of warm-up, then four of decay from 1e-3: by hand."""
    half = math.sqrt(0.5)
    by_hand = {
        "linear": [0, 5e-4, 1e-3, 7.5e-4, 5e-4, 2.5e-4],
        "cosine": [0, 5e-4, 1e-3, (1 + half) / 2e3, 5e-4, (1 - half) / 2e3],
        "polynomial": [0, 5e-4, 1e-3, 5.625e-4, 2.5e-4, 6.25e-5],
        "constant_with_warmup": [0, 5e-4, 1e-3, 1e-3, 1e-3, 1e-3],
        "cosine to a tenth": [0, 5e-4, 1e-3, 1e-4 + 9e-4 * (1 + half) / 2, 5.5e-4, 1e-4 + 9e-4 * (1 - half) / 2],
    }
    found = {row.what: row.wanted.values for row in ROWS if isinstance(row.wanted, Known)}
    assert found.keys() == by_hand.keys()
    for name, values in by_hand.items():
        assert found[name] == pytest.approx(values, abs=1e-12), name


def value(name: str, c: float, r: float, c0: float = 0.0, r0: float = 0.0, nc: float = 2.0, nr: float = 4.0) -> float:
    return float(PAIRS[name](*(torch.tensor([x], dtype=torch.float64) for x in (c, r, c0, r0, nc, nr))))


def s(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_the_losses_of_pairs_by_hand() -> None:
    """beta 0.1; a chosen answer of log-probability -2 (2 tokens), a rejected one of -6 (4); the reference -3 and -4."""
    given = {"c": -2.0, "r": -6.0, "c0": -3.0, "r0": -4.0}  # ratios 1 and -2: delta 3
    wanted = {
        "sigmoid": -math.log(s(0.3)),
        "smoothed": -0.9 * math.log(s(0.3)) - 0.1 * math.log(s(-0.3)),
        "robust": (-0.9 * math.log(s(0.3)) + 0.1 * math.log(s(-0.3))) / 0.8,
        "hinge": 0.7,
        "ipo": (0.5 + 0.5 - 5) ** 2,
        "simpo": -math.log(s(0.1 * (-1 + 1.5) - 0.5)),
        "cpo": -math.log(s(0.4)) + 1,
        "orpo": 1 - 0.1 * math.log(s(0.5 - math.log((1 - math.exp(-1)) / (1 - math.exp(-1.5))))),
        "apo_zero": 1 - s(0.1) + s(-0.2),
        "apo_down": s(0.1) + 1 - s(0.3),
        "sppo_hard": (1 - 5) ** 2 + (-2 + 5) ** 2,
        "nca_pair": -math.log(s(0.1)) - 0.5 * math.log(s(-0.1)) - 0.5 * math.log(s(0.2)),
        "dpop": -math.log(s(0.3)),
    }
    assert wanted.keys() == PAIRS.keys()
    for name, by_hand in wanted.items():
        assert value(name, **given) == pytest.approx(by_hand), name
    # DPO-Positive where the chosen answer has become less likely by 1: ratios -1 and -2, delta 1, less 50.
    assert value("dpop", -4.0, -6.0, -3.0, -4.0) == pytest.approx(-math.log(s(0.1 * (1 - 50))))
    assert value("hinge", 10.0, -10.0) == 0.0


def test_divergences_by_hand() -> None:
    student, teacher = (torch.tensor([p, 1 - p], dtype=torch.float64).log() for p in (0.5, 0.25))
    kl = lambda p, q: p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))  # noqa: E731
    wanted = {"forward": kl(0.25, 0.5), "reverse": kl(0.5, 0.25), "jsd": (kl(0.25, 0.375) + kl(0.5, 0.375)) / 2}
    assert wanted.keys() == DIVERGENCES.keys()
    for name, by_hand in wanted.items():
        assert DIVERGENCES[name](student, teacher).sum().item() == pytest.approx(by_hand), name


class Counting(torch.nn.Module):
    """w x, to be brought to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([3.0]))


def test_steps_by_hand() -> None:
    """Of (w - 1)^2 at 3: loss 4, gradient 4, clipped to 1; AdamW's first step is the rate, whatever the gradient."""
    model = Counting()
    found = plain.trained_by_hand(model, lambda model: (model.w - 1).square().sum())
    assert found["loss"][0] == 4.0 and found["grad_norm"][0] == 4.0
    assert found["loss"][1] == pytest.approx((2 - plain.RATE) ** 2, rel=1e-6)
    assert len(found["loss"]) == len(found["grad_norm"]) == 3


def test_a_text_has_no_prompt_and_its_first_token_is_foretold_by_nothing() -> None:
    class Flat(torch.nn.Module):
        def forward(self, ids: torch.Tensor) -> object:
            return type("O", (), {"logits": torch.arange(5.0).repeat(1, ids.shape[1], 1)})

    logs = torch.arange(5.0).log_softmax(-1)
    assert plain.log_probs(Flat(), ([], [1, 2, 3])).tolist() == logs[[2, 3]].tolist()
    assert plain.log_probs(Flat(), ([4], [1, 2, 3])).tolist() == logs[[1, 2, 3]].tolist()


def test_the_command_line() -> None:
    assert taken([]) == ([], None, False, False)
    assert taken(["--only", "a", "b", "--work", "w", "--write-docs"]) == (["a", "b"], "w", False, True)
    assert taken(["--work=w", "--only=x", "--list"]) == (["x"], "w", True, False)
    for words in (["--onl", "x"], ["x"], ["--list=1"], ["--list", "x"], ["--work"]):
        with pytest.raises(Exception, match=r"hftune parity|--work"):
            taken(words)
    with pytest.raises(Exception, match=r"did you mean --only\? hftune parity --help"):
        taken(["--onyl=x"])


def test_patterns_choose_rows(capsys: pytest.CaptureFixture[str]) -> None:
    row = next(row for row in ROWS if "zero3" in row.what)
    assert (
        chosen(row, []) and chosen(row, ["x", "*ZERO3*"]) and chosen(row, ["deepspeed"]) and not chosen(row, ["zero3"])
    )
    parity(["--list", "--only", "learning*"])
    assert capsys.readouterr().out.count("\n") == 5
    with pytest.raises(Exception, match="no row matches nothing"):
        parity(["--only", "nothing"])
    parity(["--help"])
    assert "--write-docs" in capsys.readouterr().out


def test_the_reward_of_random_answers() -> None:
    assert uneven([[2, 4, 5, 6], [1], []]) == [0.75, 0.0, 0.0]


def test_runs_are_told_apart() -> None:
    names = {Run("sft").name, Run("pt").name, Run("sft", ("--seed", "1")).name, Run("sft", after=Run("sft")).name}
    assert len(names) == 4
