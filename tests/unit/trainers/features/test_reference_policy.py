"""Which reference a run of preference optimisation has."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from hftune.errors import ArgumentError
from hftune.trainers.features import reference_policy
from hftune.trainers.features.reference_policy import (
    ADAPTER,
    COPY,
    MODEL,
    NONE,
    PRECOMPUTED,
    ReferencePolicy,
    add_copy,
)
from tests.unit.trainers.features import made_up


class Adapter(torch.nn.Module):
    """Stands for peft's model: one trained part of an adapter, and perhaps a whole layer."""

    def __init__(self, *, head: bool = False) -> None:
        super().__init__()
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(1, 1)})
        if head:
            self.lm_head = torch.nn.Linear(1, 1)


def run_of(model: Any, **args: Any) -> Any:
    names = {"needs_reference": True, "reference_free": False, "loss_type": ["sigmoid"], "sync_ref_model": False}
    names |= {"precompute_ref_log_probs": None, "max_steps": 0, "num_train_epochs": 1.0, "ref_model_mixup_alpha": 1.0}
    made = made_up.run(model=model, args=names | args, ref_model=None, train_dataset=range(10))
    made.get_total_train_batch_size = lambda args: 4
    return made


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(reference_policy, "PeftModel", Adapter)
    monkeypatch.setattr(reference_policy, "notice", found.append)
    monkeypatch.setattr(reference_policy, "add_copy", lambda model: found.append("a copy"))
    monkeypatch.setattr(ReferencePolicy, "_prepared", lambda self, model: model)
    return found


PLAIN = torch.nn.Linear(1, 1)


@pytest.mark.parametrize(
    ("model", "args", "second", "kind", "why"),
    [
        (PLAIN, {"needs_reference": False}, None, NONE, "sigmoid needs none"),
        (PLAIN, {"needs_reference": False, "reference_free": True}, None, NONE, "--reference_free"),
        (PLAIN, {}, None, PRECOMPUTED, "no second model is kept"),
        (Adapter(), {}, PLAIN, PRECOMPUTED, "no second model is kept"),
        (Adapter(), {}, None, ADAPTER, "records are seen once"),
        (Adapter(), {"num_train_epochs": 3.0}, None, PRECOMPUTED, "3 passes"),
        (Adapter(), {"max_steps": 5}, None, PRECOMPUTED, "2 passes"),
        (Adapter(), {"max_steps": 2, "num_train_epochs": 3.0}, None, ADAPTER, "records are seen once"),
        (Adapter(head=True), {}, None, PRECOMPUTED, "lm_head.weight is trained next to the adapter"),
        (Adapter(), {"precompute_ref_log_probs": True}, None, PRECOMPUTED, "as asked"),
        (PLAIN, {"precompute_ref_log_probs": False}, PLAIN, MODEL, "as asked"),
        (PLAIN, {"sync_ref_model": True}, PLAIN, MODEL, "renewed in training"),
        (Adapter(), {"sync_ref_model": True, "precompute_ref_log_probs": True}, None, ADAPTER, "renewed in training"),
    ],
)
def test_the_cheapest_that_is_exact(
    said: list[str], model: Any, args: dict[str, Any], second: Any, kind: str, why: str
) -> None:
    run = run_of(model, **args)
    feature = ReferencePolicy(run)
    feature.choose(second, starts_as_base=True)
    assert feature.kind == kind and why in said[0]
    assert run.ref_model is second
    assert ("a copy" in said) is (kind == ADAPTER and bool(args.get("sync_ref_model")))
    assert len(run.callbacks) == bool(args.get("sync_ref_model"))


def test_a_resumed_adapter_is_copied(said: list[str]) -> None:
    ReferencePolicy(run_of(Adapter())).choose(None, starts_as_base=False)
    assert said[-1] == "a copy"


def test_computed_columns_are_taken_and_no_reference_is_zero() -> None:
    feature = ReferencePolicy(run_of(PLAIN))
    lengths = {"answer_lengths": torch.tensor([3, 4, 5, 6])}
    assert [part.tolist() for part in feature.sums(lengths)] == [[0.0, 0.0], [0.0, 0.0]]
    feature.kind = PRECOMPUTED
    batch = {"ref_chosen_logps": 1, "ref_rejected_logps": 2, "ref_logps": 3, "ref_kl_logps": 4}
    assert feature.sums(batch) == [1, 2] and (feature.of_answers(batch), feature.of_mismatched(batch)) == (3, 4)


def test_other_records_after_training_have_no_reference_any_more(said: list[str]) -> None:
    records = Dataset.from_dict({"prompt_ids": [[1]]})
    feature = ReferencePolicy(run_of(PLAIN))
    assert feature.add_to_others(records, "other") is records, "none is computed before training"
    feature.kind, feature.run.state.global_step = PRECOMPUTED, 3
    with pytest.raises(ArgumentError, match="was to be computed before training"):
        feature.add_to_others(records, "other")
    known = Dataset.from_dict({"ref_logps": [0.0]})
    assert feature.add_to_others(known, "other") is known


def test_it_is_computed_once(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def with_columns(self: Any, dataset: Dataset, name: str) -> Dataset:
        asked.append(name)
        return Dataset.from_dict({"ref_logps": [0.0]})

    monkeypatch.setattr(ReferencePolicy, "_with_reference", with_columns)
    records = Dataset.from_dict({"prompt_ids": [[1]]})
    run = run_of(PLAIN)
    run.train_dataset, run.eval_dataset, run.ref_model = records, {"a": records, "b": records}, PLAIN
    feature = ReferencePolicy(run)
    feature.kind = PRECOMPUTED
    # Its hooks would follow the passes of the engine that trains.
    destroyed: list[bool] = []
    feature._engine = SimpleNamespace(destroy=lambda: destroyed.append(True))
    feature.before_evaluate(run)
    feature.before_train(run, None)
    assert asked == ["train", "a", "b"] and run.ref_model is None, "its memory is for training"
    assert destroyed == [True] and feature._engine is None
    assert SimpleNamespace(**run.eval_dataset).a.column_names == ["ref_logps"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_copy_is_not_saved_and_nothing_of_its_name_is_removed(
    tiny_model: Path, tmp_path: Path, fails: bool
) -> None:
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig(r=2, target_modules=["q_proj"]))
    add_copy(model)
    run = run_of(model)
    (tmp_path / COPY).mkdir()
    (tmp_path / COPY / "thesis").write_text("mine")
    with suppress(OSError), ReferencePolicy(run).left_out():
        model.save_pretrained(tmp_path)
        if fails:
            raise OSError("the disk is full")
    assert (tmp_path / "adapter_config.json").is_file()
    assert [file.name for file in (tmp_path / COPY).iterdir()] == ["thesis"]
    assert [*model.peft_config] == ["default", COPY], "training continues with its reference"
    plain = run_of(PLAIN)
    with ReferencePolicy(plain).left_out():
        pass
