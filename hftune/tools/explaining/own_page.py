"""The page of hftune's own arguments: docs/parameters/hftune.md."""

from __future__ import annotations

from collections.abc import Mapping

from hftune.arguments.help_page import help_groups
from hftune.arguments.merging import MergeArguments
from hftune.arguments.parser import HftuneParser
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import ALGORITHMS, stage_parser

_HEAD = """# hftune's own arguments

What each argument does that hftune adds to those of transformers and TRL, and which script has it (`all`: every
one that trains). `--help` of a script shows these first, then the ones of the libraries below.

```bash
hftune explain on_bad_record
python run_sft.py --help
```

"""
Scripts = dict[str, list[str]]
"""Help of an argument -> the scripts that have it with this help."""


def own_page(further: str, written: str) -> str:
    """The page as Markdown.

    Args:
        further: A section put at the end.
        written: The line that says what wrote the page.
    """
    parsers = _parsers()
    topics: dict[str, dict[str, Scripts]] = {}
    for script, parser in parsers.items():
        for title, actions in help_groups(parser.dataclass_types, parser._actions).items():
            if title == "options" or " of " in title:
                continue  # of the libraries below
            for action in actions:
                text = " ".join((action.help or "").replace("%%", "%").split())
                # By help text: where scripts describe one name differently, each text gets a row.
                found = topics.setdefault(title, {}).setdefault(action.dest, {})
                found.setdefault(text, []).append(script)
    sections = [_section(title, names, list(parsers)) for title, names in topics.items()]
    return "\n".join([_HEAD + written, *sections, further])


def _parsers() -> dict[str, HftuneParser]:
    """The parser of each script by name; RL's once for each algorithm."""
    stages = {f"run_{stage}": stage_parser(stage) for stage in STAGES if stage != "rl"}
    # Each algorithm of RL has arguments of its own.
    algorithms = {f"run_rl {name}": stage_parser("rl", name) for name in ALGORITHMS}
    return stages | algorithms | {"merge_peft_adapter": HftuneParser([MergeArguments])}


def _section(title: str, names: Mapping[str, Scripts], every: list[str]) -> str:
    lines = [f"## {title[0].upper()}{title[1:]}", "", "| name | scripts | what it does |", "|---|---|---|"]
    for name, helps in sorted(names.items()):
        for text, scripts in helps.items():
            lines.append(f"| `{name}` | {_shown(scripts, every)} | {_cell(text)} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")


def _shown(scripts: list[str], every: list[str]) -> str:
    """The scripts in few words: `all`, and `run_rl` where all its algorithms have the argument."""
    # `all` means all that train: merging has few of these arguments.
    stages = [script for script in every if script.startswith("run_")]
    if set(scripts) >= set(stages):
        return "all"
    rl = [script for script in stages if script.startswith("run_rl")]
    if set(scripts) >= set(rl):
        scripts = [script for script in scripts if script not in rl] + ["run_rl"]
    return ", ".join(f"`{script}`" for script in scripts)
