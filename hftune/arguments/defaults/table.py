"""hftune's own defaults that depend on what is trained: `defaults.csv`, with a reason a line.

| column   | holds                                                                        |
| -------- | ---------------------------------------------------------------------------- |
| name     | the argument                                                                 |
| value    | its default; left out: that of its field, for the reason that is told        |
| kinds    | stages and algorithms that it is for; `RL`: all of RL; left out: all         |
| trained  | what it is for: lora, full or scratch; left out: all                         |
| losses   | losses of run_dpo.py that it is for, which all that are given must be of     |
| held_out | yes: only where records are held out                                         |

What is not there has one default everywhere, that of its field. Later rows win over earlier ones, so that a loss or an
algorithm may differ from its stage. Rates are those that papers and the authors of the methods use for models of 1B to
8B parameters; docs/defaults.md says what each reaches with a small model in 60 steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hftune.arguments.names.row import means_yes
from hftune.arguments.stage_table import STAGES, base_stage
from hftune.tables import cell_value, read_table

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
    """A row: a value for what is not given."""

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


def _rows() -> Iterator[Default]:
    for row in read_table(__package__, "defaults.csv"):
        kinds = RL if row["kinds"] == "RL" else tuple(row["kinds"].split())
        losses, held_out = frozenset(row["losses"].split()), row["held_out"] == "yes"
        value = cell_value(row["value"])
        yield Default(row["name"], value, row["because"], kinds, row["trained"], losses, held_out=held_out)


OWN = tuple(row for row in _rows() if row.value != "")
SAME = {row.name: row.because for row in _rows() if row.value == ""}
"""Why arguments that no row of `OWN` is about have the default of their field; what is here is shown on the page."""


def own_defaults(run: RunKind) -> dict[str, Default]:
    """The rows for a run, by name; later rows win."""
    # Later rows win because a dict keeps the last value of a name.
    return {row.name: row for row in OWN if row.fits(run)}
