"""Losses at values worked out by hand, and properties that the papers state."""

from __future__ import annotations

import math

import pytest
import torch

from hftune.arguments.preference import DPOArguments
from hftune.trainers.losses.divergences import F_DIVERGENCES, desensitised, scores
from hftune.trainers.losses.reference_free import log1mexp
from hftune.trainers.losses.table import LOSSES, combined
from hftune.trainers.losses.terms import Settings, Terms
from hftune.trainers.losses.unpaired import apo_zero_unpaired, kto, of_answers
from tests.unit.trainers.losses.batches import per_token, terms


def s(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def pair(settings: Settings, differences: list[float] | None = None, kl: float | None = None) -> Terms:
    """One pair: log pi -4 (4 tokens) and -6 (2 tokens); the reference gives -5 and -5.

    log ratios 1 and -1, so z = 2; a token 1/4 + 1/2 = 0.75; averages -1 and -3.
    """
    number = torch.tensor
    return Terms(
        number([-4.0]), number([-6.0]), number([-5.0]), number([-5.0]), number([4.0]), number([2.0]),
        number([1.0]), number([-1.0]), nll=number([4.0]), settings=settings,
        differences=None if differences is None else number(differences), kl=None if kl is None else number(kl),
    )  # fmt: skip


BETA = 0.5
LOG = math.log
# log odds of exp(-1), a token of the chosen answer, less those of exp(-3)
ODDS = LOG(math.exp(-1) / (1 - math.exp(-1))) - LOG(math.exp(-3) / (1 - math.exp(-3)))
CASES = {
    # beta z = 1
    "sigmoid": ({}, -LOG(s(1))),
    "sigmoid smoothed": ({"label_smoothing": 0.1}, -0.9 * LOG(s(1)) - 0.1 * LOG(s(-1))),
    "hinge": ({}, 0.0),
    # (0.75 - 1/(2 * 0.5))^2
    "ipo": ({}, 0.0625),
    "sigmoid_norm": ({}, -LOG(s(0.375))),
    "robust": ({"label_smoothing": 0.1}, (-0.9 * LOG(s(1)) + 0.1 * LOG(s(-1))) / 0.8),
    "exo_pair": ({"label_smoothing": 0.1}, s(1) * (LOG(s(1)) - LOG(0.9)) + s(-1) * (LOG(s(-1)) - LOG(0.1))),
    # rewards 0.5 and -0.5
    "nca_pair": ({}, -LOG(s(0.5)) - 0.5 * LOG(s(-0.5)) - 0.5 * LOG(s(0.5))),
    "bco_pair": ({}, -2 * LOG(s(0.5))),
    # 0.5 / beta = 1: both on target
    "sppo_hard": ({}, 0.0),
    "apo_zero": ({}, 1 - s(0.5) + s(-0.5)),
    "apo_down": ({}, s(0.5) + 1 - s(1)),
    # policy 2, reference 0
    "aot": ({}, -LOG(s(1))),
    "aot_unpaired": ({}, -LOG(s(1))),
    "discopop": ({"discopop_tau": 1.0}, -LOG(s(1)) * (1 - s(1)) + math.exp(-1) * s(1)),
    # the chosen answer became more likely: no penalty
    "dpop": ({}, -LOG(s(1))),
    # KL of the chosen half max(0, 1), of the rejected half max(0, -1)
    "kto_pair": ({}, (1 - s(0.5 * 1) + 1 - s(0.5 * (1 - -1))) / 2),
    "kto": ({}, (1 - s(0.5 * (1 - 0.4)) + 1 - s(0.5 * (0.4 + 1))) / 2),
    "apo_zero_unpaired": ({}, (1 - s(0.5) + s(-0.5)) / 2),
    "sft": ({}, 1.0),
    # 0.5 * (-1 + 3) - 0.3
    "simpo": ({"simpo_gamma": 0.3}, -LOG(s(0.7))),
    "cpo": ({"cpo_alpha": 2.0}, -LOG(s(1)) + 2.0),
    "cpo_simpo": ({"simpo_gamma": 0.3, "cpo_alpha": 2.0}, -LOG(s(0.7)) + 2.0),
    "odds_ratio": ({}, -LOG(s(ODDS))),
    "orpo": ({}, 1.0 - 0.5 * LOG(s(ODDS))),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_worked_by_hand(case: str) -> None:
    options, expected = CASES[case]
    made = pair(Settings(beta=BETA, **options), kl=0.4)
    found = combined(made, [case.split()[0]], [1.0], None).over(torch.tensor([1.0, 4.0]))
    assert float(found) == pytest.approx(expected, abs=1e-6)
    assert combined(made, ["sigmoid"], [1.0], None).of_tokens is None, "what tokens have no part in is no sum of zeros"


def test_all_are_worked_by_hand() -> None:
    assert {case.split()[0] for case in CASES} == set(LOSSES)


def test_offset() -> None:
    """ODPO with alpha 2 and a difference of e: beta z - 2 * 1; a difference of 1 is no offset."""
    settings = Settings(beta=BETA, offset_alpha=2.0)
    assert float(LOSSES["sigmoid"].of(pair(settings, [math.e]))) == pytest.approx(-LOG(s(1 - 2)), abs=1e-5)
    assert float(LOSSES["sigmoid"].of(pair(settings, [1.0]))) == pytest.approx(-LOG(s(1)), abs=1e-5)
    assert LOSSES["sigmoid"].of(pair(settings, [0.0])).isfinite().all(), "two answers may have the same score"


def test_dpop_penalises_chosen_answers_that_became_less_likely() -> None:
    made = Terms(
        *(torch.tensor([value]) for value in (-6.0, -9.0, -5.0, -5.0, 4.0, 2.0, -1.0, -4.0)),
        nll=torch.tensor([1.0]), settings=Settings(beta=BETA, dpop_lambda=3.0),
    )  # fmt: skip
    # z = 3, less 3 * max(0, 1)
    assert float(LOSSES["dpop"].of(made)) == pytest.approx(-LOG(s(0.0)))


def test_each_half_of_kto_pairs_is_measured_by_the_other() -> None:
    """Ratios 1 and 3 against 2 and -1: the chosen half's KL is their mean 2, that of the rejected half 0.5."""
    made = Terms(
        *(torch.tensor(values) for values in ([1.0, 3.0], [2.0, -1.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0])),
        torch.tensor([1.0, 3.0]), torch.tensor([2.0, -1.0]), nll=torch.tensor([1.0, 1.0]), settings=Settings(beta=BETA),
    )  # fmt: skip
    first = (1 - s(0.5 * (1 - 0.5)) + 1 - s(0.5 * (2 - 2))) / 2
    second = (1 - s(0.5 * (3 - 0.5)) + 1 - s(0.5 * (2 + 1))) / 2
    assert LOSSES["kto_pair"].of(made).tolist() == pytest.approx([first, second])


def test_kto_weights_and_labels() -> None:
    ratios, good = torch.tensor([1.0, 1.0]), torch.tensor([True, False])
    settings = Settings(beta=BETA, desirable_weight=2.0, undesirable_weight=3.0)
    expected = [2 * (1 - s(0.5 * 0.6)), 3 * (1 - s(-0.5 * 0.6))]
    assert kto(ratios, good, 0.4, settings).tolist() == pytest.approx(expected)
    expected = [2 * (1 - s(0.5)), 3 * s(0.5)]
    assert apo_zero_unpaired(ratios, good, settings).tolist() == pytest.approx(expected)
    kl = torch.tensor(0.4)
    assert of_answers("apo_zero_unpaired", ratios, good, kl, settings).tolist() == pytest.approx(expected)
    assert torch.equal(of_answers("kto", ratios, good, kl, settings), kto(ratios, good, kl, settings))


def test_length_desensitised() -> None:
    """Answers of 3 and 1 tokens: two tokens beyond the shorter length count half."""
    logps = torch.tensor([-1.0, -2.0, -4.0, -8.0])
    found = desensitised(logps, torch.tensor([3, 1]), torch.tensor([1, 1]), 0.5)
    assert found.tolist() == [-4.0, -8.0]
    assert desensitised(logps, torch.tensor([3, 1]), torch.tensor([1, 1]), None).tolist() == [-7.0, -8.0]


@pytest.mark.parametrize("kind", F_DIVERGENCES)
def test_scores_are_derivatives_of_f(kind: str) -> None:
    """f'(u) up to a constant, by differences: f = u log u, -log u, u log u - (u + 1) log((u + 1) / 2), alpha."""
    alpha = 0.3
    functions = {
        "reverse_kl": lambda u: u * torch.log(u) - u,
        "forward_kl": lambda u: u - torch.log(u),
        "js_divergence": lambda u: u * torch.log(u) - (u + 1) * torch.log((u + 1) / 2),
        "alpha_divergence": lambda u: (u**alpha / alpha - u) / (alpha - 1),
    }
    u = torch.tensor([0.2, 0.7, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(functions[kind](u).sum(), u)
    torch.testing.assert_close(scores(u.detach().log(), kind, alpha), slope)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_scores_of_ratios_that_overflow_are_finite(dtype: torch.dtype) -> None:
    ratios = torch.tensor([1e4, 2.0], dtype=dtype, requires_grad=True)
    found = scores(ratios, "alpha_divergence", 2.0)
    found.sum().backward()
    assert found.isfinite().all() and ratios.grad is not None and ratios.grad.isfinite().all()
    assert found[1].item() == pytest.approx(math.exp(2.0) - 1, rel=1e-2), "u - 1"


def test_an_unknown_divergence() -> None:
    with pytest.raises(ValueError, match="no divergence"):
        scores(torch.zeros(1), "kl", 0.5)


def test_log1mexp_near_zero_and_far_away() -> None:
    x = torch.tensor([-1e-6, -0.5, -0.7, -20.0, 0.0], dtype=torch.float64, requires_grad=True)
    found = log1mexp(x)
    expected = [math.log(-math.expm1(-1e-6)), math.log(1 - math.exp(-0.5)), math.log(1 - math.exp(-0.7))]
    assert found[:3].tolist() == pytest.approx(expected)
    found.sum().backward()
    assert torch.isfinite(found).all() and torch.isfinite(x.grad).all()
    # In float32 each side has one formula that keeps its digits.
    ends = log1mexp(torch.tensor([-1e-6, -20.0]))
    assert ends.tolist() == pytest.approx([expected[0], -math.exp(-20.0)], rel=1e-5, abs=0.0)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("exo_pair", "sppo_hard", "ipo", "discopop")])
def test_a_step_raises_the_margin(name: str) -> None:
    """Down each loss chosen answers gain on rejected ones (DiscoPOP is not monotone, by design)."""
    policy = per_token(1).requires_grad_()
    made = terms(policy, per_token(1), Settings(beta=0.3, label_smoothing=0.0))
    combined(made, [name], [1.0], None).over(torch.ones(2)).backward()
    step = -policy.grad
    sizes = int(made.chosen_tokens.sum())
    assert step[:sizes].sum() - step[sizes:].sum() > 0


def test_which_losses_reward_an_average_over_tokens() -> None:
    """Those without a reference that their papers state by length; of all others logged rewards are sums."""
    assert {name for name, loss in LOSSES.items() if loss.average} == {"simpo", "cpo_simpo", "odds_ratio", "orpo"}


def test_numbers_of_the_losses_are_those_of_the_command() -> None:
    """`Settings` says so of its defaults."""
    asked = DPOArguments(output_dir="out", report_to="none")
    assert Settings() == Settings(**{name: getattr(asked, name) for name in Settings.__dataclass_fields__})


def test_which_losses_look_at_the_reference() -> None:
    """All others are trained without one in memory."""
    without = {"sft", "simpo", "cpo", "cpo_simpo", "odds_ratio", "orpo"}
    assert {name for name, loss in LOSSES.items() if not loss.reference} == without


def test_an_offset_without_scores_is_none() -> None:
    plain, asked = (pair(Settings(beta=BETA, offset_alpha=alpha)) for alpha in (0.0, 0.5))
    assert LOSSES["sigmoid"].of(asked).tolist() == LOSSES["sigmoid"].of(plain).tolist()
