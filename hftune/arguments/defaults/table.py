"""hftune's own defaults that depend on what is trained: a table with a reason a line.

What is not here has one default everywhere, that of its field. Later rows win over earlier ones, so that a loss or an
algorithm may differ from its stage. Rates are those that papers and the authors of the methods use for models of 1B to
8B parameters; docs/defaults.md says what each reaches with a small model in 60 steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hftune.arguments.names.row import means_yes
from hftune.arguments.stage_table import STAGES, base_stage

LORA, FULL, SCRATCH = "lora", "full", "scratch"
"""An adapter (also on a quantised base); all weights of a model that is there; all weights, drawn at random."""

RL = ("grpo", "rloo", "ppo", "online_dpo")
KINDS = (*(stage for stage in STAGES if stage != "rl"), *RL)
"""What defaults are told apart by: the stages, RL by its algorithms."""


@dataclass(frozen=True)
class RunKind:
    """One run.

    Args:
        kind: One of `KINDS`.
        trained: `LORA`, `FULL` or `SCRATCH`.
        losses: The losses of run_dpo.py; empty elsewhere.
        held_out: Whether records are held out.
    """

    kind: str
    trained: str = FULL
    losses: frozenset[str] = frozenset()
    held_out: bool = False


def run_kind_of(stage: str, given: Mapping[str, str]) -> RunKind:
    """What the arguments of a script train.

    Args:
        stage: A key of `STAGES`.
        given: hftune's names and their values as texts, several with spaces between them.
    """
    # Each of these implies an adapter in AdapterArguments, which is not made yet.
    adapter = any(is_on(given, name) for name in ("use_peft", "qlora", "train_new_tokens_only")) or "peft_path" in given
    trained = LORA if adapter else SCRATCH if is_on(given, "from_config") else FULL
    losses = frozenset(given.get("loss_type", "sigmoid").split()) if base_stage(stage) == "dpo" else frozenset()
    kind = given.get("rl_algorithm", "grpo") if stage == "rl" else stage
    return RunKind(kind, trained, losses, _holds_out(given))


def is_on(given: Mapping[str, str], name: str) -> bool:
    """Whether a switch is on; one without a value is."""
    return name in given and means_yes(given[name] or "true")


def _holds_out(given: Mapping[str, str]) -> bool:
    if given.get("validation_file_dir") or given.get("validation_tokenized_dir"):
        return True
    # Zero in any spelling: 0, 0.0, 0.00.
    return given.get("validation_split_percentage", "0").strip("0.") != ""


@dataclass(frozen=True)
class Default:
    """A value for what is not given.

    Args:
        name: The argument.
        value: What it is.
        because: The reason, for the reader of a table.
        kinds: Stages and algorithms that it is for; empty for all.
        trained: `LORA`, `FULL` or `SCRATCH`; empty for all.
        losses: Losses of run_dpo.py that it is for, which all that are given must be of; empty for all.
        held_out: Only where records are held out.
    """

    name: str
    value: Any
    because: str
    kinds: tuple[str, ...] = ()
    trained: str = ""
    losses: frozenset[str] = frozenset()
    held_out: bool = False

    def fits(self, run: RunKind) -> bool:
        """Whether it is for this run."""
        return (
            (not self.kinds or not {run.kind, base_stage(run.kind)}.isdisjoint(self.kinds))
            and self.trained in ("", run.trained)
            and (not self.losses or (bool(run.losses) and run.losses <= self.losses))
            and (run.held_out or not self.held_out)
        )


# Losses without a reference: their beta and rates are of another size.
SIMPO = frozenset(["simpo", "cpo_simpo"])
ODDS = frozenset(["orpo", "odds_ratio"])
_ADAPTED = "an adapter starts at zero and is scaled; it wants some ten times the rate of full training"
_OFFLINE = ("pt", "sft", "rm", "dpo")

OWN: tuple[Default, ...] = (
    # How fast. Adapters learn at ten times the rate of full training or more (arXiv:2405.09673, 2305.14314).
    Default("learning_rate", 2e-5, "continued pre-training: what is known must not be unlearnt", ("pt",), FULL),
    Default(
        "learning_rate", 5e-4, "weights drawn at random need large steps (arXiv:2005.14165)", ("pt", "sft"), SCRATCH
    ),
    Default("learning_rate", 2e-4, _ADAPTED, ("pt", "sft"), LORA),
    Default("learning_rate", 2e-5, "the usual rate of full fine-tuning (Llama 2, Zephyr)", ("sft",), FULL),
    Default("learning_rate", 1e-5, "one pass at a low rate: reward models overfit (arXiv:2203.02155)", ("rm",)),
    Default("learning_rate", 1e-4, _ADAPTED, ("rm",), LORA),
    Default("learning_rate", 1e-6, "faster, all weights leave the reference (arXiv:2305.18290)", ("dpo",)),
    Default("learning_rate", 5e-5, _ADAPTED, ("dpo",), LORA),
    Default(
        "learning_rate", 8e-6, "the paper's: its SFT term holds the model (arXiv:2403.07691)", ("dpo",), losses=ODDS
    ),
    Default("learning_rate", 2e-4, "that of SFT, which is most of this loss", ("dpo",), LORA, ODDS),
    Default("learning_rate", 1e-4, "no reference holds it back, an adapter does", ("dpo",), LORA, SIMPO),
    Default("learning_rate", 1e-6, "rewards are noisy, and a policy that breaks does not come back", RL),
    Default("learning_rate", 5e-5, _ADAPTED, RL, LORA),
    Default("critic_learning_rate", 1e-5, "the critic starts knowing nothing (arXiv:2203.02155)", ("ppo",), FULL),
    # On what curve.
    Default("lr_scheduler_type", "cosine", "ends at zero, so that the last steps settle", _OFFLINE),
    Default("warmup_steps", 0.03, "Adam's moments are unknown at first; a share of all steps", _OFFLINE),
    Default("warmup_steps", 0.1, "the first pairs move an unchanged policy furthest", ("dpo",)),
    Default(
        "lr_scheduler_type", "constant_with_warmup", "a reward has no known end: runs are stopped, or prolonged", RL
    ),
    Default("warmup_steps", 0.03, "Adam's moments are unknown at first; a share of all steps", RL),
    Default("weight_decay", 0.1, "many passes of large steps (arXiv:2005.14165)", ("pt", "sft"), SCRATCH),
    # For how long.
    Default("num_train_epochs", 1.0, "text seen again is learnt by heart", ("pt",)),
    Default("num_train_epochs", 3.0, "few records, and answers are meant to be learnt", ("sft",)),
    Default("num_train_epochs", 1.0, "a second pass overfits (arXiv:2203.02155)", ("rm", "dpo")),
    Default("num_train_epochs", 1.0, "each prompt is answered anew, several times", RL),
    # How a loss is scaled.
    Default(
        "beta", 2.0, "a mean log-probability a token is small; the paper's (arXiv:2405.14734)", ("dpo",), losses=SIMPO
    ),
    # What a reward model's head is kept in.
    Default("train_in_float32", True, "the head is drawn anew, and small updates of 16 bits are lost", ("rm",), LORA),
    # What is shown on the way.
    Default("logging_steps", 10, "a curve without noise", _OFFLINE),
    Default("logging_steps", 1, "a step takes long, and rewards are what is looked at", RL),
    Default(
        "eval_strategy", "steps", "there are held-out records: where they turn is seen in time", _OFFLINE, held_out=True
    ),
    Default("eval_steps", 0.25, "four times a run, as a share of all steps", _OFFLINE, held_out=True),
)


def own_defaults(run: RunKind) -> dict[str, Default]:
    """The rows for a run, by name; later rows win."""
    # Later rows win because a dict keeps the last value of a name.
    return {row.name: row for row in OWN if row.fits(run)}


SAME: dict[str, str] = {
    "per_device_train_batch_size": "as transformers has it; `hftune plan` says how many fit",
    "gradient_accumulation_steps": "raise it for a larger batch in the same memory",
    "block_size": "long enough for a page; memory grows with it",
    "max_length": "holds most conversations; what is longer is counted, and `hftune preview` shows how much",
    "max_completion_length": "pairs are bound by max_length as a whole; a policy gets TRL's room to think",
    "num_generations": "TRL's: answers to a prompt that are compared with each other",
    "optim": "AdamW in one kernel",
    "weight_decay": "few passes over the data leave it nothing to do",
    "max_grad_norm": "one odd batch cannot throw the run",
    "gradient_checkpointing": "a third slower, and memory no longer grows with the layers",
    "beta": "of the method's paper, or TRL's",
    "lora_r": "enough for most tasks at these rates (arXiv:2106.09685)",
    "lora_alpha": "twice the rank, so that rates suit other ranks as well",
    "lora_dropout": "none: layers with dropout cannot be computed in one pass",
    "lora_target_modules": "attention alone learns less (arXiv:2405.09673)",
    "validation_split_percentage": "nothing is taken from the training records unasked",
    "train_in_float32": "LoRA is in float32 anyway, and so are all weights with --dtype auto",
    "bf16": "where the GPU can: as wide as float32, half the memory",
    "too_long": "a record with its ends cut teaches more than none",
    "length_budget": "each side as long as it was asked to be",
    "save_steps": "as transformers has it; a signal saves a checkpoint in any case",
    "shuffle_seed": "the first records of the files; the Trainer shuffles what is taken",
    "count_rows": "records are what people count",
    "critic_learning_rate": "that of the policy",
    "eval_strategy": "there is nothing to evaluate on; RL evaluates at the end, since answers take long",
    "reward_funcs": "nobody knows what you reward",
    "seed": "as transformers has it",
}
"""Why arguments that no row above is about have the default of their field; what is here is shown on the page."""
