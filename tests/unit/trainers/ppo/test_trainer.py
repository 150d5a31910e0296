"""PPO on a tiny model: its loss against a plain one, what is saved, how a run goes on, and what critics share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from hftune.models.kernels.heads import padded_rows
from hftune.trainers.ppo.critic import critic_from_reward
from tests.unit.trainers.rl_runs import PROMPTS, count_even, drawn, logged, make_trainer

pytestmark = pytest.mark.long

SMALL = ("--per_device_train_batch_size", "4", "--max_completion_length", "5", "--learning_rate", "1e-3")
LORA = ("--use_peft", "--lora_r", "4", "--target_modules", "all")


def plain_pass(model: torch.nn.Module, body: torch.nn.Module, head: torch.nn.Module, batch: dict) -> tuple:
    """Log-probabilities, entropies and values, row by row without padding."""
    found: list[list[torch.Tensor]] = [[], [], []]
    for row in range(len(batch["prompt_ids"])):
        prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
        answer = batch["completion_ids"][row][batch["completion_mask"][row].bool()]
        ids = torch.cat([prompt, answer])[None]
        distribution = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        values = head(body(ids).last_hidden_state[0, len(prompt) - 1 : -1])[:, 0]
        entropy = -(distribution.exp() * distribution).sum(-1)
        for place, tensor in enumerate((distribution.gather(1, answer[:, None])[:, 0], entropy, values)):
            found[place].append(tensor)
    return tuple(torch.cat(tensors) for tensors in found)


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_the_loss_is_the_papers(critic: str, tiny_model: Path, tmp_path: Path) -> None:
    """After the weights have moved: ratios, values and both clips computed again without padding or hooks."""
    flags = (*SMALL, "--vf_coef", "0.5", "--entropy_coef", "0.01", "--beta", "0.1", "--critic", critic)
    trainer = make_trainer(tiny_model, tmp_path, "ppo", count_even, *flags)
    batch = drawn(trainer, *PROMPTS)
    policy, kept = trainer.model, trainer.critic
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
        loss = trainer._compute_loss(policy, batch)
        body = policy.model if kept.body is None else kept.body
        logps, entropy, values = plain_pass(policy, body, kept.head, batch)
    mask = batch["mask"].bool()
    old, advantages, old_values, returns = (batch[name][mask] for name in ("logps", "advantages", "values", "returns"))
    ratio = (logps - old).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    near = old_values + (values - old_values).clamp(-0.2, 0.2)
    squared = torch.maximum((values - returns) ** 2, (near - returns) ** 2) / 2
    wanted = (-surrogate + 0.5 * squared - 0.01 * entropy).mean()
    torch.testing.assert_close(loss, wanted, atol=1e-6, rtol=1e-5)
    assert (ratio - 1).abs().max() > 0.2, "some ratio is clipped"


def test_a_run_is_saved_as_a_plain_model_and_goes_on(tiny_model: Path, tmp_path: Path) -> None:
    flags = (*SMALL, "--max_steps", "4", "--save_strategy", "steps", "--save_steps", "2", "--num_iterations", "2")
    whole = make_trainer(tiny_model, tmp_path, "ppo", count_even, *flags)
    whole.train()
    whole.save_model(str(tmp_path / "final"))

    plain, info = AutoModelForCausalLM.from_pretrained(tmp_path / "final", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    torch.testing.assert_close(plain.model.norm.weight, whole.model.model.norm.weight)
    names = load_file(tmp_path / "final" / "critic" / "critic.safetensors")
    assert "head.weight" in names and any(name.startswith("body.layers.0.") for name in names)

    half = tmp_path / "checkpoint-2"
    again = make_trainer(tiny_model, tmp_path, "ppo", count_even, *flags)
    again.train(resume_from_checkpoint=str(half))
    for name in ("loss", "reward", "value_loss"):
        assert logged(again, name) == pytest.approx(logged(whole, name), rel=1e-4, abs=1e-7), name
    for (name, left), right in zip(whole.model.named_parameters(), again.model.parameters(), strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-4, msg=name)


def test_policy_and_critic_are_saved_separately(tiny_model: Path, tmp_path: Path) -> None:
    """With DeepSpeed both come gathered in one; without, the critic has its own."""
    trainer = make_trainer(tiny_model, tmp_path, "ppo", count_even, *SMALL)
    gathered = {f"critic.{name}": torch.zeros_like(t) for name, t in trainer.critic.state_dict().items()}
    assert {*trainer.own_weights({"lm_head": torch.ones(1)} | gathered)} == {"lm_head"}
    for from_gathered in (True, False):
        with trainer.saving_weights(tmp_path):
            assert "critic" not in trainer.model._modules
        saved = load_file(tmp_path / "critic" / "critic.safetensors")
        assert any(tensor.any() for tensor in saved.values()) is not from_gathered


def test_with_lora_the_critic_is_a_second_adapter_on_the_same_base(tiny_model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_model, tmp_path, "ppo", count_even, *SMALL, *LORA, "--max_steps", "2")
    policy, critic = trainer.model, trainer.critic
    theirs = {id(parameter) for name, parameter in policy.named_parameters() if not name.startswith("critic.")}
    for name, parameter in critic.named_parameters():
        assert (id(parameter) in theirs) == (not parameter.requires_grad), name
    trainer.train()
    moved = [name for name, p in critic.named_parameters() if p.requires_grad and "lora_B" in name and p.any()]
    assert moved, "the critic's adapter learns"
    trainer.save_model(str(tmp_path / "final"))
    assert not any("critic" in name for name in load_file(tmp_path / "final" / "adapter_model.safetensors"))
    saved = load_file(tmp_path / "final" / "critic" / "critic.safetensors")
    assert {name.rsplit(".", 3)[-3] for name in saved if name != "head.bias" and name != "head.weight"} <= {
        "lora_A",
        "lora_B",
    }


def test_a_critic_from_a_reward_model_values_the_end_as_it_scores(tiny_model: Path) -> None:
    torch.manual_seed(0)
    policy = AutoModelForCausalLM.from_pretrained(tiny_model)
    reward = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1)
    ids = torch.arange(5, 15)[None]
    score = reward(ids).logits
    critic = critic_from_reward(policy, reward)
    # What the last state says is the value of the token behind it.
    longer = torch.cat([ids, ids[:, :1]], dim=1)
    values = critic(None, padded_rows(longer, torch.ones_like(longer), longer))
    torch.testing.assert_close(values[:, -1:], score)
    assert all(parameter.requires_grad for parameter in critic.parameters())


def test_rewards_are_those_of_the_answers_and_advantages_are_white(tiny_model: Path, tmp_path: Path) -> None:
    flags = ("--missing_eos_penalty", "1.0", "--reward_clip_range", "0.0", "0.4", "--beta", "0.05", *SMALL)
    trainer = make_trainer(tiny_model, tmp_path, "ppo", count_even, *flags)
    batch = drawn(trainer, *PROMPTS)
    mask = batch["mask"].bool()
    white = batch["advantages"][mask]
    assert white.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert white.std().item() == pytest.approx(1.0, abs=1e-4)
    ends = {trainer.processing_class.eos_token_id, trainer.processing_class.pad_token_id}
    for row, answer in enumerate(batch["completion_ids"]):
        ids = answer[mask[row]].tolist()
        wanted = min(count_even([ids])[0], 0.4) - (ids[-1] not in ends)
        # No value and no KL yet, so the return of the last token is the reward.
        assert batch["returns"][row][mask[row]][-1].item() == pytest.approx(wanted, abs=1e-6)
    assert batch["tokens"].item() == mask.sum().item()


def test_cut_answers_train_nothing_where_asked(tiny_model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tiny_model, tmp_path, "ppo", count_even, *SMALL, "--mask_truncated_completions")
    ids = [[6, 7], [6, trainer.processing_class.eos_token_id]]
    trainer._generate = lambda prompts: ([[5]] * 2, ids, [[{"role": "assistant", "content": "a"}]] * 2)
    assert drawn(trainer, *"ab")["mask"].tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("what", "method"),
    [
        ("full", LORA),
        ("mlp", ()),
        *(pytest.param(*more, marks=pytest.mark.slow) for more in (("full", ()), ("mlp", LORA))),
    ],
)
def test_recomputing_activations_changes_nothing(
    what: str, method: tuple[str, ...], tiny_model: Path, tmp_path: Path
) -> None:
    gradients = []
    for flags in ((), ("--gradient_checkpointing", "True", "--activation_checkpointing", what)):
        trainer = make_trainer(tiny_model, tmp_path, "ppo", count_even, *SMALL, "--vf_coef", "1.0", *method, *flags)
        if flags:
            trainer.model.gradient_checkpointing_enable()
        batch = drawn(trainer, *PROMPTS)
        trainer._compute_loss(trainer.model, batch).backward()
        trained = {name: p for name, p in trainer.model.named_parameters() if p.requires_grad}
        assert all(parameter.grad is not None for parameter in trained.values())
        gradients.append({name: parameter.grad for name, parameter in trained.items()})
        layers = trainer.critic.body.layers if what == "full" else [layer.mlp for layer in trainer.critic.body.layers]
        assert all(bool(getattr(layer, "gradient_checkpointing", False)) == bool(flags) for layer in layers)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6, rtol=1e-5, msg=name)
