"""How RL trains: one class an algorithm, on the config of TRL's trainer that it extends."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any, TypeAlias

import trl

from hftune.arguments.data import TurnTokenFields
from hftune.arguments.option import option
from hftune.arguments.raw_arguments import GIVEN_NAMES
from hftune.arguments.training import StageArguments
from hftune.checks import refuse
from hftune.logging import notice
from hftune.tables import cell_value, read_table


@dataclass
class RLFields(TurnTokenFields):
    """What all RL algorithms add to TRL's."""

    rl_algorithm: str = option("grpo", "Which algorithm.", choices=["grpo", "rloo", "ppo", "online_dpo"])
    reward_model_path: list[str] | None = option(
        None, "Reward models: output folders of run_rm.py, adapters or merged."
    )
    reward_funcs: list[str] | None = option(
        None,
        "Reward functions: built-in ones such as accuracy or format, or in Python as module:function or "
        "file.py:function.",
    )
    reward_timeout: float | None = option(None, "Seconds that a call of --reward_funcs may take; left out: any number.")
    reward_retries: int = option(0, "Further calls of a reward function that failed, hung or returned no rewards.")
    reward_cache: str | None = option(
        None,
        "A folder where the rewards of --reward_funcs are kept by prompt, answer and record: none is "
        "asked for twice, and a run is replayed from it.",
    )
    system_prompt: str | None = option(None, "System message put before each prompt that has none of its own.")
    sample_completions: int = option(
        8, "Completions written to completions.jsonl in the output folder at each logged step."
    )
    normalize_rewards: bool = option(
        True, "Subtract the mean and divide by the deviation that run_rm.py stored with a reward model."
    )
    max_prompt_length: int | None = option(None, "Prompts with more tokens than this are dropped, and counted.")
    shared_prompts: bool | None = option(
        None,
        "Score and train answers side by side behind one copy of their prompt, without pads; left out: where exact.",
    )


GRPO_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    row["name"]: (row["paper"], cell_value(row["sets"])) for row in read_table(__package__, "grpo_variants.csv")
}
"""What each paper sets of TRL's options, and where it says so."""


@dataclass
class _RLStage(StageArguments, RLFields):
    """What all algorithms say of themselves."""

    @property
    def keeps_reference(self) -> bool:
        """Overrides `StageArguments.keeps_reference`: the policy's distance from it is part of the loss."""
        return bool(self.beta)

    @property
    def flat_batches(self) -> bool:
        """Overrides `StageArguments.flat_batches`: answers behind one copy of their prompt are."""
        return bool(self.shared_prompts)


@dataclass
class GRPOArguments(_RLStage, trl.GRPOConfig):
    """Group relative policy optimisation (arXiv:2402.03300)."""

    grpo_variant: str | None = option(
        None,
        "Set what a paper sets: loss_type, scale_rewards, clip range. Left out: TRL's defaults.",
        choices=list(GRPO_VARIANTS),
    )
    normalize_advantages: bool = option(
        False, "Scale advantages to mean 0 and deviation 1 over the answers of a batch of all processes."
    )
    dynamic_sampling: bool | None = option(
        None, "Draw other prompts for those whose answers all score alike, until the batch is full."
    )
    max_sampling_rounds: int = option(
        10, "Batches of answers that --dynamic_sampling makes for one at most; 1 is without."
    )
    tools: list[str] | None = option(
        None,
        "Functions that the policy may call while it answers, as module:function or file.py:function; "
        "their docstrings and type hints tell it how. --max_tool_calling_iterations bounds the turns.",
    )

    def __post_init__(self) -> None:
        if self.grpo_variant is not None:
            self._follow_paper(self.grpo_variant)
        # Words of a command line; TRL knows those of Python.
        scale = str(vars(self)["scale_rewards"])
        self.scale_rewards = {"True": "group", "False": "none"}.get(scale, scale)
        super().__post_init__()

    def _follow_paper(self, variant: str) -> None:
        """Set what was not given; what was given, or has another value than its default, stays, and is said."""
        paper, wanted = GRPO_VARIANTS[variant]
        # A value that differs from its default was set by somebody, in code too, where GIVEN_NAMES knows nothing.
        defaults = {entry.name: entry.default for entry in fields(self)}
        changed = {name for name, value in wanted.items() if getattr(self, name) not in (defaults[name], value)}
        kept = changed | {name for name in GIVEN_NAMES.get() & wanted.keys() if getattr(self, name) != wanted[name]}
        for name in wanted.keys() - kept:
            setattr(self, name, wanted[name])
        values = ", ".join(f"--{name} {getattr(self, name)}" for name in wanted)
        own = f"; as given: {', '.join(sorted(kept))}" if kept else ""
        notice(f"--grpo_variant {variant} ({paper}): {values}{own}")


@dataclass
class RLOOArguments(_RLStage, trl.RLOOConfig):
    """REINFORCE leave-one-out (arXiv:2402.14740)."""

    # A tuple in TRL, of which its parser takes one number.
    reward_clip_range: list[float] | None = option(None, "Two numbers, between which weighted rewards are kept.")


@dataclass
class _Loop(trl.RLOOConfig):
    """TRL's options of generation and rewards, without the rule that a prompt needs two answers."""

    def __post_init__(self) -> None:
        # Past RLOOConfig's own, which refuses one answer a prompt; what else it does is here.
        super(trl.RLOOConfig, self).__post_init__()
        # TRL resolves its "auto" in the post-init that is left out; on GPUs and CPUs it becomes None.
        self.pad_to_multiple_of = None
        # All processes together: groups of answers are compared across ranks.
        one_step = self.per_device_train_batch_size * self.world_size
        refuse(__package__, "answers", self, SimpleNamespace(one_step=one_step))
        # One of the two ways to say how many micro batches answers are made for, or neither.
        asked, size = vars(self)["steps_per_generation"], vars(self)["generation_batch_size"]
        self.steps_per_generation = size // one_step if size else asked or self.gradient_accumulation_steps
        self.generation_batch_size = one_step * self.steps_per_generation
        refuse(__package__, "groups", self)


@dataclass
class PPOArguments(RLOOArguments, _Loop):
    """Proximal policy optimisation with a critic (arXiv:1707.06347, 1909.08593)."""

    num_generations: int = option(1, "Answers a prompt in a batch.")
    # Four epochs over a batch, as in the paper on summaries (arXiv:2009.01325) and TRL's former PPO.
    num_iterations: int = option(4, "Epochs over each batch of answers.")
    num_mini_batches: int = option(1, "Optimizer steps in an epoch over the answers; each is a batch of that many.")
    normalize_advantages: bool = option(True, "Whiten advantages over the tokens of a batch of all processes.")
    whiten_rewards: bool = option(False, "Scale rewards a token to a standard deviation of 1, without shifting them.")
    missing_eos_penalty: float | None = option(None, "Taken from the reward of an answer that does not end by itself.")
    kl_estimator: str = option("k1", "KL in the reward: k1 the log ratio, k3 never negative.", choices=["k1", "k3"])
    gamma: float = option(1.0, "Discount a token.")
    # 0.95 from the paper on GAE (arXiv:1506.02438); gamma 1 since a reward comes at the end of an answer.
    lam: float = option(0.95, "Lambda of the generalised advantage estimate.")
    cliprange_value: float | None = option(
        0.2, "How far a value may move from that at the start of the batch, to count fully."
    )
    vf_coef: float = option(0.1, "Weight of the critic's loss.")
    entropy_coef: float = option(0.0, "Weight of an entropy bonus a token.")
    critic: str = option(
        "separate",
        "separate: a model of its own (with LoRA an adapter on the same frozen base). shared: a head on "
        "the policy's hidden states.",
        choices=["separate", "shared"],
    )
    critic_init: str = option(
        "policy",
        "A separate critic begins as the policy and a head of zeros, or as the reward model with its head.",
        choices=["policy", "reward"],
    )
    critic_learning_rate: float | None = option(None, "Learning rate of the critic; left out: --learning_rate.")

    def __post_init__(self) -> None:
        # PPO makes answers once for all its mini-batches; TRL's default would make them for each.
        if self.steps_per_generation is None and self.generation_batch_size is None:
            self.steps_per_generation = self.num_mini_batches * self.gradient_accumulation_steps
        super().__post_init__()


@dataclass
class OnlineDPOArguments(RLOOArguments, _Loop):
    """DPO on pairs of the policy's own answers, ranked by the reward (arXiv:2402.04792)."""

    beta: float = option(0.1, "How strongly the policy is held to the reference.")
    loss_type: str = option("sigmoid", "DPO's loss, or IPO's.", choices=["sigmoid", "ipo"])
    missing_eos_penalty: float | None = option(None, "Taken from the reward of an answer that does not end by itself.")


RLArguments: TypeAlias = GRPOArguments | RLOOArguments | PPOArguments | OnlineDPOArguments

ALGORITHMS: dict[str, type[RLArguments]] = {
    "grpo": GRPOArguments,
    "rloo": RLOOArguments,
    "ppo": PPOArguments,
    "online_dpo": OnlineDPOArguments,
}
"""What each `--rl_algorithm` is given."""
