"""The pages of parameters: docs/parameters.md, and one below it for each tool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hftune.arguments.names.row import ALIAS, NO_EFFECT, OFF, REFUSED, WORKS, Row
from hftune.arguments.names.table import table, tools, tools_of, topics
from hftune.tools.explaining.explain import counterpart
from hftune.tools.explaining.own_page import own_page
from hftune.tools.explaining.trl_page import trl_page

INDEX = "parameters.md"
_VERDICTS = (WORKS, ALIAS, NO_EFFECT, REFUSED)


@dataclass(frozen=True)
class Page:
    """A page of one tool.

    Args:
        title: What follows "Parameters of".
        tools: Keys of `tools()` whose names it has.
        about: What it is for, in a sentence or two.
        command: Shown below that.
    """

    title: str
    tools: tuple[str, ...]
    about: str
    command: str


PAGES = {
    "medicalgpt": Page(
        "MedicalGPT",
        ("MedicalGPT",),
        "What becomes of each argument of MedicalGPT's scripts when it is given to hftune's. Its command lists work\n"
        "as they are; what differs in defaults, data and rewards is in [From MedicalGPT](../from_medicalgpt.md).",
        "python run_sft.py --model_name_or_path MODEL --train_file_dir data/sft --use_peft True --lora_rank 8 ...\n"
        "hftune explain lora_rank",
    ),
    "erniekit": Page(
        "ERNIEKit",
        ("ERNIEKit", "PaddleFormers"),
        "What becomes of each argument of ERNIEKit, and of PaddleFormers' trainer beneath it, when it is given to\n"
        "hftune's scripts. A YAML file of ERNIEKit's can be given as it is.",
        "python run_sft.py --config their.yaml\nhftune explain max_seq_len",
    ),
    "llama_factory": Page(
        "LLaMA-Factory",
        ("LLaMA-Factory",),
        "What becomes of each argument of LLaMA-Factory when it is given to hftune's scripts. What else to change:\n"
        "[Moving from LLaMA-Factory](../moving/llama_factory.md).",
        "python run_sft.py --config their.yaml --dataset data/sft\nhftune explain cutoff_len",
    ),
    "axolotl": Page(
        "Axolotl",
        ("Axolotl",),
        "What becomes of the fields of Axolotl's YAML when they are given to hftune's scripts; lists of lists, as\n"
        "`datasets` is, are written anew ([Moving from Axolotl](../moving/axolotl.md)).",
        "python run_sft.py --base_model MODEL --sequence_len 2048 --use_peft ...\nhftune explain sample_packing",
    ),
    "megatron_swift": Page(
        "Megatron-SWIFT",
        ("Megatron-SWIFT",),
        "What becomes of each argument of Megatron-SWIFT, and of ms-swift's base arguments, when it is given to\n"
        "hftune's scripts.",
        "python run_sft.py --model MODEL --dataset data/sft --tuner_type lora --micro_batch_size 1 ...\n"
        "hftune explain tuner_type",
    ),
    "fms_fsdp": Page(
        "fms-fsdp",
        ("fms-fsdp",),
        "What becomes of each argument of fms-fsdp when it is given to hftune's scripts.",
        "python run_pt.py --config their.yaml\nhftune explain ckpt_save_path",
    ),
    "distillation": Page(
        "TRL's and Axolotl's distillation",
        ("TRL's distillation", "Axolotl's distillation"),
        "What becomes of each argument of distillation of TRL's trainers and of Axolotl's plugin when it is given to\n"
        "`run_distill.py`; those of MedicalGPT and ms-swift are on their pages. In all of them `beta` 0 is the\n"
        "forward KL and 1 the reverse KL, as here.",
        "python run_distill.py --lmbda 0.5 --beta 0.5 --max_new_tokens 128 ...\nhftune explain lmbda",
    ),
    "transformers": Page(
        "transformers before version 5",
        ("transformers before 5",),
        "What becomes of arguments that transformers 5 has removed or renamed, and that older command lines\n"
        "still have.",
        "hftune explain evaluation_strategy",
    ),
}
"""File name without its suffix -> page."""

_LEGEND = """| | |
|---|---|
| works | hftune has the name, with the same meaning |
| alias | it becomes the counterpart, values translated where they differ |
| no effect | accepted, with a notice that says why |
| refused | an error that says what to use instead; values that ask for what happens anyway (False, 0, none) pass |
"""
_WRITTEN = "Written by `python -m hftune.tools.explaining --write-docs`.\n"
# What stands between them is not translated: the Chinese pages link to it.
_START, _END = "<!-- names -->\n", "<!-- end of names -->\n"
_INDEX = """# Parameters

Where to look up an argument: hftune's own, and those of other tools. Command lines and YAML files of MedicalGPT,
ERNIEKit, fms-fsdp and Megatron-SWIFT can be given as they are (`--config their.yaml`); of the others most names work,
an error says of the rest what to write. The command line wins over a file. If hftune's name and another tool's name for
the same argument are given together, hftune's wins, with a notice.

```bash
hftune explain max_seq_len      # one argument, under any tool's name
python run_sft.py --help        # all arguments of a script
```

"""


def pages() -> dict[str, str]:
    """Path below docs/ -> Markdown, of all pages."""
    tools = {f"parameters/{name}.md": tool_page(page) for name, page in PAGES.items()}
    # Translated names that are in no tool's present list (older versions, other spellings) are documented as well.
    loose = [row for row in table().values() if not tools_of(row.name)]
    own = own_page(_section("Further names", loose, shows_tool=False) + f"\n{_END}", f"{_WRITTEN}\n{_START}")
    return {
        INDEX: _index(),
        **tools,
        "parameters/trl.md": trl_page(f"{_WRITTEN}\n{_START}", _END),
        "parameters/hftune.md": own,
    }


def _index() -> str:
    lines = [_START, "| page | names | works | alias | no effect | refused |", "|---|---:|---:|---:|---:|---:|"]
    lines += ["| [hftune's own](parameters/hftune.md) | | | | | |", "| [TRL](parameters/trl.md) | | | | | |"]
    for file, page in PAGES.items():
        for tool in page.tools:
            lines.append(f"| [{tool}](parameters/{file}.md) | {_counts(tool)} |")
    return _INDEX + "\n".join([*lines, "", _END, _LEGEND, _WRITTEN])


def _counts(tool: str) -> str:
    # Names that are not in the table work as they are.
    verdicts = [table()[name].verdict if name in table() else WORKS for name in tools()[tool]]
    return " | ".join(str(count) for count in (len(verdicts), *map(verdicts.count, _VERDICTS)))


def tool_page(page: Page) -> str:
    """The page of a tool as Markdown: one table for each topic."""
    head = f"# Parameters of {page.title}\n\n{page.about}\n\n```bash\n{page.command}\n```\n"
    parts, several = [head, _LEGEND, _WRITTEN, _START], len(page.tools) > 1
    for title, rows in topics().items():
        parts += _of_tools(title, rows, page.tools, several)
    # What a tool has and the table does not is transformers' own argument under the same name.
    rest = sorted({name for tool in page.tools for name in tools()[tool]} - set(table()))
    same = [Row(name, "as in transformers, or when merging", WORKS, to=name) for name in rest]
    parts += _of_tools("The same in transformers and in merging", same, page.tools, several)
    return "\n".join([*parts, _END])


def _of_tools(title: str, rows: Iterable[Row], tools: Sequence[str], several: bool) -> list[str]:
    """A section with the rows whose names one of the tools has; empty where there are none."""
    kept = [row for row in rows if set(tools_of(row.name)) & {*tools}]
    return [_section(title, kept, shows_tool=several, tools=tools)] if kept else []


def _section(title: str, rows: Iterable[Row], *, shows_tool: bool, tools: Sequence[str] = ()) -> str:
    heads = ["name", *(["in"] if shows_tool else []), "what it does", "", "here"]
    # The verdict's column has no heading: its cell is one space wide, as Markdown formatters leave it.
    lines = [f"## {title}", "", f"| {' | '.join(heads)} |".replace("|  |", "| |"), "|---" * len(heads) + "|"]
    for row in sorted(rows, key=lambda row: row.name.lower()):
        owners = [", ".join(tool for tool in tools_of(row.name) if tool in tools)] if shows_tool else []
        cells = (f"`{row.name}`", *owners, row.does, row.verdict, _here(row))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def _here(row: Row) -> str:
    if row.verdict == WORKS:
        return ""
    if row.verdict == ALIAS:
        return counterpart(row)
    special = row.verdict == REFUSED and row.harmless not in ((), OFF)
    return row.because + (f" ({', '.join(value for value in row.harmless if value)} passes)" if special else "")
