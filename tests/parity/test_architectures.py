"""Every architecture goes through every stage, in full and with LoRA, and what is saved is what was trained."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.architectures import ARCHITECTURES, make_model
from tests.parity.shared_models import cells
from tests.parity.stages import METHODS, STAGES, losses, run_stage

CELLS = [(name, stage, method) for name in ARCHITECTURES for stage in STAGES for method in METHODS]
# In `make test` each architecture in one stage, in turns, in full or with LoRA.
FEW = [(name, STAGES[at % 5], [*METHODS][at % 2]) for at, name in enumerate(ARCHITECTURES)]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("architectures")
    return cache(lambda name: make_model(name, folder / name))


@pytest.mark.parametrize(("name", "stage", "method"), cells(CELLS, FEW))
def test_through_the_stages(
    name: str, stage: str, method: str,
    model_of: Callable[[str], Path], tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    base = model_of(name)
    trainer = run_stage(stage, base, tiny_data, tmp_path, *METHODS[method], monkeypatch=monkeypatch)
    assert all(math.isfinite(loss) for loss in losses(trainer))
    saved = reloaded(tmp_path, base, scores=stage == "rm", adapter=method == "lora")
    trained = logits(trainer.model)
    torch.testing.assert_close(logits(saved), trained, rtol=0, atol=1e-5)
    if stage != "rm":  # whose head the base does not have
        assert (trained - logits(AutoModelForCausalLM.from_pretrained(base))).abs().max() > 1e-4


def reloaded(folder: Path, base: Path, *, scores: bool, adapter: bool) -> torch.nn.Module:
    """As a user would, with plain transformers and peft; no weight may be missing or left over."""
    auto: Any = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    labels = {"num_labels": 1} if scores else {}
    if adapter:
        return PeftModel.from_pretrained(auto.from_pretrained(base, **labels), folder)
    model, info = auto.from_pretrained(folder, output_loading_info=True, **labels)
    assert not any(info.values()), info
    return model


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    ids = torch.arange(3, 40)[None]
    return model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
