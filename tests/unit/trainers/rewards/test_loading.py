"""Reward models that are adapters, also upon other adapters, are folded as they were trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hftune.arguments.entry import parse_arguments
from hftune.checkpoints.manifest import write_manifest
from hftune.models.adapters.preparation import add_adapter
from hftune.models.loading.reward_model import load_reward_model as load_base
from hftune.models.loading.tokenizer import load_tokenizer
from hftune.trainers.rewards.loading import load_reward_model, load_rewards, log_names
from tests.unit.models.adapting import arguments, load, train
from tests.unit.trainers.rl_runs import logged, make_trainer

IDS = torch.arange(3, 35).reshape(2, 16)


def scores(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


def test_a_reward_adapter_upon_another_adapter(tiny_model: Path, tmp_path: Path) -> None:
    below, above = tmp_path / "below", tmp_path / "above"
    _, adapter_args, training_args = arguments(tiny_model)
    first = add_adapter(load(tiny_model), adapter_args, training_args)
    train(first)
    first.save_pretrained(below)

    argv = ["--model_name_or_path", str(tiny_model), "--output_dir", "o", "--gradient_checkpointing", "0"]
    argv += ["--peft_path", str(below), "--create_new_adapter", "--lora_r", "4"]
    model_args, _, adapter_args, training_args = parse_arguments("rm", argv)
    tokenizer = load_tokenizer(model_args, training_args)
    reward = add_adapter(load_base(model_args, adapter_args, training_args, tokenizer), adapter_args, training_args)
    optimizer = torch.optim.AdamW([p for p in reward.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(3):
        reward(IDS).logits.diff(dim=0).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    reward.save_pretrained(above)
    tokenizer.save_pretrained(above)
    write_manifest(above, {"base": {"name": str(tiny_model), "adapters": [str(below)]}, "head": "score"})

    folded, _ = load_reward_model(str(above), torch.float32)
    torch.testing.assert_close(scores(folded), scores(reward), atol=1e-4, rtol=1e-4)


def test_names_in_the_log_are_told_apart(tmp_path: Path) -> None:
    assert log_names([]) == []
    assert log_names(["a/rm", "b/other"]) == ["rm", "other"]
    assert log_names(["a/rm", "b/rm"]) == ["a-rm", "b-rm"]
    assert log_names(["a/rm", "a/rm"]) == ["rm", "rm"], "the same one twice"


def test_two_reward_models_are_logged_apart(tiny_model: Path, tmp_path: Path) -> None:
    """Of one name each, and rewarded by the weighted sum of both."""
    torch.manual_seed(0)
    for name in ("a", "b"):
        reward = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1)
        reward.save_pretrained(tmp_path / name / "rm")
        AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / name / "rm")
    argv = ["--model_name_or_path", str(tiny_model), "--output_dir", "o", "--reward_model_path"]
    model_args, _, _, args = parse_arguments("rl", [*argv, str(tmp_path / "a" / "rm"), str(tmp_path / "b" / "rm")])
    models, tokenizers = load_rewards(args, model_args)
    flags = ("--per_device_train_batch_size", "4", "--max_completion_length", "4", "--reward_weights", "2.0", "0.5")
    more = {"tokenizers": tokenizers}
    trainer = make_trainer(tiny_model, tmp_path / "o", "ppo", models, *flags, "--max_steps", "1", **more)
    trainer.train()
    assert trainer.reward_func_names == ["a-rm", "b-rm"]
    first, second, both = (logged(trainer, n)[0] for n in ("rewards/a-rm/mean", "rewards/b-rm/mean", "reward"))
    assert first != second
    assert both == pytest.approx(2 * first + 0.5 * second, abs=1e-5)
