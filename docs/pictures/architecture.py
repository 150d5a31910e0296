"""Write the drawings and tables of docs/architecture.md from the code's own imports and definitions.

python docs/pictures/architecture.py            writes them; tests/unit/test_architecture.py holds the page to them
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"

STEP = {
    "Before the first step": (
        "train",
        "get_train_dataloader",
        "set_initial_training_values",
        "create_optimizer",
        "create_scheduler",
    ),
    "Each epoch": ("_run_epoch",),
    "Each step": (
        "get_batch_samples",
        "training_step",
        "compute_loss",
        "stage_loss",
        "_maybe_log_save_evaluate",
        "log",
        "_save_checkpoint",
        "_save",
    ),
}
"""Methods of StageTrainer in the order in which a run calls each for the first time; a test runs one to see."""


def main() -> None:
    """Write the page anew."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def filled(page: str) -> str:
    """The page with what stands between its markers `<!-- NAME -->` and `<!-- end -->` made anew."""
    parts = {"rooms": rooms, "script": script, "step": step, "features": features}
    for name, make in parts.items():
        before, start, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert end, f"docs/architecture.md has no place for {name}"
        page = f"{before}{start}{make()}\n{end}{after}"
    return page


def rooms() -> str:
    """The rooms of hftune/, each with an arrow to those right below it among those that it imports."""
    below = room_imports()
    # An arrow that a longer way implies is left out: a room may import every room that can be reached from it.
    reduced = {
        room: {there for there in direct if not any(there in reachable(below, via) for via in direct - {there})}
        for room, direct in below.items()
    }
    lines = ["```mermaid", "flowchart TD"]
    lines += [f"    {room.replace('.', '_')}[{room}]" for room in sorted(reduced)]
    lines += [f"    {room} --> {there}" for room in sorted(reduced) for there in sorted(reduced[room])]
    return "\n".join([*lines, "```"])


def room_imports() -> dict[str, set[str]]:
    """For each room, the rooms whose modules its files import, anywhere in them."""
    found: dict[str, set[str]] = {"scripts": set()}
    for file in [*(ROOT / "hftune").rglob("*.py"), *ROOT.glob("run_*.py"), ROOT / "merge_peft_adapter.py"]:
        here = room_of(file)
        there = {room_of_module(module) for module in modules(file)}
        found.setdefault(here, set()).update(there - {here})
    return found


def modules(file: Path) -> Iterator[str]:
    """The modules of hftune that a file imports, with the names that it takes from packages."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "hftune":
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "hftune")


def room_of(file: Path) -> str:
    """The room of a file: the folder right below hftune/, `scripts`, or `base` for the modules of hftune/ itself."""
    parts = file.relative_to(ROOT).parts
    if parts[0] != "hftune":
        return "scripts"
    return parts[1] if len(parts) > 2 else own_room(file.stem)


def room_of_module(module: str) -> str:
    """The room of what `from A import B` names."""
    first = module.split(".")[1]
    return first if (ROOT / "hftune" / first).is_dir() else own_room(first)


def own_room(module: str) -> str:
    """`stage` and `cli` stand by themselves; the other modules right below hftune/ are what all rooms stand on."""
    return module if module in ("stage", "cli") else "base"


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """What can be reached from a node, without itself."""
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for following in graph.get(ahead.pop(), ()):
            if following not in seen:
                seen.add(following)
                ahead.append(following)
    return seen - {start}


def script() -> str:
    """The lines of run_sft.py: what each calls, where that is defined, and what it says of itself."""
    tree = ast.parse((ROOT / "run_sft.py").read_text(encoding="utf-8"))
    body = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
    origin = {
        name.asname or name.name: node.module
        for node in ast.walk(body)
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }
    lines = ["| call | file | what |", "| ---- | ---- | ---- |"]
    for called in sorted(
        (node for node in ast.walk(body) if isinstance(node, ast.Call)), key=lambda node: (node.lineno, node.col_offset)
    ):
        name = ast.unparse(called.func)
        first = name.split(".")[0]
        if first in origin:
            what = getattr(importlib.import_module(origin[first]), first)
            for attribute in name.split(".")[1:]:
                what = getattr(what, attribute)
            lines.append(f"| `{name}` | `{origin[first].replace('.', '/')}.py` | {summary(what)} |")
    return "\n".join(lines)


def step() -> str:
    """The methods of StageTrainer that a step goes through, the hooks that each calls, and SFT's features at each."""
    from hftune.trainers.stage_trainer import StageTrainer

    lines = ["| when | method of `StageTrainer` | hooks, in order |", "| ---- | ---- | ---- |"]
    for when, names in STEP.items():
        for name in names:
            hooks = re.findall(r"Feature\.(\w+)", inspect.getsource(getattr(StageTrainer, name)))
            shown = ", ".join(f"`{hook}`" for hook in dict.fromkeys(hooks)) or "—"
            lines.append(f"| {when} | `{name}` | {shown} |")
            when = ""
    return "\n".join(lines)


def features() -> str:
    """SFT's features in their order, the file of each, its hooks, and what it says of itself."""
    from hftune.trainers.features.feature import Feature

    hooks = [name for name, value in vars(Feature).items() if inspect.isfunction(value)]
    lines = ["| feature | file | hooks | what |", "| ---- | ---- | ---- | ---- |"]
    for kind in sft_features():
        own = ", ".join(f"`{hook}`" for hook in hooks if getattr(kind, hook) is not getattr(Feature, hook))
        file = kind.__module__.replace(".", "/") + ".py"
        lines.append(f"| `{kind.__name__}` | `{file}` | {own} | {summary(kind)} |")
    return "\n".join(lines)


def sft_features() -> list[type]:
    """The classes of SFT's features, first to last."""
    raise NotImplementedError


def summary(what: object) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join((inspect.getdoc(what) or "").split("\n\n")[0].split())
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
