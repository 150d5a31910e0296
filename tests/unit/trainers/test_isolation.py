"""A run finds out whether what shares a row sees others, before its first step, and by which way it is kept apart."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
)
from transformers.models.llama import modeling_llama

from hftune.distributed import ranks
from hftune.errors import ArgumentError
from hftune.models.attention.segments import SEGMENTS
from hftune.trainers import isolation
from hftune.trainers.isolation import (
    _logits_of_whole_row,
    assert_same_scores,
    padded_answers,
    prove_isolation,
    prove_on_all,
    prove_rows_isolated,
)
from tests.unit.data.helpers import pack, to_dataset
from tests.unit.trainers.tiny import trainer_on

ERROR = ArgumentError("they see each other", place="here", fix="none")


def fails() -> None:
    raise ERROR


def test_all_processes_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one's proof fails: this one stops as well."""
    prove_on_all(lambda: None)
    with pytest.raises(ArgumentError, match="they see each other"):
        prove_on_all(fails)
    told: list[bool] = []
    monkeypatch.setattr(ranks, "all_agree", lambda holds: told.append(holds) or False)
    with pytest.raises(ArgumentError, match="see each other on another process"):
        prove_on_all(lambda: None)
    with pytest.raises(ArgumentError, match="they see each other"):
        prove_on_all(fails)
    assert told == [True, False]


@pytest.mark.parametrize(
    ("group", "scores", "bf16", "fp16"),
    [
        (None, False, False, False),
        ("group", False, True, False),
        (None, True, False, True),
        ("group", True, True, False),
    ],
)
def test_what_is_proved_of_a_run(
    group: Any, scores: bool, bf16: bool, fp16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(isolation, "prove_isolation", lambda *args, **options: given.append((args, options)))
    monkeypatch.setattr(isolation, "vocabulary_rows", lambda model: 77)
    monkeypatch.setattr(isolation, "uncompiled_and_unrounded", lambda model, args: nullcontext())
    model = nn.Linear(1, 1)
    model.config = SimpleNamespace(_attn_implementation="sdpa")  # type: ignore[assignment]
    args = SimpleNamespace(device="cpu", bf16=bf16, fp16=fp16)
    read = (lambda *_: None) if scores else None
    prove_rows_isolated(SimpleNamespace(args=args, sequence_group=group, model=model), "engine", read)  # type: ignore[arg-type]
    ((positional, options),) = given
    assert positional[:4] == ("engine", 77, "sdpa", "cpu") and options == {"autocast": bf16 or fp16}
    if scores or group is None:
        assert positional[4] is read
    else:
        assert isinstance(positional[4], partial) and positional[4].func is _logits_of_whole_row
        assert positional[4].args == ("group",)


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
    monkeypatch.setattr(isolation, "asks_for_compiling", lambda config: config == "deep")
    model: Any = SimpleNamespace(config=SimpleNamespace(_attn_implementation=attention), modules=lambda: [])
    args = SimpleNamespace(torch_compile=compiles, ds_resolved="deep" if deep else "plain")
    with isolation.uncompiled_and_unrounded(model, args):
        pass
    assert stances == (["force_eager"] if eagerly else [])


CPU = torch.device("cpu")


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Llama that keeps its position ids from its mask, as GPT-OSS does in transformers 5.23."""
    original = modeling_llama.create_causal_mask

    def without_positions(*args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    monkeypatch.setattr(modeling_llama, "create_causal_mask", without_positions)


@pytest.mark.parametrize("attention", ["eager", "sdpa", SEGMENTS])
def test_apart(tiny_model: Path, attention: str) -> None:
    """Also where a config asks for a cache, with which transformers does not look for documents in a row."""
    for training in (True, False):
        model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=attention).train(training)
        model.config.use_cache = not training
        prove_isolation(model, 256, attention, CPU)
        assert model.training == training


@pytest.mark.parametrize("vocabulary", [12, 9000])
def test_what_the_two_documents_are(vocabulary: int) -> None:
    """The second stays as it is, the first becomes another; of the middle of a vocabulary, where that is large."""
    rows: list[list[int]] = []

    def read(_: Any, inputs: dict[str, Any]) -> torch.Tensor:
        rows.append(inputs["input_ids"][0].tolist())
        assert inputs["position_ids"][0].tolist() == [*range(8), *range(16)]
        assert "labels" not in inputs, "a loss is not wanted"
        return torch.ones(1, 24, 2)

    prove_isolation(nn.Linear(1, 1), vocabulary, "sdpa", CPU, read)
    (first, second), (before, after) = ([row[:8] for row in rows], [row[8:] for row in rows])
    assert before == after and first != second
    assert all(0 <= token < vocabulary for row in rows for token in row)
    if vocabulary == 9000:
        assert all(9000 // 4 < token < 3 * 9000 // 4 for row in rows for token in row)
        assert all(len(set(document)) == len(document) for document in (first, second, after))
        assert all(one != other for one, other in zip(first[1:], second[1:], strict=True))


@pytest.mark.parametrize(
    ("attention", "device", "tokens"),
    [("sdpa", "cpu", 24), ("flex_attention", "cpu", 256), ("sdpa", "meta", 256)],
)
def test_kernels_in_blocks_get_more_than_a_block(attention: str, device: str, tokens: int) -> None:
    seen: list[tuple[str, int]] = []

    def read(_: Any, inputs: dict[str, Any]) -> torch.Tensor:
        seen.append((inputs["input_ids"].device.type, inputs["input_ids"].shape[1]))
        return torch.ones(1, inputs["input_ids"].shape[1], 2)

    prove_isolation(nn.Linear(1, 1), 256, attention, torch.device(device), read)
    assert seen == [(device, tokens)] * 2


@pytest.mark.parametrize("place", [8, 23])
def test_one_token_of_the_second_document_is_enough(place: int) -> None:
    """Its first or its last one; of logits that are all small, too."""
    for scale, others in ((1.0, 0.0), (1e-3, 1.0)):

        def read(_: Any, inputs: dict[str, Any], scale: float = scale, others: float = others) -> torch.Tensor:
            logits = torch.full((1, 24, 2), scale)
            logits[0, :8] = others  # those of the first document are not looked at
            logits[0, place] *= 1 + 0.1 * (inputs["input_ids"][0, 1] - inputs["input_ids"][0, 0] == 7)
            return logits

        with pytest.raises(ArgumentError, match="see each other"):
            prove_isolation(nn.Linear(1, 1), 256, "sdpa", CPU, read)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_not_apart(tiny_model: Path, blind: None, attention: str, dtype: torch.dtype) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=attention, dtype=dtype)
    with pytest.raises(ArgumentError, match=f"see each other in LlamaForCausalLM with attention {attention}") as caught:
        prove_isolation(model, 256, attention, CPU)
    assert f"--attn_implementation {SEGMENTS}" in str(caught.value)


def test_our_own_attention_makes_it_good(tiny_model: Path, blind: None) -> None:
    prove_isolation(AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=SEGMENTS), 256, SEGMENTS, CPU)


@pytest.mark.parametrize("work", ["train", "evaluate"])
def test_a_run_stops_before_its_first_step(tiny_model: Path, tmp_path: Path, blind: None, work: str) -> None:
    ids = [[5, 6, 7], [8, 9]]
    data = pack(to_dataset({"input_ids": ids, "labels": ids}), 8)[0]
    trainer = trainer_on(data, "sft", tiny_model, tmp_path, "--packing", "--max_steps", "1")
    with pytest.raises(ArgumentError, match="see each other"):
        getattr(trainer, work)()
    assert trainer.state.global_step == 0


def test_what_rounds_more_may_move_more(tiny_model: Path) -> None:
    """bf16; and LLM.int8() lets a column with an outlier in one document change how all are rounded."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)

    def refused(share: float, autocast: bool = True, device: torch.device = CPU) -> bool:
        """Whether it is, where the second document's numbers move by this share with the first one."""
        numbers = iter([1.0, 1.0 + share])
        try:
            prove_isolation(model, 256, "sdpa", device, lambda *_: torch.full((1, 256, 1), next(numbers)), autocast)
        except ArgumentError:
            return True
        return False

    assert [refused(share) for share in (0.01, 0.04, 0.1)] == [False, True, True]
    assert [refused(share, autocast=False) for share in (0.001, 0.004, 0.01)] == [False, True, True]
    assert not refused(0.01, autocast=False, device=torch.device("meta")), "kernels of a GPU round"
    model.to(torch.bfloat16)
    assert not refused(0.004, autocast=False)
    model.is_loaded_in_8bit = True
    assert [refused(share) for share in (0.01, 0.04, 0.1)] == [False, False, True]


@pytest.mark.parametrize(("off", "refused"), [(0.04, False), (0.06, True)])
@pytest.mark.parametrize("side", [1, -1])
def test_scores_of_two_layouts(off: float, refused: bool, side: int) -> None:
    """As a share of the first one's largest number; in eval mode, without a gradient."""
    model, weight = nn.Linear(1, 1), nn.Parameter(torch.tensor([1.0, -2.0]))

    def scored(by: float) -> torch.Tensor:
        assert not model.training and not torch.is_grad_enabled()
        return weight + torch.tensor([2 * by, 0.0])

    problem = ArgumentError("apart", place="here", fix="none")
    with pytest.raises(ArgumentError, match="apart") if refused else nullcontext():
        assert_same_scores(model, lambda: scored(0.0), lambda: scored(side * off), 0.05, problem)
    assert refused or model.training


def test_made_up_answers_are_padded_as_trl_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({*map(tuple, padded_answers(1000, CPU)["input_ids"].tolist())}) == 4
    monkeypatch.setattr(isolation, "SHORT_ANSWERS", ((2, 1, 3), (1, 2, 1)))
    batch = padded_answers(1000, CPU)
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 1, 1, 1, 0], [0, 1, 1, 0, 0]]
    # From the middle of 1000 tokens: prompts step by 3 and 7, answers by 5, 7 and 9, 11.
    assert batch["input_ids"][1].tolist() == [333, 336, 333, 340, 347]
    assert batch["labels"].tolist()[3] == [-100, -100, 333, -100, -100]
