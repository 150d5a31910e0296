"""The critic: the value of every prefix of an answer, held as a child of the policy.

As a child it belongs to the one module that the Trainer wraps: one engine, one optimizer, one checkpoint. Inside
`returning_values` the policy's forward pass returns values as well. The policy is saved without the critic, which has
a folder of its own next to it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, inject_adapter_in_model
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hftune.arguments.rl_algorithms import PPOArguments
from hftune.checkpoints.reward_scale import read_scale
from hftune.distributed import zero
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.attention.segments import SEGMENTS, VARLEN
from hftune.models.kernels.heads import AnswerRows, padded_rows, rows_to_score
from hftune.models.structure import body_of
from hftune.models.vocabulary import vocabulary_rows
from hftune.opening.safetensors_file import load_tensors
from hftune.trainers.features.run import plain_model
from hftune.trainers.rewards.loading import load_reward_model

FOLDER, WEIGHTS = "critic", "critic.safetensors"


@dataclass
class WithValues(ModelOutput):
    """What TRL's fused head returns, and values, each (B, T - 1).

    A class of its own, since DistributedDataParallel takes outputs apart and builds them anew.
    """

    log_probs: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    state_values: torch.Tensor | None = None


class Critic(nn.Module):
    """A value head, with a transformer of its own or on the policy's hidden states.

    Args:
        hidden_size: Of the states that the head reads.
        dtype: Of the head: that of the other trained weights, which ZeRO-3 gathers in the same buffers.
        body: A transformer without a head that returns `last_hidden_state`; None reads the policy's.
    """

    def __init__(self, hidden_size: int, dtype: torch.dtype, body: PreTrainedModel | None = None) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(hidden_size, 1, dtype=dtype)
        # Zeros: the first advantages are those of plain rewards, and no random value pulls on a shared trunk.
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self._states: torch.Tensor | None = None
        self._returns_values = False

    def forward(self, hidden: torch.Tensor | None, rows: AnswerRows) -> torch.Tensor:
        """Values (B, T - 1) in float32: at t, of all tokens before the one that is predicted there.

        Args:
            hidden: The policy's states, read where the critic has no body.
            rows: What the policy has read, and a body reads.
        """
        if self.body is not None:
            hidden = self.body(**rows.inputs).last_hidden_state
        assert hidden is not None, "attach() hooks into the policy's transformer"
        # Under autocast states are in 16 bit, and the head is in the dtype of the trained weights.
        values: torch.Tensor = self.head(rows.pick(hidden).to(self.head.weight.dtype)).squeeze(-1)
        return rows.spread(values.float())

    @contextmanager
    def returning_values(self) -> Iterator[None]:
        """Forward passes of the policy in the block also return `state_values` (B, T - 1)."""
        self._returns_values = True
        try:
            yield
        finally:
            self._returns_values, self._states = False, None

    def keep_states(self, transformer: nn.Module, args: Any, output: Any) -> None:
        """Forward hook of the policy's transformer: keep its states where they are read."""
        if self._returns_values and self.body is None:
            self._states = output.last_hidden_state

    def add_values(self, policy: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """Forward hook of the policy: value t is that of all tokens before the one with log-probability t."""
        if not self._returns_values:
            return None
        given = [kwargs[name] for name in ("input_ids", "attention_mask", "labels")]
        # A body of another kind of attention, as a reward model's may be, does not know rows that share prompts.
        shares = self.body is None or self.body.config._attn_implementation in (SEGMENTS, VARLEN)
        values = self(self._states, rows_to_score(plain_model(policy), *given) if shares else padded_rows(*given))
        self._states = None
        return WithValues(log_probs=output.log_probs, entropy=output.entropy, state_values=values)


def attach(policy: nn.Module, critic: Critic) -> None:
    """Make the critic a child of the policy, whose forward passes then call it."""
    policy.critic = critic
    transformer_of(policy).register_forward_hook(critic.keep_states)
    policy.register_forward_hook(critic.add_values, with_kwargs=True)


@contextmanager
def detached(policy: nn.Module) -> Iterator[Critic]:
    """The policy without its critic, to be saved or loaded as the model that it was."""
    # Hooks, parameters and the engine's references to them stay as they are.
    critic = policy.critic
    assert isinstance(critic, Critic)
    del policy.critic
    try:
        yield critic
    finally:
        policy.critic = critic


def transformer_of(policy: nn.Module) -> PreTrainedModel:
    """The transformer below the head of a causal LM or classifier, with the adapters that are injected into it."""
    return cast("PreTrainedModel", body_of(plain_model(policy)))


def shared_critic(policy: nn.Module) -> Critic:
    """A head on the policy's hidden states."""
    return Critic(_hidden_size(transformer_of(policy)), _trained_dtype(policy))


def critic_like(policy: nn.Module, again: PreTrainedModel | None = None) -> Critic:
    """A critic that begins as the policy, with a head of zeros.

    Frozen weights are shared, so that with LoRA the critic is a second adapter on the same base; trained ones are
    copied.

    Args:
        policy: Not wrapped yet by a trainer.
        again: The same model read once more, needed where ZeRO-3 has partitioned the trained weights.

    Raises:
        ArgumentError: Trained weights are partitioned, and there is no `again`.
    """
    transformer = transformer_of(policy)
    if again is not None:
        body = transformer_of(again)
        # What is frozen in the policy is frozen in its critic.
        for parameter, other in zip(body.parameters(), transformer.parameters(), strict=True):
            parameter.requires_grad_(other.requires_grad)
    elif needs_reading_again(policy):
        raise ArgumentError(
            "ZeRO-3 has partitioned weights that are trained next to the adapter, and they cannot be copied",
            place="--critic separate",
            fix="use --critic shared, or leave out --modules_to_save",
        )
    else:
        shared = {id(parameter): parameter for parameter in transformer.parameters() if not parameter.requires_grad}
        # deepcopy takes what its memo has for done: frozen weights are not copied.
        body = copy.deepcopy(transformer, shared)
    return Critic(_hidden_size(body), _trained_dtype(policy), body)


def needs_reading_again(policy: nn.Module) -> bool:
    """Whether trained weights are in pieces already."""
    return any(zero.is_partitioned(parameter) and parameter.requires_grad for parameter in policy.parameters())


def critic_from_reward(policy: nn.Module, reward: PreTrainedModel, mean: float = 0.0, std: float = 1.0) -> Critic:
    """A critic that begins as the reward model, its score head as the value head (Stiennon 2020, section 3.4).

    In full training all of it is trained; with LoRA a fresh adapter on it, of the policy's rank and kind of modules,
    and the head.

    Args:
        reward: A sequence classifier with one label and without a bias, of the policy's vocabulary. It is taken over.
        mean, std: Rewards are (score - mean) / std, and so are the first values.
    """
    body = transformer_of(reward)
    critic = Critic(_hidden_size(body), _trained_dtype(policy), body)
    with torch.no_grad():
        critic.head.weight.copy_(reward.score.weight / std)
        critic.head.bias.fill_(-mean / std)
    if isinstance(policy, PeftModel):
        body.requires_grad_(False)
        body.to(_trained_dtype(policy))
        inject_adapter_in_model(_adapter_like(policy), body)
        # With frozen embeddings, reentrant checkpointing would have no input with a gradient.
        body.enable_input_require_grads()
    else:
        body.float().requires_grad_(True)
    return critic


def save_critic(critic: Critic, folder: str | Path, state: Mapping[str, torch.Tensor]) -> None:
    """Write the trained weights of the critic into `folder/critic`, for a run that resumes.

    Args:
        state: Whole tensors by their names in the critic; others than the trained ones are left out.
    """
    place = Path(folder) / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    # Frozen ones are those of the base, or of the reward model that it began as.
    trained = {name: state[name].detach().cpu().contiguous() for name in _trained(critic)}
    save_file(trained, place / WEIGHTS, metadata={"format": "pt"})


def load_critic(critic: Critic, folder: str | Path) -> None:
    """Put saved weights back.

    Raises:
        ArgumentError: There are none, or they are those of another kind of critic.
    """
    file = Path(folder) / FOLDER / WEIGHTS
    fix = "resume with the flags that it was trained with, or start anew with --resume_from_checkpoint False"
    if not file.is_file():
        raise ArgumentError(f"{folder} holds no critic", place="--resume_from_checkpoint", fix=fix)
    tensors = load_tensors(file)
    if set(tensors) != set(_trained(critic)):
        raise ArgumentError(f"{file} is that of another critic", place="--critic", fix=fix)
    for name, parameter in critic.named_parameters():
        if name in tensors:
            # Partitioned by the time that a checkpoint is loaded.
            with zero.gathered([parameter], write=True):
                parameter.data.copy_(tensors[name].to(parameter.dtype))


def _trained(critic: Critic) -> list[str]:
    return [name for name, parameter in critic.named_parameters() if parameter.requires_grad]


def _hidden_size(transformer: PreTrainedModel) -> int:
    return int(transformer.config.get_text_config().hidden_size)


def _trained_dtype(policy: nn.Module) -> torch.dtype:
    found = (parameter.dtype for parameter in policy.parameters() if parameter.requires_grad)
    return next(found, torch.float32)


def _adapter_like(policy: PeftModel) -> LoraConfig:
    """The policy's adapter for another model: by the last part of the names of the modules that it is in."""
    config = policy.peft_config["default"]
    adapted = {name.split(".lora_A.")[0] for name, _ in policy.named_parameters() if ".lora_A." in name}
    return LoraConfig(
        r=config.r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        use_rslora=config.use_rslora,
        # By the last part: paths in a classifier begin otherwise than in a causal LM.
        target_modules=sorted({name.rsplit(".", 1)[-1] for name in adapted}),
    )


def build_critic(
    policy: PreTrainedModel | PeftModel, args: PPOArguments, read_again: Callable[[], PreTrainedModel] | None
) -> Critic:
    """The critic that --critic and --critic_init ask for.

    Raises:
        ArgumentError: A reward model with another vocabulary, or weights that cannot be copied.
    """
    critic = shared_critic(policy) if args.critic == "shared" else _own_critic(policy, args, read_again)
    trained = sum(zero.full_numel(parameter) for parameter in critic.parameters() if parameter.requires_grad)
    notice(f"critic: {args.critic}, {trained:,} weights are trained")
    return critic


def _own_critic(
    policy: PreTrainedModel | PeftModel, args: PPOArguments, read_again: Callable[[], PreTrainedModel] | None
) -> Critic:
    if args.critic_init == "policy":
        impossible = not isinstance(policy, PeftModel) and needs_reading_again(policy)
        again = read_again() if read_again is not None and impossible else None
        return critic_like(policy, again)
    assert args.reward_model_path, "preflight asks for one"
    # Of several the first: one critic begins as one model.
    path = args.reward_model_path[0]
    reward, _ = load_reward_model(path, torch.float32, trust_remote_code=args.trust_remote_code)
    if reward.config.num_labels != 1:
        raise ArgumentError(
            f"{path} scores steps, not conversations", place="--critic_init reward", fix="use --critic_init policy"
        )
    if vocabulary_rows(reward) != vocabulary_rows(policy):
        raise ArgumentError(
            f"{path} reads another vocabulary than the policy writes",
            place="--critic_init reward",
            fix="use --critic_init policy",
        )
    notice(f"the critic begins as {path}, read whole by every process")
    scale = read_scale(path) if args.normalize_rewards else None
    return critic_from_reward(policy, reward, *((scale.mean, scale.std) if scale else ()))
