"""A run finds out whether documents in a row see each other, before its first step."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    MambaConfig,
    MambaForCausalLM,
)
from transformers.models.llama import modeling_llama

from hftune.arguments.entry import parse_arguments
from hftune.data.splits import Splits
from hftune.errors import ArgumentError
from hftune.models.attention.segments import SEGMENTS
from hftune.trainers import packing_isolation
from hftune.trainers.packing_isolation import _inner, prove_isolation, uncompiled_and_unrounded
from hftune.trainers.sft import SFTTrainer
from tests.unit.data.helpers import pack, to_dataset

CPU = torch.device("cpu")


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Llama that keeps its position ids from its mask, as GPT-OSS does in transformers 5.23."""
    original = modeling_llama.create_causal_mask

    def without_positions(*args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    monkeypatch.setattr(modeling_llama, "create_causal_mask", without_positions)


def test_what_may_compute_in_16_bits_may_be_off_by_as_much() -> None:
    """Logits that move by a hundredth: float32 alone moves by less, and so a mask leaks."""
    model = torch.nn.Linear(1, 1)

    def read(_: Any, inputs: dict[str, Any]) -> torch.Tensor:
        logits = torch.ones(1, inputs["input_ids"].shape[1], 2)
        return logits + 0.01 * (inputs["input_ids"][0, 1] - inputs["input_ids"][0, 0] == 7)

    prove_isolation(model, 256, "sdpa", CPU, read)
    prove_isolation(model, 256, "sdpa", CPU, read, autocast=True)
    with pytest.raises(ArgumentError, match="see each other"):
        prove_isolation(model, 256, "sdpa", CPU, read, autocast=False)


@pytest.mark.parametrize("attention", ["eager", "sdpa", SEGMENTS])
def test_apart(tiny_model: Path, attention: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=attention).train()
    prove_isolation(model, 256, attention, CPU)
    assert model.training


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_left_as_it_was(training: bool) -> None:
    model, seen = torch.nn.Dropout().train(training), []

    def read(given: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        seen.append(given.training)
        return torch.ones(1, inputs["input_ids"].shape[1], 2)

    prove_isolation(model, 256, "sdpa", CPU, read)
    assert seen == [False, False] and model.training == training


@pytest.mark.parametrize("vocabulary", [12, 9000])
def test_what_the_two_documents_are(vocabulary: int) -> None:
    """The second stays as it is, the first becomes another; of the middle of a vocabulary, where that is large."""
    rows: list[list[int]] = []

    def read(_: Any, inputs: dict[str, Any]) -> torch.Tensor:
        rows.append(inputs["input_ids"][0].tolist())
        assert inputs["position_ids"][0].tolist() == [*range(8), *range(16)]
        assert "labels" not in inputs, "a loss is not wanted"
        return torch.ones(1, 24, 2)

    prove_isolation(torch.nn.Linear(1, 1), vocabulary, "sdpa", CPU, read)
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

    prove_isolation(torch.nn.Linear(1, 1), 256, attention, torch.device(device), read)
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
            prove_isolation(torch.nn.Linear(1, 1), 256, "sdpa", CPU, read)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_not_apart(tiny_model: Path, blind: None, attention: str, dtype: torch.dtype) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=attention, dtype=dtype)
    with pytest.raises(ArgumentError, match=f"see each other in LlamaForCausalLM with attention {attention}") as caught:
        prove_isolation(model, 256, attention, CPU)
    assert f"--attn_implementation {SEGMENTS}" in str(caught.value)


def test_our_own_attention_makes_it_good(tiny_model: Path, blind: None) -> None:
    prove_isolation(AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=SEGMENTS), 256, SEGMENTS, CPU)


def test_a_state_that_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4))
    forward = model.forward
    # It takes no borders at all, so only the tokens are handed on.
    monkeypatch.setattr(model, "forward", lambda input_ids, **_: forward(input_ids=input_ids))
    with pytest.raises(ArgumentError, match="MambaForCausalLM"):
        prove_isolation(model, 64, None, CPU)


def trainer_for(folder: Path, out: Path, attention: str) -> SFTTrainer:
    flags = ["--use_cpu", "True", "--report_to", "none", "--packing", "--max_steps", "1", "--save_strategy", "no"]
    *_, args = parse_arguments("sft", ["--output_dir", str(out), *flags])
    ids = [[5, 6, 7], [8, 9]]
    data = pack(to_dataset({"input_ids": ids, "labels": ids}), 8)[0]
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention)
    return SFTTrainer(model, args, AutoTokenizer.from_pretrained(folder), Splits(data, data))


def test_a_run_stops_before_its_first_step(tiny_model: Path, tmp_path: Path, blind: None) -> None:
    trainer = trainer_for(tiny_model, tmp_path, "sdpa")
    with pytest.raises(ArgumentError, match="see each other"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_evaluation_alone_is_stopped_too(tiny_model: Path, tmp_path: Path, blind: None) -> None:
    with pytest.raises(ArgumentError, match="see each other"):
        trainer_for(tiny_model, tmp_path, "eager").evaluate()


def test_a_run_goes_on(tiny_model: Path, tmp_path: Path) -> None:
    trainer = trainer_for(tiny_model, tmp_path, SEGMENTS)
    trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.parametrize("attention", ["eager", "sdpa", SEGMENTS])
def test_apart_with_a_config_that_asks_for_a_cache(tiny_model: Path, attention: str) -> None:
    """As after training, when a model is made ready to generate: with a cache, nobody looks for documents in a row."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=attention)
    model.config.use_cache = True
    prove_isolation(model, 256, attention, CPU)


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


def test_a_proof_compiles_nothing(tiny_model: Path) -> None:
    """Its lengths are no other batch's; DeepCompile's model alone cannot run as it is."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    counter = CompileCounter()
    compiled, ids = torch.compile(model, backend=counter), torch.arange(8)[None]
    args = SimpleNamespace(ds_resolved=None, torch_compile=True)
    with uncompiled_and_unrounded(model, args):
        compiled(input_ids=ids)
    assert counter.frame_count == 0
    args.ds_resolved = {"compile": {"deepcompile": True}}
    with uncompiled_and_unrounded(model, args):
        compiled(input_ids=ids)
    assert counter.frame_count > 0


def test_the_model_inside() -> None:
    base = SimpleNamespace()
    adapted = SimpleNamespace(get_base_model=lambda: base)
    for model in (base, adapted, SimpleNamespace(module=base), SimpleNamespace(module=adapted)):
        assert _inner(model) is base


def test_as_much_as_logits_may_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """By half of the largest one, say, and not by more."""
    monkeypatch.setattr(packing_isolation, "TOLERANCE", 0.5)
    for moved, refused in ((1.5, False), (0.5, False), (1.5001, True), (0.4999, True)):
        numbers = iter([1.0, moved])
        with pytest.raises(ArgumentError, match="see each other") if refused else nullcontext():
            prove_isolation(
                torch.nn.Linear(1, 1), 9, "sdpa", CPU, lambda *_, of=numbers: torch.full((1, 24, 1), next(of))
            )
