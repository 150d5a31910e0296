"""RL in rows that share prompts, with answers drawn together: the answers, losses and gradients of plain TRL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.architectures import few_quick
from tests.unit.trainers import rl_runs
from tests.unit.trainers.rl_runs import count_even, logged, make_trainer

pytestmark = pytest.mark.long

STEPS = 5
SHARED = {
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 4, "beta": 0.05,
    "max_completion_length": 8, "learning_rate": 2e-4, "lr_scheduler_type": "constant", "max_steps": STEPS,
    "weight_decay": 0.0, "max_grad_norm": 1.0, "seed": 11, "optim": "adamw_torch", "warmup_steps": 0,
}  # fmt: skip
# Enough for all steps: in a second epoch prompts come in an order of hftune's.
PROMPTS = [f"What is {number} plus {2 * number}, {'and why' * (number % 3)}?" for number in range(20)]
FIGURES = ("loss", "grad_norm", "reward", "kl", "entropy", "completions/mean_length")


def by_trl(model: Path, folder: Path, algorithm: str, **options: Any) -> Any:
    config = getattr(trl, f"{algorithm.upper()}Config")(
        **(SHARED | options), output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", logging_steps=1,
        save_strategy="no", disable_tqdm=True, gradient_checkpointing=False,
    )  # fmt: skip
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    policy.get_input_embeddings().padding_idx = None  # hftune trains this row, too, where an answer has the token
    return getattr(trl, f"{algorithm.upper()}Trainer")(
        model=policy,
        args=config,
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in PROMPTS]}),
        reward_funcs=count_even,
    )


CASES = {
    "grpo": ("grpo", {}),
    "grpo, accumulated": ("grpo", {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}),
    "grpo, twice over": ("grpo", {"num_iterations": 2}),
    "grpo, an entropy bonus": ("grpo", {"entropy_coef": 0.01}),
    "grpo, sampled otherwise": ("grpo", {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "loss_type": "grpo"}),
    "rloo": ("rloo", {}),
}


@pytest.mark.parametrize("case", few_quick([*CASES], [*CASES][1::2]))
def test_five_steps_are_those_of_trl(
    case: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rl_runs, "PROMPTS", PROMPTS)
    algorithm, options = CASES[case]
    theirs = by_trl(tiny_model, tmp_path / "trl", algorithm, **options)
    theirs.train()
    flags = [part for name, value in (SHARED | options).items() for part in (f"--{name}", str(value))]
    ours = make_trainer(
        tiny_model, tmp_path / "ours", algorithm, count_even, *flags, "--shared_prompts", "True", "--dtype", "float32"
    )
    ours.train()
    assert ours._logs["completion"][-1] == theirs._logs["completion"][-1]
    for name in FIGURES:
        # AdamW makes more of rounding than there is in a loss; KL of RLOO is a sum over whole answers.
        near = {"abs": 1e-5} if name == "loss" else {"abs": 1e-4, "rel": 2e-3}
        assert logged(ours, name) == pytest.approx(logged(theirs, name), **near), name
    assert len(logged(ours, "loss")) == STEPS and max(logged(ours, "grad_norm")) > 1e-3
