"""Preference optimisation's reference, however it is kept: the same losses; renewed, what TR-DPO says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from hftune.trainers.features.reference_policy import COPY
from tests.architectures import few_quick
from tests.parity.stages import METHODS, losses, run_stage

KINDS = {
    "once": ("--precompute_ref_log_probs", "True"),
    "always": ("--precompute_ref_log_probs", "False"),
}


@pytest.fixture
def dpo(tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run run_dpo.py with flags; its trainer."""
    runs = iter(range(100))

    def train(*flags: str, steps: int = 4) -> Any:
        held_out = ("--validation_file_dir", str(tiny_data / "pairs_eval"))
        rate = () if "--learning_rate" in flags else ("--learning_rate", "1e-3")
        return run_stage(
            "dpo", tiny_model, tiny_data, tmp_path / str(next(runs)), *held_out, *rate, *flags,
            monkeypatch=monkeypatch, steps=steps,
        )  # fmt: skip

    return train


@pytest.mark.parametrize("method", METHODS)
def test_once_or_always(dpo: Any, method: str) -> None:
    """Adapter off or a second model in each step, or numbers computed before."""
    found = {}
    for kind, flags in KINDS.items():
        trainer = dpo(*METHODS[method], *flags)
        evaluated = [entry for entry in trainer.state.log_history if "eval_rewards/margins" in entry][-1]
        found[kind] = [*losses(trainer), evaluated["eval_loss"], evaluated["eval_rewards/margins"]]
        assert (trainer.ref_model is not None) == (method == "full" and kind == "always")
    assert found["once"] == pytest.approx(found["always"], abs=2e-5)
    assert found["once"][0] == pytest.approx(0.6931, abs=1e-3) and found["once"][3] < 0.6


@pytest.mark.slow
def test_an_adapter_that_goes_on_is_its_own_reference(dpo: Any, tmp_path: Path) -> None:
    first = dpo(*METHODS["lora"], "--learning_rate", "1e-2")
    found = [losses(dpo("--peft_path", str(tmp_path / "0"), *flags)) for flags in KINDS.values()]
    assert found[0] == pytest.approx(found[1], abs=2e-5)
    # The policy is the reference at first, whatever the adapter did before.
    assert found[0][0] == pytest.approx(0.6931, abs=1e-3) and losses(first)[-1] < 0.5
    assert not (tmp_path / "2" / COPY).exists(), "peft saves all adapters of a model"


@pytest.mark.slow
def test_another_model_as_reference(dpo: Any, tiny_model: Path, tmp_path: Path) -> None:
    """The base named again is the base; an adapter merged into it is another reference."""
    same = losses(dpo(*METHODS["lora"], "--ref_model", str(tiny_model)))
    assert same == pytest.approx(losses(dpo(*METHODS["lora"])), abs=2e-5)
    dpo(*METHODS["lora"], "--learning_rate", "1e-2")
    other = dpo(*METHODS["lora"], "--ref_adapters", str(tmp_path / "2"))
    # Margins of the reference are wide, and those of the policy 0: the loss begins above log 2.
    assert losses(other)[0] > 1.0


@pytest.mark.parametrize("method", few_quick([*METHODS], ["lora"]))
def test_renewed(dpo: Any, method: str) -> None:
    """With alpha 1 the reference is the policy again after every second step."""
    trainer = dpo(
        *METHODS[method], "--sync_ref_model", "True", "--ref_model_sync_steps", "2", "--ref_model_mixup_alpha", "1.0"
    )
    history = [entry["rewards/margins"] for entry in trainer.state.log_history if "loss" in entry]
    assert history[0] == pytest.approx(0, abs=1e-4) and history[2] == pytest.approx(0, abs=1e-4)
    assert history[1] > 0.05 and history[3] > 0.01
    for target, source in trainer.reference_policy.parameters():
        torch.testing.assert_close(target.data, source.data)
        assert not target.requires_grad


@pytest.mark.slow
def test_mixed_and_resumed(dpo: Any, tmp_path: Path) -> None:
    """alpha 0.25 of the policy; a run that goes on from a checkpoint has the reference of one that went through."""
    flags = (*METHODS["lora"], "--sync_ref_model", "True", "--ref_model_sync_steps", "1")
    flags = (*flags, "--ref_model_mixup_alpha", "0.25", "--save_strategy", "steps", "--save_steps", "2")
    whole = dpo(*flags)
    again = dpo(*flags, "--resume_from_checkpoint", str(tmp_path / "0" / "checkpoint-2"))
    assert losses(again)[-2:] == pytest.approx(losses(whole)[-2:], abs=1e-6)
    pairs = [list(trainer.reference_policy.parameters()) for trainer in (whole, again)]
    for (target, _source), (other, _) in zip(*pairs, strict=True):
        torch.testing.assert_close(target, other)
    assert isinstance(whole.model, PeftModel)
    assert any(not torch.equal(target, source) for target, source in pairs[0])
