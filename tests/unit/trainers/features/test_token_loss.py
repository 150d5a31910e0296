"""What the head gets for a batch, and what is counted and predicted, with a model that is made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.constants import IGNORE_INDEX
from hftune.models.kernels.heads import AnswerOutput
from hftune.trainers.features.token_loss import TokenLoss, finds_answers, next_tokens, next_values
from tests.unit.trainers.features import made_up

NO = IGNORE_INDEX
# 7 is predicted at place 1 of the first row, 8 and 9 at places 0 and 1 of the second: 1, 3 and 4 of the flat batch.
BATCH = {
    "input_ids": torch.tensor([[1, 2, 7], [3, 8, 9]]),
    "labels": torch.tensor([[NO, NO, 7], [NO, 8, 9]]),
    "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
}


ALONE: Any = made_up.Accelerator()


class Model:
    """Notes what it is given."""

    def __init__(self, training: bool = True) -> None:
        self.training, self.given = training, {}

    def __call__(self, **given: Any) -> AnswerOutput:
        self.given = given
        number = len(given["answer_at"])
        top = torch.tensor([True, False, True])[:number]
        if not given["answer_detail"]:
            return AnswerOutput(loss=torch.tensor(5.0))
        return AnswerOutput(loss=torch.tensor(5.0), entropy=torch.arange(float(number)), is_top1=top)


def run_of(model: Model, *, processes: int = 1, tp: int = 1, **args: Any) -> Any:
    given = made_up.run(model=model, label_smoother=None, compute_loss_func=None, compute_metrics=None, args={
        "average_tokens_across_devices": processes > 1, **args,
    })  # fmt: skip
    given.accelerator = SimpleNamespace(num_processes=processes, reduce=lambda value, how: 2 * value)
    given.get_tp_size = lambda: tp
    return given


def feature(measures: bool = True) -> TokenLoss:
    return TokenLoss(measures_tokens=measures, device=torch.device("cpu"))


def made(
    inputs: Any, counted: Any = None, *, measures: bool = True, training: bool = True, **run: Any
) -> dict[str, Any]:
    model, one = Model(training), feature(measures)
    found = one.make_loss(run_of(model, **run), model, inputs, counted)
    assert found is not None and float(found[0]) == 5.0 and found[1].loss is found[0]
    return model.given | {"sums": one.sums}


def test_places_and_ids() -> None:
    found = made(BATCH)
    assert (found["answer_at"].tolist(), found["answer_ids"].tolist()) == ([1, 3, 4], [7, 8, 9])
    assert found["answer_factors"].tolist() == pytest.approx([1 / 3] * 3), "over the labels of the batch"
    assert found["answer_dft"] is False and "labels" not in found and found["input_ids"] is BATCH["input_ids"]
    sliced = made(
        {"input_ids": BATCH["input_ids"], "shift_labels": torch.tensor([[NO, 7, 4]]), "labels": BATCH["labels"]}
    )
    assert (sliced["answer_at"].tolist(), sliced["answer_ids"].tolist()) == ([1, 2], [7, 4])
    assert made(BATCH, loss_type="dft")["answer_dft"] is True and made(BATCH, loss_type="nll")["answer_dft"] is False


def test_factors() -> None:
    assert made(BATCH, 6)["answer_factors"].tolist() == pytest.approx([1 / 6] * 3)
    # The count is that of 4 processes, of which 2 at a time share matrices; gradients are means over them.
    assert made(BATCH, 6, processes=4, tp=2)["answer_factors"].tolist() == pytest.approx([2 / 6] * 3)
    assert made(BATCH, processes=4)["answer_factors"].tolist() == pytest.approx([1 / 3] * 3), "of this process alone"
    alone = made(BATCH, 6, processes=4, average_tokens_across_devices=False)
    assert alone["answer_factors"].tolist() == pytest.approx([1 / 6] * 3)
    single = BATCH | {"labels": torch.tensor([[NO, NO, 7], [NO, NO, NO]])}
    assert made(single)["answer_factors"].tolist() == [1.0]
    weighted = BATCH | {"loss_weights": torch.tensor([[9.0, 9.0, 0.5], [9.0, 2.0, 0.0]])}
    found = made(weighted, 2)
    assert found["answer_factors"].tolist() == [0.25, 1.0, 0.0] and "loss_weights" not in found
    nothing = BATCH | {"labels": torch.full((2, 3), NO)}
    assert made(nothing)["answer_factors"].tolist() == []


def test_detail_where_somebody_reads_it() -> None:
    cases = {(True, True): 1, (True, False): 1, (False, True): 0, (False, False): 1}
    for (measures, training), detail in cases.items():
        found = made(BATCH, measures=measures, training=training)
        assert found["answer_detail"] == detail
        mode, other = ("train", "eval") if training else ("eval", "train")
        assert found["sums"][other].empty and found["sums"][mode].empty is not bool(detail)
        # Entropies 0 + 1 + 2, two of three right, and the mask's 5 tokens.
        if detail:
            assert found["sums"][mode].take(ALONE) == {
                "entropy": (3.0, 3.0), "mean_token_accuracy": (2.0, 3.0), "read": (5.0, 1.0),
            }  # fmt: skip
    whole = {name: value for name, value in BATCH.items() if name != "attention_mask"}
    assert made(whole)["sums"]["train"].take(ALONE)["read"] == (6.0, 1.0), "without a mask all tokens are read"


def test_counts_of_an_interrupted_run_come_back() -> None:
    one, run, other = feature(), run_of(Model()), feature()
    run.accelerator = ALONE
    one.sums["train"].add("entropy", torch.tensor([1.0, 2.0]))
    one.sums["train"].add("read", torch.tensor(2.0**30 + 1))  # of a long run, more than 32 bits hold
    other.load_state(run, one.state(run))
    assert other.sums["train"].take(ALONE) == one.sums["train"].take(ALONE)


def test_whose_loss_needs_logits() -> None:
    run = run_of(Model())
    assert finds_answers(run, BATCH) and not finds_answers(run, {"input_ids": 1})
    for name in ("label_smoother", "compute_loss_func"):
        other = run_of(Model())
        setattr(other, name, print)
        assert not finds_answers(other, BATCH)
        assert feature().make_loss(other, Model(), BATCH, None) is None
    run.compute_metrics = print
    assert finds_answers(run, BATCH), "metrics are for held-out records"
    run.model.training = False
    assert not finds_answers(run, BATCH)


def test_what_belongs_to_the_next_label() -> None:
    inputs = {"labels": BATCH["labels"], "w": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])}
    assert next_tokens(inputs).tolist() == [[NO, 7, NO], [8, 9, NO]]
    assert next_values(inputs, "w", -1.0).tolist() == [[2.0, 3.0, -1.0], [5.0, 6.0, -1.0]]
    assert next_values(inputs | {"shift_labels": 0}, "w", -1.0) is inputs["w"], "slices come shifted"


def run_in(training: bool, **metrics: Any) -> Any:
    run = made_up.run(model=SimpleNamespace(training=training))
    run._metrics, run._total_train_tokens, run._tp_size = {"train": {}, "eval": metrics}, 100, 2
    return run


def test_sums_become_means_and_are_read_once() -> None:
    one, run = feature(), run_in(training=True)
    one.sums["train"].add("entropy", torch.tensor([6.0, 0.0, 0.0, 0.0]))
    one.sums["train"].add("mean_token_accuracy", torch.tensor([True, True, True, False]))
    one.sums["train"].add("read", torch.tensor(10))
    one.before_log(run, {})
    # Tensor-parallel processes have the same tokens, so that those of two count once.
    assert run._metrics["train"] == {"entropy": [1.5], "mean_token_accuracy": [0.75], "num_tokens": [105]}
    one.before_log(run, {})
    assert run._total_train_tokens == 105
    unmeasured, other = feature(measures=False), run_in(training=True)
    unmeasured.before_log(other, {})
    assert other._metrics["train"] == {}
