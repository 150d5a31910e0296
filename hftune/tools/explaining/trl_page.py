"""The page of TRL's arguments: docs/parameters/trl.md, written from the classes that the scripts' arguments extend."""

from __future__ import annotations

from dataclasses import fields

from transformers import TrainingArguments

from hftune.arguments.names.row import WORKS
from hftune.arguments.names.table import table
from hftune.arguments.special_fields import DONE_BY_HFTUNE, DONE_BY_HFTUNE_EVERYWHERE
from hftune.arguments.stage_table import STAGES, base_stage
from hftune.arguments.stages import ALGORITHMS
from hftune.on_demand import on_demand
from hftune.tools.explaining.explain import outcome

_HEAD = """# Parameters of TRL

What becomes of the arguments of TRL's trainers when they are given to hftune's scripts. The scripts' arguments extend
TRL's classes, so names and meanings are TRL's; what hftune does itself, before the trainer sees the data, is refused
with what to use. All else is in [Moving from TRL](../moving/trl.md).

```bash
python run_sft.py --model_name_or_path MODEL --train_file_dir DATA --max_length 1024 --packing --output_dir OUT
hftune explain assistant_only_loss
```

"""
_FROM_PT = {"pt"}
"""`run_pt.py` extends transformers' own arguments."""


def trl_page(written: str, end: str) -> str:
    """The page as Markdown, a table for each class of TRL's.

    Args:
        written: The line that says what wrote the page, and the mark of the tables' beginning.
        end: The mark of their end.
    """
    sections = [_section(*found) for found in _classes().values()]
    return "\n".join([_HEAD + written, *sections, end])


def _classes() -> dict[str, tuple[type, str, str]]:
    """Name of a class of TRL's -> the class, the stage whose arguments extend it, and its script."""
    scripts = {
        f"run_{stage}.py": (stage, row.arguments) for stage, row in STAGES.items() if stage not in (*_FROM_PT, "rl")
    }
    scripts |= {f"run_rl.py --rl_algorithm {name}": ("rl", path) for name, path in ALGORITHMS.items()}
    found: dict[str, tuple[type, str, str]] = {}
    for script, (stage, path) in scripts.items():
        ours = on_demand(path)
        theirs = next(
            (cls for cls in ours.__mro__ if cls.__module__.startswith("trl.") and cls.__name__ != "_BaseConfig"), None
        )
        if theirs is not None:
            found.setdefault(theirs.__name__, (theirs, stage, script))
    return found


def _section(cls: type, stage: str, script: str) -> str:
    upstream = {entry.name for entry in fields(TrainingArguments)}
    own = sorted({entry.name for entry in fields(cls)} - upstream)  # a dataclass
    lines = [f"## {cls.__name__}: {script}", "", "| name | here |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {_here(name, stage)} |" for name in own), ""])


def _here(name: str, stage: str) -> str:
    """What a script does with an argument of TRL's."""
    done = DONE_BY_HFTUNE_EVERYWHERE | DONE_BY_HFTUNE.get(base_stage(stage), {}) | DONE_BY_HFTUNE.get(stage, {})
    if name in done:
        return f"refused: {done[name]}"
    row = table().get(name)
    return (WORKS if row is None else outcome(row)).replace("|", "\\|")
