"""Nothing in a micro batch of SFT waits for the device: between two steps the host runs ahead of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.masking_utils import causal_mask_function

import hftune
from hftune.arguments.entry import parse_arguments
from hftune.data.splits import Splits
from hftune.models.adapters.preparation import add_adapter
from hftune.models.attention.segments import segments_mask
from hftune.trainers.sft import SFTTrainer
from tests.unit.data.helpers import make_tokenizer
from tests.unit.trainers.test_reward import trainer as reward_trainer
from tests.unit.trainers.test_turn_weights import FLAGS, data
from tests.unit.trainers.tiny import QUIET, tiny_llama

WAITING = {"nonzero", "_local_scalar_dense", "item", "equal", "masked_select", "unique_dim", "_unique2"}
OURS = str(Path(hftune.__file__).parent)
AT_THE_END = ("nan_guard.py",)
"""On a CPU losses are looked at after each micro batch, elsewhere when the step ends."""


class Waits(TorchDispatchMode):
    """Notes which files of hftune need the values of a tensor; what libraries do of themselves is theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.on = False

    def __enter__(self) -> Any:
        self.on = True
        return super().__enter__()

    def __exit__(self, *problem: Any) -> None:
        self.on = False
        super().__exit__(*problem)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(one is not None and one.dtype == torch.bool for one in args[1])
        if name in WAITING or by_mask:
            self.note(name)
        return func(*args, **(kwargs or {}))

    def note(self, name: str) -> None:
        if not self.on:
            return
        frame = sys._getframe(1)
        while any(part in frame.f_code.co_filename for part in ("/torch/", "/tests/")):
            frame = frame.f_back or frame
        if frame.f_code.co_filename.startswith(OURS) and not frame.f_code.co_filename.endswith(AT_THE_END):
            self.found.append((name, Path(frame.f_code.co_filename).name))


@pytest.mark.parametrize("layout", [[], ["--padding_free"]], ids=["padded", "flat"])
@pytest.mark.parametrize("adapter", [[], ["--use_peft", "--lora_rank", "2"]], ids=["all weights", "adapter"])
def test_a_micro_batch_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: list[str], adapter: list[str]
) -> None:
    flags = [*QUIET, *FLAGS, "--max_steps", "3", "--output_dir", str(tmp_path)]
    _, _, adapter_args, args = parse_arguments("sft", [*flags, *layout, *adapter])
    model = tiny_llama()
    model.set_attn_implementation("sdpa")  # what hftune's own asks once is below
    trainer = SFTTrainer(add_adapter(model, adapter_args, args), args, make_tokenizer(), Splits(data(), None))
    assert waits_of(trainer, monkeypatch) == []


def test_a_reward_model_waits_for_nothing(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    (tmp_path / "pairs.jsonl").write_text(6 * f"{json.dumps(pair)}\n")
    flags = ("--max_steps", "3", "--eval_strategy", "no", "--attn_implementation", "sdpa", "--disable_tqdm", "True")
    made, _ = reward_trainer(tiny_model, tmp_path / "pairs.jsonl", tmp_path / "out", *flags)
    assert waits_of(made, monkeypatch) == []


def waits_of(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Of the second and the third micro batch of a run of three steps: in the first the head is tried out."""
    step, waits, steps = trainer.training_step, Waits(), []
    for name in ("tolist", "cpu"):  # these are no operations of torch on a CPU
        plain = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda self, plain=plain, name=name: [waits.note(name), plain(self)][1])

    def watched(*given: Any, **named: Any) -> torch.Tensor:
        steps.append(1)
        if len(steps) == 1:
            return step(*given, **named)
        with waits:
            return step(*given, **named)

    monkeypatch.setattr(trainer, "training_step", watched)
    trainer.train()
    assert len(steps) == 3
    return waits.found


def test_runs_of_tokens_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hftune's own attention: everything before is computed where the batch is, everything after on the host."""
    waits, plain, seen = Waits(), torch.Tensor.cpu, []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: seen.append([*waits.found]) or plain(self))
    mask = torch.tensor([[True, True, False], [True, True, True]])
    with waits:
        runs = segments_mask(2, 3, 3, mask_function=causal_mask_function, attention_mask=mask)
    assert runs.lengths == (2, 1, 3) and seen == [[]]
