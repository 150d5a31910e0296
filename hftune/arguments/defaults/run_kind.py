"""What a command line trains, as far as defaults depend on it: read from its arguments alone, before any is parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    adapter = any(_yes(given, name) for name in ("use_peft", "qlora", "train_new_tokens_only")) or "peft_path" in given
    trained = LORA if adapter else SCRATCH if _yes(given, "from_config") else FULL
    losses = frozenset(given.get("loss_type", "sigmoid").split()) if base_stage(stage) == "dpo" else frozenset()
    kind = given.get("rl_algorithm", "grpo") if stage == "rl" else stage
    return RunKind(kind, trained, losses, _holds_out(given))


def _yes(given: Mapping[str, str], name: str) -> bool:
    """Whether a switch is on; one without a value is."""
    return name in given and means_yes(given[name] or "true")


def _holds_out(given: Mapping[str, str]) -> bool:
    if given.get("validation_file_dir") or given.get("validation_tokenized_dir"):
        return True
    # Zero in any spelling: 0, 0.0, 0.00.
    return given.get("validation_split_percentage", "0").strip("0.") != ""
