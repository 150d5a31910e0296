"""Write the tables of docs/parameters and docs/defaults.md between their marks.

python docs/site/tables.py [docs]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from transformers import TrainingArguments

from hftune.arguments.defaults.choosing import shown
from hftune.arguments.defaults.medicalgpt import MEDICALGPT
from hftune.arguments.merging import MergeArguments
from hftune.arguments.names.row import ALIAS, NO_EFFECT, OFF, REFUSED, WORKS, Row
from hftune.arguments.names.table import table, tools, tools_of, topics
from hftune.arguments.parser import HftuneParser, help_groups
from hftune.arguments.ranges import done_by_hftune
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import algorithms, stage_parser
from hftune.on_demand import on_demand
from hftune.tools.explaining.explain import RUN_KINDS, counterpart, default_rows, documented_names, outcome
from hftune.visible import say

PAGES: dict[str, tuple[str, ...]] = {
    "medicalgpt": ("MedicalGPT",),
    "erniekit": ("ERNIEKit", "PaddleFormers"),
    "llama_factory": ("LLaMA-Factory",),
    "axolotl": ("Axolotl",),
    "megatron_swift": ("Megatron-SWIFT",),
    "fms_fsdp": ("fms-fsdp",),
    "distillation": ("TRL's distillation", "Axolotl's distillation"),
    "transformers": ("transformers before 5",),
}
"""Page below docs/parameters -> keys of `tools()` whose names it has."""

# What stands between the marks is written here, and not translated: the Chinese pages link to it.
_MARKED = re.compile(r"(<!-- (names|defaults) -->\n\n)(.*?)(\n\n<!-- end of \2 -->)", re.DOTALL)


def main(argv: list[str]) -> None:
    """Write the tables into the pages of a folder, docs/ if none is named."""
    folder = Path(argv[0]) if argv else Path(__file__).parents[1]
    for name, tables in pages().items():
        file = folder / name
        # Text, mark, kind of mark, tables and mark, again and again: tables are exchanged.
        parts = _MARKED.split(file.read_text(encoding="utf-8"))
        parts[3::5] = tables
        del parts[2::5]
        file.write_text("".join(parts), encoding="utf-8")
    say(f"{len(pages())} pages in {folder}")


def pages() -> dict[str, list[str]]:
    """Path of a page below docs/ -> what stands between its pairs of marks, as Markdown."""
    return {
        "parameters.md": [_index()],
        **{f"parameters/{name}.md": [tool_tables(tools)] for name, tools in PAGES.items()},
        "parameters/trl.md": ["\n\n".join(_trl_tables())],
        "parameters/hftune.md": ["\n\n".join(_own_tables())],
        "defaults.md": [*map(_defaults, RUN_KINDS), _medicalgpt()],
    }


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown. A heading of "" is a column of one space, as formatters leave it."""
    lines = [f"| {' | '.join(heads)} |".replace("|  |", "| |"), "|---" * len(heads) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)])


# --- names of other tools ---


def _index() -> str:
    rows = [["[hftune's own](parameters/hftune.md)", *[""] * 5], ["[TRL](parameters/trl.md)", *[""] * 5]]
    for file, tool in ((file, tool) for file, owners in PAGES.items() for tool in owners):
        # Names that are not in the table work as they are.
        verdicts = [table()[name].verdict if name in table() else WORKS for name in tools()[tool]]
        counts = (len(verdicts), *map(verdicts.count, (WORKS, ALIAS, NO_EFFECT, REFUSED)))
        rows.append([f"[{tool}](parameters/{file}.md)", *map(str, counts)])
    return _table(["page", "names", WORKS, ALIAS, NO_EFFECT, REFUSED], rows)


def tool_tables(owners: Sequence[str]) -> str:
    """The names of a tool, or of several: one table for each topic."""
    # What a tool has and the table does not is transformers' own argument under the same name.
    rest = sorted({name for tool in owners for name in tools()[tool]} - set(table()))
    same = [Row(name, "as in transformers, or when merging", WORKS, to=name) for name in rest]
    sections = []
    for title, rows in (*topics().items(), ("The same in transformers and in merging", same)):
        if kept := [row for row in rows if set(tools_of(row.name)) & {*owners}]:
            sections.append(f"## {title}\n\n{_names(kept, owners)}")
    return "\n\n".join(sections)


def _names(rows: Iterable[Row], owners: Sequence[str] = ()) -> str:
    several = len(owners) > 1
    heads = ["name", *(["in"] if several else []), "what it does", "", "here"]
    cells = []
    for row in sorted(rows, key=lambda row: row.name.lower()):
        of = [", ".join(tool for tool in tools_of(row.name) if tool in owners)] if several else []
        cells.append((f"`{row.name}`", *of, row.does, row.verdict, _here(row)))
    return _table(heads, cells)


def _here(row: Row) -> str:
    if row.verdict in (WORKS, ALIAS):
        return counterpart(row) if row.verdict == ALIAS else ""
    special = row.verdict == REFUSED and row.harmless not in ((), OFF)
    return row.because + (f" ({', '.join(value for value in row.harmless if value)} passes)" if special else "")


# --- TRL's and hftune's own ---


def _trl_tables() -> Iterator[str]:
    """A table for each class of TRL's that a script's arguments extend."""
    stages = {stage: row for stage, row in STAGES.items() if stage not in ("pt", "rl")}
    scripts = {f"run_{stage}.py": (stage, on_demand(row.arguments)) for stage, row in stages.items()}
    scripts |= {f"run_rl.py --rl_algorithm {name}": ("rl", cls) for name, cls in algorithms().items()}
    upstream, seen = {entry.name for entry in fields(TrainingArguments)}, set()
    for script, (stage, cls) in scripts.items():
        mro = cls.__mro__
        cls = next((one for one in mro if one.__module__.startswith("trl.") and one.__name__ != "_BaseConfig"), None)
        if cls is None or cls in seen:
            continue
        seen.add(cls)
        own = sorted({entry.name for entry in fields(cls)} - upstream)
        rows = [(f"`{name}`", _of_trl(name, stage)) for name in own]
        yield f"## {cls.__name__}: {script}\n\n{_table(['name', 'here'], rows)}"


def _of_trl(name: str, stage: str) -> str:
    """What a script does with an argument of TRL's."""
    done = done_by_hftune(stage)
    row = table().get(name)
    return f"refused: {done[name]}" if name in done else WORKS if row is None else outcome(row)


def _own_tables() -> Iterator[str]:
    """A table for each topic, with the scripts that have an argument; at last translated names of no tool's list."""
    parsers = {f"run_{stage}": stage_parser(stage) for stage in STAGES if stage != "rl"}
    # Each algorithm of RL has arguments of its own.
    parsers |= {f"run_rl {name}": stage_parser("rl", name) for name in algorithms()}
    parsers |= {"merge_peft_adapter": HftuneParser([MergeArguments])}
    # By help text: where scripts describe one name differently, each text gets a row.
    found: dict[str, dict[str, dict[str, list[str]]]] = {}
    for script, parser in parsers.items():
        for title, actions in help_groups(parser.dataclass_types, parser._actions).items():
            if title == "options" or " of " in title:
                continue  # of the libraries below
            for action in actions:
                text = " ".join((action.help or "").replace("%%", "%").replace("<", "\\<").split())
                found.setdefault(title, {}).setdefault(action.dest, {}).setdefault(text, []).append(script)
    for title, names in found.items():
        rows = [
            (f"`{name}`", _scripts(having, parsers), text)
            for name, texts in sorted(names.items())
            for text, having in texts.items()
        ]
        yield f"## {title[0].upper()}{title[1:]}\n\n{_table(['name', 'scripts', 'what it does'], rows)}"
    yield f"## Further names\n\n{_names(row for row in table().values() if not tools_of(row.name))}"


def _scripts(having: list[str], every: Mapping[str, HftuneParser]) -> str:
    """The scripts in few words: `all` that train, and `run_rl` where all its algorithms have the argument."""
    stages = [script for script in every if script.startswith("run_")]
    rl = {script for script in stages if script.startswith("run_rl")}
    if {*having} >= {*stages}:
        return "all"
    if {*having} >= rl:
        having = [script for script in having if script not in rl] + ["run_rl"]
    return ", ".join(f"`{script}`" for script in having)


# --- defaults ---


def _defaults(stage: str) -> str:
    rows = [(f"`{name}`", one) for name in documented_names(stage) for one in default_rows(stage, name)]
    # A default that is the empty text would be two backquotes.
    cells = [(name, one.where or "all", f"`{one.value}`".replace("``", "-"), one.because) for name, one in rows]
    return _table(["argument", "for", "default", "why"], cells)


def _medicalgpt() -> str:
    names = dict.fromkeys(name for values in MEDICALGPT.values() for name in values)
    rows = [
        [f"`{name}`", *(f"`{shown(values[name])}`" if name in values else "" for values in MEDICALGPT.values())]
        for name in names
    ]
    return _table(["argument", *MEDICALGPT], rows)


if __name__ == "__main__":
    main(sys.argv[1:])
