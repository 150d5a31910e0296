"""docs/training_table.md, written from the results of the table."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from tests.conftest import ROOT
from tests.table.cells import PLANES, STEPS, Cell, cells_of
from tests.table.checks import Outcome
from tests.table.refusals import RULES, rules_of

PAGE = ROOT / "docs" / "training_table.md"
TITLES = {
    "architectures": "Methods × architectures × ZeRO × base (SFT)",
    "stages": "Methods × stages × ZeRO × base (Qwen2)",
    "scripts": "Stages × architectures × ZeRO",
    "modes": "Methods × all ways to share the work × base (SFT, Qwen2)",
    "optimizers": "Optimizers × all ways to share the work (SFT, Qwen2)",
}
# Which dimension names the rows of a plane's table, and which its columns.
LAYOUT = {
    "architectures": (("method", "base"), "architecture", "mode"),
    "stages": (("method", "base"), "script", "mode"),
    "scripts": (("architecture", "method"), "script", "mode"),
    "modes": (("method",), "mode", "base"),
    "optimizers": (("optimizer",), "mode", "method"),
}
HEAD = """# What trains where

Which methods, architectures, stages, DeepSpeed configs, optimizers and quantised bases train together, and which are
refused.

```bash
python -m tests.table.table --work FOLDER --write-docs      # runs what is missing, and writes this page
```

Every cell is a run of the real script on tiny random models, on a CPU, {steps} steps on the data of the tests. A ✓
means that all of this was checked and is true:

- every step has a finite loss; the losses (to 1e-4) and the logits after training (to 0.2 % of the largest; 1 % on an
  8-bit base, which rounds activations) are those of one process without DeepSpeed, and the first loss is that of the
  base;
- tensor by tensor, exactly what should change has changed, and all other tensors are the same to the bit; all processes
  hold the same weights;
- each trained parameter is in one group, whose learning rate at each step and whose weight decay equal the closed form;
- what was saved loads with plain transformers and peft, no key missing or left over, and gives the logits of the model
  in memory.

A letter is a refusal: exit code 2 before a weight is loaded; the letters are explained under "Refusals". A · has no
result yet. Where a cell has several signs, they are those of {modes}, in this order.

The flags of a method are in `tests/table/cells.py`, what it should train in `expected.py`.

<!-- results -->
"""


def write(outcomes: Mapping[Cell, Outcome], wrong: Mapping[Cell, list[str]]) -> None:
    """Write the page."""
    parts = [
        HEAD.format(steps=STEPS, modes=", ".join(PLANES["architectures"]["mode"])),
        counts(outcomes, wrong),
        refusals(),
    ]
    parts += [plane_table(plane, outcomes, wrong) for plane in PLANES]
    PAGE.write_text("\n".join(parts).rstrip() + "\n\n<!-- end of results -->\n", encoding="utf-8")


def letter(number: int) -> str:
    """A, B, ..., by a rule's place."""
    return chr(ord("A") + number)


def refusals() -> str:
    """The legend of letters."""
    rows = [f"| {letter(number)} | {rule.reason} | {rule.says} |" for number, rule in enumerate(RULES)]
    return "\n".join(["## Refusals", "", "| | why | the message says |", "| - | --- | --- |", *rows, ""])


def counts(outcomes: Mapping[Cell, Outcome], wrong: Mapping[Cell, list[str]]) -> str:
    """How many cells there are, ran, were refused, and how long they take."""
    cells = {cell for plane in PLANES for cell in cells_of(plane)}
    ran = [outcome for cell, outcome in outcomes.items() if cell in cells and outcome.code == 0 and cell not in wrong]
    refused = [cell for cell in outcomes if cell in cells and rules_of(cell) and cell not in wrong]
    lines = [f"{len(cells)} cells: {len(ran)} ran, {len(refused)} were refused"]
    bad = [cell for cell in wrong if cell in cells]
    if bad:
        lines.append(f"{len(bad)} are wrong")
    waiting = len(cells) - len(ran) - len(refused) - len(bad)
    if waiting:
        lines.append(f"{waiting} have no result yet")
    return ", ".join(lines) + ".\n"


def plane_table(plane: str, outcomes: Mapping[Cell, Outcome], wrong: Mapping[Cell, list[str]]) -> str:
    """A table of a plane: signs of the last dimension side by side in a cell."""
    rows, columns, inner = LAYOUT[plane]
    dimensions = PLANES[plane]
    names = dimensions[columns]
    lines = [f"## {TITLES[plane]}", "", f"In a cell: {', '.join(dimensions[inner])}.", ""]
    lines.append("| " + " | ".join([" ".join(rows), *names]) + " |")
    lines.append("| " + " | ".join(["---"] * (len(names) + 1)) + " |")
    for values in product(*(dimensions[row] for row in rows)):
        fixed = {name: options[0] for name, options in dimensions.items()} | dict(zip(rows, values, strict=True))
        signs = [
            " ".join(
                sign(Cell(**(fixed | {columns: name, inner: last})), outcomes, wrong) for last in dimensions[inner]
            )
            for name in names
        ]
        lines.append("| " + " | ".join([" ".join(values), *signs]) + " |")
    return "\n".join([*lines, ""])


def sign(cell: Cell, outcomes: Mapping[Cell, Outcome], wrong: Mapping[Cell, list[str]]) -> str:
    """✓, the letters of its refusals, ✗ where it is wrong, or · without a result."""
    if cell in wrong:
        return "✗"
    if cell not in outcomes:
        return "·"
    rules = rules_of(cell)
    return "".join(letter(RULES.index(rule)) for rule in rules) or "✓"
