"""No stage is silent for longer than a batch: what the watchdog would call a hang is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from hftune.arguments.entry import parse_arguments
from hftune.data.splits import Splits
from hftune.distributed import phases
from hftune.models.adapters.preparation import add_adapter
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.reward_model import load_reward_model
from hftune.models.loading.tokenizer import load_tokenizer
from hftune.preflight.facts import resolve
from hftune.trainers.dpo import DPOTrainer
from hftune.trainers.process_reward import reward_trainer
from hftune.trainers.pt import PTTrainer
from hftune.trainers.rewards.score_batches import run_batches
from hftune.trainers.sft import SFTTrainer
from tests.unit.trainers.rl_runs import make_trainer

pytestmark = pytest.mark.long

ROWS = 6
QUIET = ["--report_to", "none", "--disable_tqdm", "True", "--use_cpu", "True", "--gradient_checkpointing", "False"]
QUIET += ["--save_strategy", "no", "--per_device_eval_batch_size", "2", "--per_device_train_batch_size", "2"]
TEXT = {"input_ids": [3, 4, 5], "labels": [3, 4, 5], "length": 3, "seq_lengths": [3]}
PAIR = {"prompt_ids": [3, 4], "chosen_ids": [5, 6], "rejected_ids": [7], "length": 5, "margin": 1.0}
SCORED = {"chosen_ids": [3, 5, 6], "rejected_ids": [3, 7], "length": 3, "margin": 1.0}
STEPS = {"input_ids": [3, 4, 5], "ends": [1, 2], "step_labels": [1.0, 0.0], "source": "a", "length": 3}


def rows(record: dict[str, Any]) -> Splits:
    """Six alike, to train on and held out."""
    data = Dataset.from_list([record] * ROWS)
    return Splits(data, data, {"train": {}})


def stage_trainer(stage: str, model: Path, folder: Path, *flags: str) -> Any:
    argv = ["--model_name_or_path", str(model), "--output_dir", str(folder), *QUIET, *flags]
    model_args, _, adapter_args, args = resolve(stage, parse_arguments(stage, argv)).arguments
    tokenizer = load_tokenizer(model_args, args)
    if stage == "rm":
        loaded = load_reward_model(model_args, adapter_args, args, tokenizer)
        return reward_trainer(loaded, args, tokenizer, rows(STEPS if args.head == "steps" else SCORED))
    loaded = add_adapter(load_causal_lm(model_args, adapter_args, args, tokenizer), adapter_args, args)
    if stage == "dpo":
        return DPOTrainer(loaded, args, tokenizer, rows(PAIR), starts_as_base=True)
    return {"pt": PTTrainer, "sft": SFTTrainer}[stage](loaded, args, tokenizer, rows(TEXT))


def at_each_call(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[phases.Phase]:
    """The phase in which each call of a method begins."""
    seen: list[phases.Phase] = []
    whole: Callable[..., Any] = getattr(owner, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        seen.append(phases.now())
        return whole(*args, **kwargs)

    monkeypatch.setattr(owner, name, noted)
    return seen


STAGES = {
    "sft": ("sft",),
    "outcome reward": ("rm",),
    "process reward": ("rm", "--reward_kind", "process"),
    "dpo live reference": ("dpo", "--precompute_ref_log_probs", "False", "--use_peft"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_each_batch_of_an_evaluation_is_heard(
    stage: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = stage_trainer(STAGES[stage][0], tiny_model, tmp_path, *STAGES[stage][1:])
    seen = at_each_call(trainer, "prediction_step", monkeypatch)
    trainer.evaluate()
    counts = [phase.count for phase in seen]
    assert len(counts) == ROWS / 2 and len({*counts}) == len(counts), counts
    assert {phase.name for phase in seen} == {phases.EVALUATION}


@pytest.mark.parametrize(
    "algorithm", ["grpo", "ppo", *(pytest.param(one, marks=pytest.mark.slow) for one in ("rloo", "online_dpo"))]
)
def test_each_batch_of_answers_is_heard(
    algorithm: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--max_completion_length", "4", "--per_device_eval_batch_size", "2", "--num_generations", "2"]
    flags += ["--num_generations_eval", "2", "--beta", "0.1", "--per_device_train_batch_size", "2"]
    trainer = make_trainer(tiny_model, tmp_path, algorithm, lambda completions, **_: [1.0] * len(completions), *flags)
    rewards = at_each_call(trainer, "_calculate_rewards", monkeypatch)
    batches = at_each_call(trainer, "prediction_step", monkeypatch)
    passes = signs_of_life(monkeypatch)
    trainer.evaluate()
    assert len(batches) == 4 and len({phase.count for phase in batches}) == 4
    assert len({phase.count for phase in rewards}) == 4
    assert len(passes) >= 4 * 4, "each token that is generated is a sign of life"
    assert not any(module._forward_pre_hooks for module in trainer.model.modules()), "and only there"


def signs_of_life(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    alive = phases.keep_alive
    monkeypatch.setattr(phases, "keep_alive", lambda: (found.append(0.0), alive())[1])
    return found


@pytest.mark.parametrize("algorithm", ["grpo", pytest.param("rloo", marks=pytest.mark.slow)])
def test_each_piece_of_a_large_batch_of_answers_is_heard(
    algorithm: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL reads the log-probabilities of all answers of a step at once, micro batch by micro batch."""
    trainer = make_trainer(tiny_model, tmp_path, algorithm, lambda completions, **_: [1.0] * len(completions))
    found = signs_of_life(monkeypatch)
    ids = torch.full((6, 4), 5)
    with torch.no_grad():
        trainer._get_per_token_logps_and_entropies(trainer.model, ids, torch.ones_like(ids), 2, batch_size=2)
    assert len(found) == 3
    trainer._get_per_token_logps_and_entropies(trainer.model, ids, torch.ones_like(ids), 2, batch_size=2)
    assert len(found) == 3, "training is heard by its steps"


def test_each_batch_of_a_computed_reference_is_heard(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    trainer = stage_trainer("dpo", tiny_model, tmp_path, "--precompute_ref_log_probs", "True")
    seen = signs_of_life(monkeypatch)
    trainer.reference_policy.compute(trainer.train_dataset, "train")
    assert len(seen) == ROWS / 2


def test_each_batch_of_a_reward_model_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scores(torch.nn.Module):
        device = torch.device("cpu")

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            return type("Output", (), {"logits": torch.zeros(len(input_ids), 1)})

    one = type("One", (), {"ids": [1, 2, 3], "ends": None, "outputs": None})
    seen = signs_of_life(monkeypatch)
    run_batches(Scores(), [one() for _ in range(4)], 0, batch_tokens=6)  # type: ignore[arg-type]
    assert len(seen) == 2


def test_a_sign_of_life_begins_the_time_again_and_is_no_phase() -> None:
    """Processes that do the same work count alike, however often each one says that it lives."""
    with phases.timed("evaluation"):
        before = phases.now()
        phases.keep_alive()
        after = phases.now()
    assert after.since >= before.since and after is not before
    assert (after.name, after.count, after.step, after.timed) == (before.name, before.count, before.step, True)
