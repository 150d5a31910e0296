"""What all RL algorithms add to TRL's arguments: where rewards come from, and what is done with them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.arguments.data import TurnTokenFields

# Named here as well as there: a rule that checks names must not import the functions and math-verify with them.
BUILTIN_REWARDS = ("accuracy", "format", "length", "overlong")
"""What `--reward_funcs` takes by name: hftune/trainers/rewards/builtin.py."""


@dataclass
class RLFields(TurnTokenFields):
    """What all RL algorithms add to TRL's."""

    rl_algorithm: str = field(
        default="grpo",
        metadata={"help": "Which algorithm.", "choices": ["grpo", "rloo", "ppo", "online_dpo"]},
    )
    reward_model_path: list[str] | None = field(
        default=None, metadata={"help": "Reward models: output folders of run_rm.py, adapters or merged."}
    )
    reward_funcs: list[str] | None = field(
        default=None,
        metadata={
            "help": "Reward functions: accuracy, format, length or overlong, or in Python as module:function or "
            "file.py:function."
        },
    )
    reward_timeout: float | None = field(
        default=None,
        metadata={"help": "Seconds that a call of --reward_funcs may take; left out: any number."},
    )
    reward_retries: int = field(
        default=0,
        metadata={"help": "Further calls of a reward function that failed, hung or returned no rewards."},
    )
    reward_cache: str | None = field(
        default=None,
        metadata={
            "help": "A folder where the rewards of --reward_funcs are kept by prompt, answer and record: none is "
            "asked for twice, and a run is replayed from it."
        },
    )
    system_prompt: str | None = field(
        default=None, metadata={"help": "System message put before each prompt that has none of its own."}
    )
    # Never trained on, so that a policy that games its reward shows: the two means part.
    judge_reward: list[str] | None = field(
        default=None,
        metadata={
            "help": "Reward models or functions that are never trained on: their mean is logged with the reward, and "
            "how far the two have drifted apart."
        },
    )
    sample_completions: int = field(
        default=8,
        metadata={"help": "Completions written to completions.jsonl in the output folder at each logged step."},
    )
    normalize_rewards: bool = field(
        default=True,
        metadata={"help": "Subtract the mean and divide by the deviation that run_rm.py stored with a reward model."},
    )
    max_prompt_length: int | None = field(
        default=None, metadata={"help": "Prompts with more tokens than this are dropped, and counted."}
    )
    shared_prompts: bool | None = field(
        default=None,
        metadata={
            "help": "Score and train answers side by side behind one copy of their prompt, without pads; left out: "
            "where exact."
        },
    )
