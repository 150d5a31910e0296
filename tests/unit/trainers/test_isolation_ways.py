"""What is proved of which run, and the ways that are tried until a proof holds, with proofs that are made up."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hftune import logging
from hftune.distributed import ranks
from hftune.errors import ArgumentError
from hftune.models.attention.documents import Documents
from hftune.models.attention.isolation import ATTENTION, BACKBONE, MIXERS
from hftune.trainers import packing_isolation
from hftune.trainers.packing_isolation import _logits_of_whole_row, logit_tolerance, prove_or_widen, prove_rows_isolated

ERROR = ArgumentError("they see each other", place="here", fix="none")


def model_with(way: str | None, **given: Any) -> nn.Module:
    model = nn.Linear(1, 1)
    if way is not None:
        model.hftune_documents = Documents(way, **given)  # type: ignore[assignment]
    return model


def failing(times: int) -> Any:
    """A proof that holds after so many failures; `left` counts down."""
    left = [times]

    def prove() -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise ERROR

    prove.left = left  # type: ignore[attr-defined]
    return prove


def test_ways_are_tried_until_a_proof_holds() -> None:
    model, prove = model_with(MIXERS, kernels=True), failing(2)
    prove_or_widen(prove, model, whole_model=True)
    assert prove.left == [-1] and model.hftune_documents.way == BACKBONE
    said = "\n".join(map(str, logging._notices))
    assert "documents in a row would see each other: layers with a state are called a document at a time" in said
    assert "documents in a row would see each other: the model reads the documents of a row as padded rows" in said
    with pytest.raises(ArgumentError, match="they see each other"):
        prove_or_widen(failing(3), model_with(MIXERS, kernels=True), whole_model=True)


@pytest.mark.parametrize(
    ("way", "whole", "shared", "failures", "holds"),
    [
        (None, True, True, 0, True), (None, True, True, 1, False), (ATTENTION, False, False, 1, False),
        (ATTENTION, True, False, 1, True), (ATTENTION, False, True, 1, True), (ATTENTION, False, True, 2, False),
    ],
)  # fmt: skip
def test_which_ways_there_are(way: str | None, whole: bool, shared: bool, failures: int, holds: bool) -> None:
    model = model_with(way)
    if holds:
        prove_or_widen(failing(failures), model, whole_model=whole, shared=shared)
    else:
        with pytest.raises(ArgumentError, match="they see each other"):
            prove_or_widen(failing(failures), model, whole_model=whole, shared=shared)


def test_all_processes_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one's proof fails: this one goes on as that one does."""
    told: list[bool] = []
    answers = iter([False, True])
    monkeypatch.setattr(ranks, "all_agree", lambda holds: told.append(holds) or next(answers))
    model = model_with(ATTENTION)
    prove_or_widen(failing(0), model, whole_model=True)
    assert told == [True, True] and model.hftune_documents.way == BACKBONE
    answers = iter([False])
    with pytest.raises(ArgumentError, match="see each other on another process"):
        prove_or_widen(failing(0), model_with(None), whole_model=True)


@pytest.mark.parametrize("group", [None, "group"])
@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize(("bf16", "fp16"), [(False, False), (True, False), (False, True)])
def test_what_is_proved_of_a_run(
    group: Any, scores: bool, bf16: bool, fp16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(packing_isolation, "prove_isolation", lambda *args, **options: given.append((args, options)))
    monkeypatch.setattr(packing_isolation, "vocabulary_rows", lambda model: 77)
    monkeypatch.setattr(packing_isolation, "uncompiled_and_unrounded", lambda model, args: nullcontext())
    monkeypatch.setattr(
        packing_isolation,
        "prove_or_widen",
        lambda prove, model, whole_model: given.append((model, whole_model)) or prove(),
    )
    model = model_with(None)
    model.config = SimpleNamespace(_attn_implementation="sdpa")  # type: ignore[assignment]
    args = SimpleNamespace(device="cpu", bf16=bf16, fp16=fp16)
    read = (lambda *_: None) if scores else None
    prove_rows_isolated(SimpleNamespace(args=args, sequence_group=group, model=model), "engine", read)  # type: ignore[arg-type]
    (of, whole_model), (positional, options) = given
    assert of is model and whole_model is (group is None and not scores), "scores and slices are read where tokens lie"
    assert positional[:4] == ("engine", 77, "sdpa", "cpu") and options == {"autocast": bf16 or fp16}
    if scores or group is None:
        assert positional[4] is read
    else:
        assert isinstance(positional[4], partial) and positional[4].func is _logits_of_whole_row
        assert positional[4].args == ("group",)


def test_a_row_that_processes_share_is_put_together() -> None:
    """The first of two processes, which has three tokens of five."""
    given: list[dict[str, Any]] = []

    def model(**inputs: Any) -> Any:
        given.append(inputs)
        return SimpleNamespace(logits=inputs["input_ids"][..., None] * 10)

    group = SimpleNamespace(size=2, slice_of=lambda tokens: slice(0, 3), whole=lambda logits, tokens: (logits, tokens))
    ids = torch.arange(1, 6)[None]
    row = {"input_ids": ids, "position_ids": ids - 1, "cu_seq_lens_q": torch.tensor([0, 5])}
    logits, tokens = _logits_of_whole_row(group, model, row)  # type: ignore[misc]
    assert tokens == 5 and logits[0, :, 0].tolist() == [10, 20, 30]
    assert sorted(given[0]) == ["cu_seq_lens_q", "input_ids", "position_ids"], "no labels: a loss is not wanted"


def test_how_far_logits_may_move() -> None:
    model = nn.Linear(2, 2)
    exact, loose, int8 = packing_isolation.EXACT, packing_isolation.TOLERANCE, packing_isolation.INT8
    assert exact < loose < int8
    assert logit_tolerance(model, exact=True) == exact and logit_tolerance(model, exact=False) == loose
    model.bias = nn.Parameter(model.bias.bfloat16())
    assert logit_tolerance(model, exact=True) == loose
    model.is_loaded_in_8bit = True  # type: ignore[assignment]
    assert logit_tolerance(model, exact=True) == int8


@pytest.mark.parametrize(
    ("compiles", "deep", "attention", "eagerly"),
    [
        (True, False, "sdpa", True),
        (True, False, "flex_attention", False),
        (True, True, "sdpa", False),
        (False, False, "sdpa", False),
    ],
)
def test_a_proof_compiles_nothing_but_kernels(
    compiles: bool, deep: bool, attention: str, eagerly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stances: list[str] = []
    monkeypatch.setattr(torch.compiler, "set_stance", lambda stance: stances.append(stance) or nullcontext())
    monkeypatch.setattr(packing_isolation, "asks_for_compiling", lambda config: config == "deep")
    model: Any = SimpleNamespace(config=SimpleNamespace(_attn_implementation=attention), modules=lambda: [])
    args = SimpleNamespace(torch_compile=compiles, ds_resolved="deep" if deep else "plain")
    with packing_isolation.uncompiled_and_unrounded(model, args):
        pass
    assert stances == (["force_eager"] if eagerly else [])


@pytest.mark.parametrize(
    ("device", "attention", "lengths"),
    [
        ("cpu", "sdpa", packing_isolation.SHORT),
        ("cpu", "flex_attention", packing_isolation.LONG),
        ("cuda", "sdpa", packing_isolation.LONG),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_two_passes_with_another_first_document(
    device: str, attention: str, lengths: Any, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In eval mode, of lengths that kernels cut into blocks where there are some; the mode is as it was afterwards."""
    model, given, moved = nn.Linear(1, 1).train(training), [], [0.0]

    def logits(model: Any, vocabulary: int, step: int, where: Any, read: Any, of: Any) -> torch.Tensor:
        given.append((vocabulary, step, where, of, model.training))
        return torch.tensor([1.0, -50.0 - moved[0] * step])

    monkeypatch.setattr(packing_isolation, "_logits_of_second", logits)
    for moved[0], sees in ((0.0, False), (0.015, False), (0.2, True)):  # 0.1 and 1.2 of 50: 0.2 % and 2.4 %
        given.clear()
        if sees:
            with pytest.raises(ArgumentError, match=f"see each other in Linear with attention {attention}"):
                packing_isolation.prove_isolation(model, 77, attention, torch.device(device))
        else:
            packing_isolation.prove_isolation(model, 77, attention, torch.device(device))
        assert given == [(77, step, torch.device(device), lengths, False) for step in (1, 7)]
        assert model.training is training
