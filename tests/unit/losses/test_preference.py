"""Every preference loss: against TRL's with its options, and at values worked out by hand."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trl

from hftune.arguments.preference import DPOArguments
from hftune.losses.preference import LOSSES, Terms, combined, desensitised, log1mexp, of_answers, scores

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # "experimental": compared with, not used
    from trl.experimental.cpo import CPOTrainer
    from trl.experimental.orpo import ORPOTrainer

UNPAIRED = {"kto", "apo_zero_unpaired"}
KL = torch.tensor(0.1)
LENGTHS = ((5, 3), (2, 6), (4, 4))
"""Tokens of chosen and rejected answers."""


def numbers(**given: Any) -> SimpleNamespace:
    """The defaults of the command, with these in their place."""
    return SimpleNamespace(**{one.name: one.default for one in fields(DPOArguments)} | given)


def per_token(seed: int = 0) -> torch.Tensor:
    """Log-probabilities of all tokens, chosen answers first, (tokens,), float64."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(map(sum, LENGTHS))
    return -3 * torch.rand(total, generator=generator, dtype=torch.float64) - 0.05


def lengths() -> torch.Tensor:
    """(answers,), chosen first."""
    return torch.tensor([*(one for one, _ in LENGTHS), *(other for _, other in LENGTHS)])


def terms(
    policy: torch.Tensor,
    reference: torch.Tensor,
    settings: Any = None,
    ld: float | None = None,
    **more: Any,
) -> Terms:
    """As the trainer makes them."""
    settings = settings or numbers()
    sizes = lengths()
    half = len(sizes) // 2
    shared = torch.minimum(sizes[:half], sizes[half:]).repeat(2)
    chosen, rejected = desensitised(policy, sizes, shared, ld).chunk(2)
    ref_chosen, ref_rejected = desensitised(reference, sizes, shared, ld).chunk(2)
    kind, alpha = settings.f_divergence_type, settings.f_alpha_divergence_coef
    first = int(sizes[:half].sum())
    return Terms(
        chosen, rejected, ref_chosen, ref_rejected, sizes[:half].to(chosen), sizes[half:].to(chosen),
        scores(chosen - ref_chosen, kind, alpha), scores(rejected - ref_rejected, kind, alpha),
        nll=-desensitised(policy[:first], sizes[:half], sizes[:half], None), settings=settings, **more,
    )  # fmt: skip


OURS_ALONE = {"dpop", "kto_pair", "simpo", "cpo", "cpo_simpo", "odds_ratio", "orpo", "kto", "apo_zero_unpaired"}
AS_TRL: list[dict[str, Any]] = [
    *({"loss_type": [name]} for name in LOSSES if name not in OURS_ALONE | {"exo_pair", "robust"}),
    *({"loss_type": [name], "label_smoothing": 0.1} for name in ("exo_pair", "robust", "aot", "aot_unpaired")),
    *(
        {"loss_type": [name], "f_divergence_type": kind, "f_alpha_divergence_coef": alpha}
        for name in ("sigmoid", "hinge", "ipo", "sigmoid_norm")
        for kind, alpha in (
            ("forward_kl", 0.5), ("js_divergence", 0.5), ("alpha_divergence", 0.5), ("alpha_divergence", 1.0),
        )
    ),
    {"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0]},
    *({"loss_type": [name], "ld_alpha": 0.3} for name in ("sigmoid", "apo_zero", "ipo")),
    {"loss_type": ["sigmoid"], "use_weighting": True},
    {"loss_type": ["discopop"], "discopop_tau": 1.0},
]  # fmt: skip


def padded(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens side by side as TRL's rows behind a prompt of two tokens: values and completion mask, (answers, width)."""
    width = 2 + max(map(max, LENGTHS))
    rows, masks, at = [], [], 0
    for length in lengths().tolist():
        # Position t of a row's log-probabilities belongs to token t + 1.
        row = torch.nn.functional.pad(values[at : at + length], (1, width - 2 - length))
        rows.append(row)
        masks.append([0, 0] + [1] * length + [0] * (width - 2 - length))
        at += length
    return torch.stack(rows), torch.tensor(masks)


def trl_loss(policy: torch.Tensor, reference: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """What TRL's trainer computes from the same log-probabilities."""
    rows, mask = padded(policy)
    ref_rows, _ = padded(reference)
    zeros = torch.zeros_like(rows)
    names = ("log_probs", "entropy", "mean_logits", "is_top1", "log_sum_sq_probs")
    made = dict(zip(names, (rows, zeros, zeros, zeros.bool(), zeros), strict=True))
    ref = SimpleNamespace(**{**made, "log_probs": ref_rows})
    model = torch.nn.Linear(1, 1)
    model.is_gradient_checkpointing = False
    accelerator = SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
    accelerator.unwrap_model = lambda model: model
    itself = SimpleNamespace(
        model=model,
        ref_model=lambda **kwargs: ref,
        accelerator=accelerator,
        aux_loss_enabled=False,
        precompute_ref_logps=False,
        args=SimpleNamespace(discopop_tau=options.get("discopop_tau", 0.05), gradient_checkpointing_kwargs=None),
        loss_types=options["loss_type"],
        loss_weights=options.get("loss_weights") or [1.0] * len(options["loss_type"]),
        beta=0.3,
        ld_alpha=options.get("ld_alpha"),
        f_divergence_type=options.get("f_divergence_type", "reverse_kl"),
        f_alpha_divergence_coef=options.get("f_alpha_divergence_coef", 0.5),
        label_smoothing=options.get("label_smoothing", 0.0),
        use_weighting=options.get("use_weighting", False),
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    inputs = {"input_ids": mask, "completion_mask": mask, "attention_mask": mask}
    loss: torch.Tensor = trl.DPOTrainer._compute_loss(itself, lambda **kwargs: SimpleNamespace(**made), inputs, False)
    return loss


def our_loss(policy: torch.Tensor, reference: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    settings = numbers(beta=0.3, **options)
    made = terms(policy, reference, settings, options.get("ld_alpha"))
    weights = None
    if options.get("use_weighting"):
        weights = (made.chosen / made.chosen_tokens + made.rejected / made.rejected_tokens).exp().detach()
    parts = combined(
        made, options["loss_type"], options.get("loss_weights") or [1.0] * len(options["loss_type"]), weights
    )
    return parts.over(counted(made))


def counted(made: Terms) -> torch.Tensor:
    """Pairs and chosen tokens of the batch alone, as TRL takes its means."""
    return torch.stack([torch.tensor(float(len(made.chosen))), made.chosen_tokens.sum()])


@pytest.mark.parametrize("options", AS_TRL, ids=lambda options: "-".join(map(str, options.values())))
def test_as_trl(options: dict[str, Any]) -> None:
    found = []
    for compute in (trl_loss, our_loss):
        policy = per_token(1).float().requires_grad_()
        loss = compute(policy, per_token(2).float(), options)
        loss.backward()
        found.append((loss.detach(), policy.grad))
    torch.testing.assert_close(found[1][0], found[0][0], atol=1e-6, rtol=1e-5)
    assert found[0][1].abs().max() > 1e-4
    torch.testing.assert_close(found[1][1], found[0][1], atol=1e-6, rtol=1e-5)


def test_every_loss_of_trl_is_there() -> None:
    listed = trl.DPOConfig.__dataclass_fields__["loss_type"].metadata["help"]
    theirs = {word.strip("`',.") for word in listed.split() if word.startswith("`'")}
    assert theirs and theirs <= set(LOSSES)


@pytest.mark.parametrize("kind", ["simpo", "sigmoid"])
def test_simpo_and_cpo_as_trl(kind: str) -> None:
    made = terms(per_token(1), per_token(2), numbers(beta=2.0, simpo_gamma=0.7, label_smoothing=0.1, cpo_alpha=0.0))
    itself = SimpleNamespace(
        loss_type=kind, beta=2.0, simpo_gamma=0.7, label_smoothing=0.1, alpha=0.0,
        accelerator=SimpleNamespace(device="cpu"),
    )  # fmt: skip
    inputs = made.averages if kind == "simpo" else (made.chosen, made.rejected)
    expected, _, _ = CPOTrainer.cpo_loss(itself, *inputs)
    name = "simpo" if kind == "simpo" else "cpo"
    torch.testing.assert_close(LOSSES[name].of(made), expected)
    if kind == "simpo":
        torch.testing.assert_close(LOSSES["cpo_simpo"].of(made), expected)
    assert combined(made, ["cpo_simpo"], [1.0], None).of_tokens is None, "alpha is 0"


def test_orpo_as_trl() -> None:
    made = terms(per_token(1), per_token(2), numbers(beta=0.2))
    itself = SimpleNamespace(beta=0.2, accelerator=SimpleNamespace(device="cpu"))
    chosen, rejected = made.averages
    losses, *_ = ORPOTrainer.odds_ratio_loss(itself, chosen, rejected)
    # TRL subtracts the mean of these from the NLL.
    expected = made.nll.sum() / made.chosen_tokens.sum() - losses.mean()
    assert float(combined(made, ["orpo"], [1.0], None).over(counted(made))) == pytest.approx(float(expected), abs=1e-5)


def s(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def pair(settings: Any, differences: list[float] | None = None, kl: float | None = None) -> Terms:
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
BY_HAND = {
    # beta z = 1
    "sigmoid smoothed": ({"label_smoothing": 0.1}, -0.9 * LOG(s(1)) - 0.1 * LOG(s(-1))),
    # the chosen answer became more likely: no penalty
    "dpop": ({}, -LOG(s(1))),
    # KL of the chosen half max(0, 1), of the rejected half max(0, -1)
    "kto_pair": ({}, (1 - s(0.5 * 1) + 1 - s(0.5 * (1 - -1))) / 2),
    "kto": ({}, (1 - s(0.5 * (1 - 0.4)) + 1 - s(0.5 * (0.4 + 1))) / 2),
    "apo_zero_unpaired": ({}, (1 - s(0.5) + s(-0.5)) / 2),
    # 0.5 * (-1 + 3) - 0.3
    "simpo": ({"simpo_gamma": 0.3}, -LOG(s(0.7))),
    "cpo": ({"cpo_alpha": 2.0}, -LOG(s(1)) + 2.0),
    "cpo_simpo": ({"simpo_gamma": 0.3, "cpo_alpha": 2.0}, -LOG(s(0.7)) + 2.0),
    "odds_ratio": ({}, -LOG(s(ODDS))),
    "orpo": ({}, 1.0 - 0.5 * LOG(s(ODDS))),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND)
def test_worked_by_hand(case: str) -> None:
    options, expected = BY_HAND[case]
    made = pair(numbers(beta=BETA, **options), kl=0.4)
    found = combined(made, [case.split()[0]], [1.0], None).over(torch.tensor([1.0, 4.0]))
    assert float(found) == pytest.approx(expected, abs=1e-6)
    assert combined(made, ["sigmoid"], [1.0], None).of_tokens is None, "what tokens have no part in is no sum of zeros"


def test_all_are_worked_by_hand_or_as_trl() -> None:
    assert {*BY_HAND} >= OURS_ALONE and OURS_ALONE.union(*(one["loss_type"] for one in AS_TRL)) == set(LOSSES)


@pytest.mark.parametrize("name", LOSSES)
def test_what_a_loss_says_of_itself(name: str) -> None:
    """Rules ask for it, and a loss without a reference is trained without one in memory."""
    said, of = LOSSES[name], LOSSES[name].of
    made, other = (terms(per_token(1), per_token(seed), numbers(label_smoothing=0.1), kl=KL) for seed in (2, 3))

    def reads(**changes: Any) -> bool:
        return not torch.equal(of(replace(made, **changes)), of(made))

    assert said.reference == (not torch.equal(of(other), of(made)))
    assert said.a_token == reads(chosen_tokens=made.chosen_tokens * 2)
    assert said.difference == reads(chosen_scores=made.chosen_scores + 1)
    assert said.smoothed == reads(settings=numbers(label_smoothing=0.2))
    assert said.unpaired == (name in UNPAIRED)
    # Of each pair by itself; in kto_pair the halves of a batch estimate each other's KL.
    names = [one.name for one in fields(Terms) if one.name not in ("settings", "differences", "kl")]
    alone = [of(replace(made, **{name: getattr(made, name)[at : at + 1] for name in names})) for at in range(3)]
    assert torch.allclose(torch.cat(alone), of(made)) == (not said.sorts and name != "kto_pair")


def test_offset() -> None:
    """ODPO with alpha 2 and a difference of e: beta z - 2 * 1; a difference of 1 is no offset, nor is none at all."""
    settings = numbers(beta=BETA, offset_alpha=2.0)
    for differences, wanted in (([math.e], 1 - 2), ([1.0], 1), (None, 1)):
        assert float(LOSSES["sigmoid"].of(pair(settings, differences))) == pytest.approx(-LOG(s(wanted)), abs=1e-5)
    assert LOSSES["sigmoid"].of(pair(settings, [0.0])).isfinite().all(), "two answers may have the same score"


def test_dpop_penalises_chosen_answers_that_became_less_likely() -> None:
    made = Terms(
        *(torch.tensor([value]) for value in (-6.0, -9.0, -5.0, -5.0, 4.0, 2.0, -1.0, -4.0)),
        nll=torch.tensor([1.0]), settings=numbers(beta=BETA, dpop_lambda=3.0),
    )  # fmt: skip
    # z = 3, less 3 * max(0, 1)
    assert float(LOSSES["dpop"].of(made)) == pytest.approx(-LOG(s(0.0)))


def test_each_half_of_kto_pairs_is_measured_by_the_other() -> None:
    """Ratios 1 and 3 against 2 and -1: the chosen half's KL is their mean 2, that of the rejected half 0.5."""
    chosen = torch.tensor([1.0, 3.0], requires_grad=True)
    made = Terms(
        chosen, *(torch.tensor(values) for values in ([2.0, -1.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0])),
        torch.tensor([1.0, 3.0]), torch.tensor([2.0, -1.0]), nll=torch.tensor([1.0, 1.0]), settings=numbers(beta=BETA),
    )  # fmt: skip
    first = (1 - s(0.5 * (1 - 0.5)) + 1 - s(0.5 * (2 - 2))) / 2
    second = (1 - s(0.5 * (3 - 0.5)) + 1 - s(0.5 * (2 + 1))) / 2
    losses = LOSSES["kto_pair"].of(made)
    assert losses.tolist() == pytest.approx([first, second])
    losses.sum().backward()
    # The estimates are constants: an answer's gradient is that of its own term.
    slopes = [-BETA / 2 * s(x) * (1 - s(x)) for x in (0.5 * (1 - 0.5), 0.5 * (3 - 0.5))]
    assert chosen.grad is not None and chosen.grad.tolist() == pytest.approx(slopes)


def test_kto_weights_and_labels() -> None:
    ratios, good, kl = torch.tensor([1.0, 1.0]), torch.tensor([True, False]), torch.tensor(0.4)
    settings = numbers(beta=BETA, desirable_weight=2.0, undesirable_weight=3.0)
    for name, expected in (
        ("kto", [2 * (1 - s(0.5 * 0.6)), 3 * (1 - s(-0.5 * 0.6))]),
        ("apo_zero_unpaired", [2 * (1 - s(0.5)), 3 * s(0.5)]),
    ):
        assert of_answers(name, ratios, good, kl, settings).tolist() == pytest.approx(expected)


def test_length_desensitised() -> None:
    """Answers of 3 and 1 tokens: two tokens beyond the shorter length count half."""
    logps = torch.tensor([-1.0, -2.0, -4.0, -8.0])
    found = desensitised(logps, torch.tensor([3, 1]), torch.tensor([1, 1]), 0.5)
    assert found.tolist() == [-4.0, -8.0]
    assert desensitised(logps, torch.tensor([3, 1]), torch.tensor([1, 1]), None).tolist() == [-7.0, -8.0]


@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"])
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
    made = terms(policy, per_token(1), numbers(beta=0.3, label_smoothing=0.0))
    combined(made, [name], [1.0], None).over(torch.ones(2)).backward()
    step = -policy.grad
    sizes = int(made.chosen_tokens.sum())
    assert step[:sizes].sum() - step[sizes:].sum() > 0
