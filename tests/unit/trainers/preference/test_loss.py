"""The loss of a batch of pairs by hand: which numbers go where, and what is measured of them."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.constants import FILLER
from hftune.models.kernels.heads import AnswerOutput
from hftune.trainers.features.pair_figures import PairFigures, whole_loss
from hftune.trainers.preference.batches import counts_of
from hftune.trainers.preference.loss import PairLoss, forward_answers, likelihoods
from tests.unit.losses.test_preference import numbers

# Two pairs. Chosen answers: (-1, -2) and (-3); rejected: (-4) and (-1, -1, -2).
LOG_PROBS = [-1.0, -2.0, -3.0, -4.0, -1.0, -1.0, -2.0]
LENGTHS = [2, 1, 1, 3]
# Sums -3, -3 and -4, -4; log ratios -1, 1 and 1, -1; so z = -2 and 2.
REF = ([-2.0, -4.0], [-5.0, -3.0])
BETA = 0.5


def s(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def said(log_probs: list[float]) -> AnswerOutput:
    """A model's answer, whose further figures tell its tokens apart."""
    numbers = torch.arange(len(log_probs), dtype=torch.float32)
    return AnswerOutput(
        log_probs=torch.tensor(log_probs, requires_grad=True),
        entropy=numbers,
        is_top1=numbers % 2 == 0,
        mean_logits=10 * numbers,
        log_sum_sq=-numbers / 10,
    )


def outputs_of(log_probs: torch.Tensor) -> Any:
    """A model that says these, (tokens,), whatever it is given."""
    return lambda **given: replace(said(log_probs.tolist()), log_probs=log_probs)


def batch(**changes: Any) -> dict[str, Any]:
    whole = {
        "input_ids": torch.arange(9)[None],
        "answer_ids": torch.arange(7),
        "answer_lengths": torch.tensor(LENGTHS),
        "chosen_total": 3,
        "paired": True,
        "num_tokens": torch.tensor([9]),
    }
    return whole | changes


def pair_loss(ref: Any = REF, training: bool = True, reduce: Any = lambda value, how: value, **args: Any) -> PairLoss:
    own = {"loss_type": ["sigmoid"], "loss_weights": None, "use_weighting": False, "ld_alpha": None}
    run: Any = SimpleNamespace(
        args=numbers(**own | {"normalize_logps": False, "beta": BETA} | args),
        model=SimpleNamespace(training=training),
        accelerator=SimpleNamespace(reduce=reduce, device=torch.device("cpu")),
    )
    sums = tuple(torch.tensor(part) for part in ref)
    policy: Any = SimpleNamespace(sums=lambda inputs: sums, of_answers=lambda inputs: torch.cat(sums))
    policy.of_mismatched = lambda inputs: torch.tensor([-2.0, -1.0])
    return PairLoss(run, policy, PairFigures(torch.device("cpu")))


def loss_of(made: PairLoss, **changes: Any) -> float:
    model: Any = lambda **given: said(LOG_PROBS)  # noqa: E731
    return float(made.loss(model, batch(**changes))[0].detach())


def measured(made: PairLoss, kind: str = "train") -> dict[str, float]:
    found = made.figures.metrics[kind].means(made.run.accelerator)
    return {"loss": whole_loss(found), **found} if "loss/pairs" in found else found


def test_terms() -> None:
    terms = pair_loss().terms(said(LOG_PROBS), batch(differences=torch.tensor([1.0, 4.0])))
    assert (terms.chosen.tolist(), terms.rejected.tolist()) == ([-3.0, -3.0], [-4.0, -4.0])
    assert (terms.ref_chosen.tolist(), terms.ref_rejected.tolist()) == REF
    assert (terms.chosen_tokens.tolist(), terms.rejected_tokens.tolist()) == ([2.0, 1.0], [1.0, 3.0])
    assert (terms.chosen_scores.tolist(), terms.rejected_scores.tolist()) == ([-1.0, 1.0], [1.0, -1.0])
    assert terms.nll.tolist() == [3.0, 3.0], "1 + 2, and 3"
    assert terms.differences.tolist() == [1.0, 4.0] and terms.settings.beta == BETA
    # Of another divergence: 1 - 1/u.
    other = pair_loss(f_divergence_type="forward_kl").terms(said(LOG_PROBS), batch())
    assert other.chosen_scores.tolist() == pytest.approx([1 - math.e, 1 - 1 / math.e])
    assert other.rejected_scores.tolist() == pytest.approx([1 - 1 / math.e, 1 - math.e])
    assert other.differences is None


def test_losses_are_added_with_their_weights() -> None:
    sigmoid = (-math.log(s(-1)) - math.log(s(1))) / 2
    assert loss_of(pair_loss()) == pytest.approx(sigmoid)
    both = {"loss_type": ["sigmoid", "sft"]}
    assert loss_of(pair_loss(**both)) == pytest.approx(sigmoid + 2.0)
    assert loss_of(pair_loss(**both, loss_weights=[0.8, 0.5])) == pytest.approx(0.8 * sigmoid + 1.0)


def test_a_record_that_fills_up_counts_nowhere() -> None:
    made = pair_loss(training=False, loss_type=["sigmoid", "sft"])
    filled = {FILLER: torch.tensor([False, True]), "differences": torch.tensor([1.0, 4.0])}
    # The first pair alone: z = -2, and (1 + 2) / 2 a token.
    assert loss_of(made, **filled) == pytest.approx(-math.log(s(-1)) + 1.5)
    assert made.terms(said(LOG_PROBS), batch(**filled)).differences.tolist() == [1.0]
    found = measured(made, "eval")
    assert found["rewards/chosen"] == -0.5 and found["logps/rejected"] == -4.0
    # Tokens 0 and 1 of the chosen answer, 3 of the rejected one.
    assert found["entropy"] == pytest.approx((0 + 1 + 3) / 3)
    assert (found["logits/chosen"], found["logits/rejected"], found["mean_token_accuracy"]) == (5.0, 30.0, 0.5)
    assert measured(made, "train") == {} and made.figures.seen_tokens == 0


def test_metrics_of_training() -> None:
    tied = pair_loss(ref=([-3.0, -3.0], [-4.0, -4.0]))
    loss_of(tied)
    assert measured(tied)["rewards/accuracies"] == 0.0, "a tie, as at the first step, is no right answer"
    single = pair_loss(ref=([-3.0, -3.0], [-4.0, -4.0]), loss_type=["apo_zero_unpaired"])
    loss_of(single, **LABELS)
    assert measured(single)["rewards/accuracies"] == 0.5, "no reward is right for the two bad ones"
    made = pair_loss()
    loss = loss_of(made)
    assert made.figures.seen_tokens == 9
    loss_of(made)
    assert made.figures.seen_tokens == 18 and measured(made, "eval") == {}
    assert measured(made) == pytest.approx({
        "loss": loss, "rewards/chosen": 0.0, "rewards/rejected": 0.0, "rewards/accuracies": 0.5, "rewards/margins": 0.0,
        "logps/chosen": -3.0, "logps/rejected": -4.0, "entropy": 3.0, "logits/chosen": 10.0, "logits/rejected": 45.0,
        "mean_token_accuracy": 2 / 3,
    })  # fmt: skip


def test_rewards_are_what_losses_compare() -> None:
    terms = pair_loss().terms(said(LOG_PROBS), batch())
    for names in (["sigmoid"], ["sigmoid", "sft"], ["simpo", "sigmoid"]):
        chosen, rejected = pair_loss(loss_type=names).rewards(terms)
        assert (chosen.tolist(), rejected.tolist()) == ([-0.5, 0.5], [0.5, -0.5]) and not chosen.requires_grad
    other = pair_loss(ref=([-2.0, -7.0], [-6.0, -3.0]))  # ratios -1 and 4, 2 and -1
    chosen, rejected = other.rewards(other.terms(said(LOG_PROBS), batch()))
    assert (chosen.tolist(), rejected.tolist()) == ([-0.5, 2.0], [1.0, -0.5])
    # Without a reference, log-probabilities a token: -3 / 2, -3 and -4, -4 / 3.
    chosen, rejected = pair_loss(loss_type=["simpo", "sft"]).rewards(terms)
    assert chosen.tolist() == [-0.75, -1.5] and rejected.tolist() == pytest.approx([-2.0, -2 / 3])
    assert not chosen.requires_grad and not rejected.requires_grad
    assert pair_loss(loss_type=["cpo"]).rewards(terms)[0].tolist() == [-0.5, 0.5]


def test_sums_of_answers() -> None:
    outputs = said(LOG_PROBS)
    assert pair_loss().answer_sums(outputs, batch()).tolist() == [-3.0, -3.0, -4.0, -4.0]
    # Beyond the shorter answer of the pair, 1 token in both, half of each.
    halved = pair_loss(ld_alpha=0.5)
    assert halved.answer_sums(outputs, batch()).tolist() == [-2.0, -3.0, -4.0, -2.5]
    assert halved.answer_sums(outputs, batch(paired=False)).tolist() == [-3.0, -3.0, -4.0, -4.0]
    # Mean lengths 1.5 and 2: each a token, times these.
    normalised = pair_loss(normalize_logps=True)
    assert normalised.answer_sums(outputs, batch()).tolist() == pytest.approx([-2.25, -6.0, -6.0, -8 / 3])
    assert normalised.answer_sums(outputs, batch(paired=False)).tolist() == [-3.0, -3.0, -4.0, -4.0]


def test_weights_of_pairs_by_hand() -> None:
    """Mean log-probabilities less those of sums of squares, -0, -0.1, ..., a token; e to these, of both answers."""
    means = [(-1 + 0.0 - 2 + 0.1) / 2, -3 + 0.2, -4 + 0.3, (-4 + 0.4 + 0.5 + 0.6) / 3]
    wanted = [math.exp(means[0] + means[2]), math.exp(means[1] + means[3])]
    outputs = said(LOG_PROBS)
    found = likelihoods(outputs, batch())
    assert found.tolist() == pytest.approx(wanted) and not found.requires_grad
    assert likelihoods(outputs, batch(**{FILLER: torch.tensor([True, False])})).tolist() == pytest.approx(wanted[1:])
    weighted = (-math.log(s(-1)) * wanted[0] - math.log(s(1)) * wanted[1]) / 2
    assert loss_of(pair_loss(use_weighting=True)) == pytest.approx(weighted)


def test_divergence_is_a_mean_over_all_ranks_and_never_negative() -> None:
    inputs = batch(kl=batch(answer_lengths=torch.tensor([2, 1]), paired=False))
    model: Any = lambda **given: said([1.0, 0.5, 2.0])  # noqa: E731
    # Ratios 1.5 + 2 = 3.5 and 2 + 1 = 3.
    assert float(pair_loss().divergence(model, [inputs])) == 3.25
    assert float(pair_loss().divergence(model, [inputs | {FILLER: torch.tensor([False, True])}])) == 3.5
    assert float(pair_loss().divergence(model, [inputs | {FILLER: torch.tensor([True, True])}])) == 0
    # Another rank has one ratio of 0.5: (6.5 + 0.5) / 3. Or -9 in all: 0.
    two = pair_loss(reduce=lambda value, how: value + torch.tensor([0.5, 1.0]) if how == "sum" else None)
    assert float(two.divergence(model, [inputs])) == pytest.approx(7 / 3)
    assert float(pair_loss(reduce=lambda value, how: -value).divergence(model, [inputs])) == 0
    # Of two micro batches, of which the second's first answer only fills up: (3.5 + 3 + 3) / 3.
    more = inputs | {FILLER: torch.tensor([True, False])}
    assert float(pair_loss().divergence(model, [inputs, more])) == pytest.approx(9.5 / 3)
    kto = pair_loss(loss_type=["kto"])
    (wanted,) = {(4 - s(0.5 * (-1 - 3.25)) - s(0.5 * (3.25 - 1)) - s(0.5 * (1 - 3.25)) - s(0.5 * (3.25 + 1))) / 4}
    answers = iter([said([1.0, 0.5, 2.0]), said(LOG_PROBS)])  # first the estimate, then the pass with gradients
    assert float(kto.loss(lambda **given: next(answers), inputs)[0].detach()) == pytest.approx(wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "loss_type", [["orpo"], ["cpo"], ["cpo_simpo"], ["simpo"], ["sigmoid", "sft"], ["sft"], ["ipo"]]
)
def test_a_step_is_the_same_however_it_is_split(loss_type: list[str]) -> None:
    """Both pairs in one batch = one in each of two, over what they have together; their gradients as well."""
    numbers = {"loss_type": loss_type, "loss_weights": [0.5, 2.0][-len(loss_type) :]}
    given = torch.tensor(LOG_PROBS, requires_grad=True)
    whole, _ = pair_loss(**numbers).loss(outputs_of(given), batch())
    (wanted,) = torch.autograd.grad(whole, given)
    counted = torch.tensor([2.0, 3.0])  # pairs, and tokens of chosen answers
    parts = []
    for number, (tokens, lengths) in enumerate([([0, 1, 3], [2, 1]), ([2, 4, 5, 6], [1, 3])]):
        own = batch(answer_lengths=torch.tensor(lengths), chosen_total=lengths[0], answer_ids=torch.tensor(tokens))
        made = pair_loss(ref=[[side[number]] for side in REF], **numbers)
        parts.append(made.loss(outputs_of(given[tokens]), own, counted)[0])
    torch.testing.assert_close(sum(parts), whole)
    torch.testing.assert_close(torch.autograd.grad(sum(parts), given)[0], wanted)  # type: ignore[arg-type]


def test_what_a_batch_counts() -> None:
    assert counts_of(batch()).tolist() == [2.0, 3.0]
    assert counts_of(batch(**{FILLER: torch.tensor([False, True])})).tolist() == [1.0, 2.0]
    assert counts_of(batch(**{FILLER: torch.tensor([True, True])})).tolist() == [0.0, 0.0]
    assert counts_of(batch(paired=False)).tolist() == [4.0, 7.0]
    assert counts_of(batch(paired=False, **{FILLER: torch.tensor([True, False, False, True])})).tolist() == [2.0, 2.0]


LABELS = {"label": torch.tensor([True, False, False, True]), "paired": False}


def test_single_answers() -> None:
    """Ratios -1 (good), 1, 1 (bad) and -1 (good): APO without pairs, 1 - s(r) and s(r)."""
    made = pair_loss(loss_type=["apo_zero_unpaired"], loss_weights=[2.0])
    wanted = 2 * (2 * (1 - s(-0.5)) + 2 * s(0.5)) / 4
    assert loss_of(made, **LABELS) == pytest.approx(wanted)
    assert made.figures.seen_tokens == 9
    assert measured(made) == pytest.approx({
        "loss": wanted, "kl": 0.0, "rewards/chosen": -0.5, "rewards/rejected": 0.5, "logps/chosen": -3.5,
        "logps/rejected": -3.5, "rewards/accuracies": 0.0,
    })  # fmt: skip
    loss_of(made, **LABELS)
    assert made.figures.seen_tokens == 18
    # Of the first answer and the second alone.
    made = pair_loss(loss_type=["apo_zero_unpaired"], training=False)
    filler = torch.tensor([False, False, True, True])
    assert loss_of(made, **LABELS, **{FILLER: filler}) == pytest.approx((1 - s(-0.5) + s(0.5)) / 2)
    found = measured(made, "eval")
    assert (found["logps/chosen"], found["logps/rejected"], made.figures.seen_tokens) == (-3.0, -3.0, 0)
    apart = pair_loss(loss_type=["apo_zero_unpaired"])
    loss_of(apart, label=torch.tensor([True, True, False, False]), paired=False)
    found = measured(apart)
    assert (found["logps/chosen"], found["logps/rejected"]) == (-3.0, -4.0)
    right = pair_loss(loss_type=["apo_zero_unpaired"], ref=([-4.0, -2.0], [-3.0, -5.0]))
    loss_of(right, **LABELS)
    assert measured(right)["rewards/accuracies"] == 1.0


@pytest.mark.parametrize(
    ("loss_type", "labels", "fillers"), [("sigmoid", {}, 2), ("apo_zero_unpaired", LABELS, 4)], ids=["pairs", "single"]
)
def test_a_batch_of_fillers_alone_has_no_loss(loss_type: str, labels: dict[str, Any], fillers: int) -> None:
    """The last batch of a rank; a mean of nothing would be NaN."""
    made = pair_loss(training=False, loss_type=[loss_type])
    filled = {FILLER: torch.ones(fillers, dtype=torch.bool)} | ({} if labels else {"differences": torch.zeros(2)})
    assert loss_of(made, **labels, **filled) == 0.0
    assert "loss" not in measured(made, "eval")


def test_the_reference_point_is_one_for_all_micro_batches_of_a_step() -> None:
    """Taken once; of an evaluation's batch, and of the next step, it is another."""
    made, asked = pair_loss(loss_type=["kto"]), []

    def divergence(model: Any, batches: list[Any]) -> torch.Tensor:
        asked.append(batches)
        return torch.zeros(())

    made.divergence = divergence  # type: ignore[method-assign]
    made.run._prepare_inputs = lambda batch: batch
    model: Any = lambda **given: said(LOG_PROBS)  # noqa: E731
    first, second, counted = batch(), batch(), torch.ones(2)
    for step in ([first, second], [second]):
        made.begin_step(step)
        for one in step:
            made.loss(model, one, counted)
        made.loss(model, first)
    assert asked == [[first, second], [first], [second], [first]]


def test_a_step_waits_for_no_value() -> None:
    """Here none can be read, as on a GPU each reading would wait for it."""

    def away(given: dict[str, Any]) -> dict[str, Any]:
        return {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in given.items()}

    made = pair_loss(loss_type=["sigmoid", "sft"], ld_alpha=0.5)
    made.figures = PairFigures(torch.device("meta"))
    outputs = AnswerOutput(**away(vars(said(LOG_PROBS))))
    loss, _ = made.loss(lambda **given: outputs, away(batch()))  # type: ignore[arg-type]
    assert loss.device.type == made.figures.seen_tokens.device.type == "meta"


def test_a_model_gets_rows_and_borders_and_nothing_else() -> None:
    given: list[dict[str, Any]] = []
    model: Any = lambda **inputs: given.append(inputs)  # noqa: E731
    borders = {"cu_seq_lens_q": 1, "max_length_q": 2}
    rows = {"answer_at": 4, "attention_mask": 5, "position_ids": 6, "shared_prompts": 7, "use_cache": False}
    forward_answers(model, batch(label=3, **borders, **rows))
    assert sorted(given[0]) == sorted([*borders, *rows, "answer_ids", "input_ids"])
