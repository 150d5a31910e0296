"""What TRL's users call on a DPO trainer works on hftune's."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import trl
from datasets import Dataset

from tests.unit.trainers.features.test_phases import stage_trainer

TEXTS = {"prompt": "one", "chosen": " two three", "rejected": " four"}
TRLS = {"rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "entropy"}


@pytest.mark.parametrize("flags", [(), ("--use_peft", "--precompute_ref_log_probs", "False")])
def test_texts_are_evaluated_as_trl_does_it(flags: tuple[str, ...], tiny_model: Path, tmp_path: Path) -> None:
    trainer = stage_trainer("dpo", tiny_model, tmp_path, *flags)
    assert isinstance(trainer, trl.DPOTrainer)
    metrics = trainer.evaluate(Dataset.from_list([TEXTS] * 3), metric_key_prefix="test")
    # The policy is its own reference: no margin, and a loss of log 2.
    assert metrics["test_loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert {f"test_{name}" for name in TRLS} <= {*metrics}


def test_losses_and_the_reference_of_a_batch(tiny_model: Path, tmp_path: Path) -> None:
    trainer = stage_trainer("dpo", tiny_model, tmp_path, "--padding_free", "True")
    assert trainer.data_collator.flat and trainer.args.flat_batches, "as rules and the loader have it"
    batch = trainer._prepare_inputs(trainer.data_collator([trainer.train_dataset[0]] * 2))
    chosen, rejected = trainer.compute_ref_log_probs(trainer.model, batch)
    assert chosen.shape == rejected.shape == (2,) and not chosen.requires_grad
    loss, outputs = trainer.compute_loss(trainer.model, batch, return_outputs=True)
    assert float(loss.detach()) == pytest.approx(math.log(2), abs=1e-5) and outputs.log_probs is not None
    torch.testing.assert_close(trainer.answer_sums(trainer.model, batch).detach(), torch.cat([chosen, rejected]))


def test_logs_have_trls_names(tiny_model: Path, tmp_path: Path) -> None:
    trainer = stage_trainer("dpo", tiny_model, tmp_path, "--max_steps", "1", "--logging_steps", "1")
    trainer.train()
    assert TRLS | {"num_tokens", "loss"} <= {*trainer.state.log_history[0]}
