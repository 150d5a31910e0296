"""Write the drawings and tables of docs/architecture.md: from the code's own imports, and from a run that is traced.

python docs/pictures/architecture.py --model outputs/base/SmolLM2-135M-Instruct

Of the model only the calls remain that train it, so that any small one will do.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import inspect
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
TRACED_RUN = "docs/pictures/traced_run.py"
TRACED_FLAGS = (
    *("--max_steps", "3", "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2"),
    *("--logging_steps", "1", "--eval_strategy", "steps", "--eval_steps", "3", "--save_steps", "3"),
    *("--max_eval_samples", "2", "--per_device_eval_batch_size", "2", "--max_length", "256", "--use_cpu", "True"),
)
"""The run of the page: three optimizer steps of two micro batches; an evaluation and a checkpoint at the end."""

Trace = dict[str, Any]
"""What `traced_run.py` writes."""

# Where a method has no hook of its own but stands for something upstream.
UPSTREAM = {
    "backward": "accelerate: the backward pass",
    "optimizer.step": "torch: the optimizer's step",
    "SFTTrainer": "`hftune/trainers/sft.py`",
    "make_features": "`hftune/trainers/features/order.py`: the list below",
    "finish_run": "`hftune/stage.py`",
}


def main() -> None:
    """Write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", required=True, help="A folder or Hub name of a small language model.")
    trace = traced(parser.parse_args().model)
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(filled(page, from_code()), from_run(trace)), encoding="utf-8")


def traced(model: str) -> Trace:
    """What a run of run_sft.py calls, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        data = ["--train_file_dir", "examples/data/sft", "--validation_file_dir", "examples/data/sft_eval"]
        command = [sys.executable, TRACED_RUN, f"{folder}/calls.json", "--model_name_or_path", model, *data]
        subprocess.run([*command, "--output_dir", f"{folder}/out", *TRACED_FLAGS], cwd=ROOT, check=True)
        found: Trace = json.loads(Path(folder, "calls.json").read_text(encoding="utf-8"))
        return found


def from_code() -> dict[str, str]:
    """The parts of the page that are read from the code: its name on the page, and its text."""
    return {"rooms": rooms(), "script": script()}


def from_run(trace: Trace) -> dict[str, str]:
    """The parts of the page that a run shows."""
    return {"drawing": drawing(trace), "methods": methods(trace), "features": features(trace)}


def filled(page: str, parts: dict[str, str]) -> str:
    """The page with other text between the markers `<!-- NAME -->` and `<!-- end -->` of some parts."""
    for name, text in parts.items():
        before, start, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert end, f"docs/architecture.md has no place for {name}"
        page = f"{before}{start}{text}\n{end}{after}"
    return page


# --- rooms --------------------------------------------------------------------------------------------------------


def rooms() -> str:
    """The rooms of hftune/, each with an arrow to those right below it among those that it imports."""
    below = room_imports()
    # An arrow that a longer way implies is left out: a room may import every room that can be reached from it.
    reduced = {
        room: {there for there in direct if not any(there in reachable(below, via) for via in direct - {there})}
        for room, direct in below.items()
    }
    lines = ["```mermaid", "flowchart TD"]
    lines += [f"    {room} --> {there}" for room in sorted(reduced) for there in sorted(reduced[room])]
    return "\n".join([*lines, "```"])


@functools.cache
def room_imports() -> dict[str, set[str]]:
    """For each room, the rooms whose modules its files import: anywhere in them, or on demand."""
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
        # What `hftune.on_demand` is given.
        elif isinstance(node, ast.Constant) and re.fullmatch(r"hftune(\.\w+)+:\w+", str(node.value)):
            yield str(node.value).partition(":")[0]


def room_of(file: Path) -> str:
    """The room of a file: the folder right below hftune/, `scripts`, or `base` for the modules of hftune/ itself."""
    parts = file.relative_to(ROOT).parts
    if parts[0] != "hftune":
        return "scripts"
    return own_room(parts[1] if len(parts) > 2 else file.stem)


def room_of_module(module: str) -> str:
    """The room of what `from A import B` names."""
    return own_room([*module.split("."), "hftune"][1])


def own_room(name: str) -> str:
    """The room of a folder or module right below hftune/: `base` are `opening` and the modules that all rooms use."""
    name = "cli" if name == "__main__" else name
    folder = (ROOT / "hftune" / name).is_dir() and name != "opening"
    return name if folder or name in ("stage", "cli") else "base"


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


# --- a run --------------------------------------------------------------------------------------------------------


def script() -> str:
    """The calls of run_sft.py in their order: where each is defined, and what it says of itself."""
    lines = ["| call | file | what |", "| ---- | ---- | ---- |"]
    for name, module in script_calls():
        lines.append(f"| `{name}` | `{path_of(module)}` | {summary(docstring_of(module, name))} |")
    return "\n".join(lines)


def script_calls() -> Iterator[tuple[str, str]]:
    """What `main` of run_sft.py uses of hftune, in the order of its lines: names, and the modules that have them."""
    tree = ast.parse((ROOT / "run_sft.py").read_text(encoding="utf-8"))
    body = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
    origin = dict(imported(body))
    names = [node for node in ast.walk(body) if isinstance(node, ast.Name | ast.Attribute)]
    seen: set[str] = set()
    # `ChatEncoder.from_arguments` begins where `ChatEncoder` does, and is the one that is called.
    for node in sorted(names, key=lambda node: (node.lineno, node.col_offset, isinstance(node, ast.Name))):
        name = ast.unparse(node)
        first = name.split(".")[0]
        if first in origin and first not in seen:
            seen.add(first)
            yield name, origin[first]


def docstring_of(module: str, name: str) -> str | None:
    """The docstring of a function, class or method, without importing it."""
    found: Any = ast.parse((ROOT / path_of(module)).read_text(encoding="utf-8"))
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        # The last of several: those before it may be overloads.
        found = [node for node in found.body if isinstance(node, kinds) and node.name == part][-1]
    return ast.get_docstring(found)


def drawing(trace: Trace) -> str:
    """A flowchart of everything that is called before the first step of the optimizer, each with its hooks."""
    calls: dict[str, dict[str, Any]] = trace["calls"]
    before = list(calls)[: list(calls).index("optimizer.step") + 1]
    on_script = [name for name, _ in script_calls()]
    lines = ["```mermaid", "flowchart LR", "    subgraph script[run_sft.py]", "    direction TB"]
    lines += [f"    {node(one)} --> {node(two)}" for one, two in itertools.pairwise(on_script)]
    lines += ["    end"]
    for number, name in enumerate([name for name in before if name not in on_script], start=1):
        hooks = "<br/>".join(["", *hooks_of(name)])
        lines.append(f'    {node(calls[name]["within"])} -- {number} --> {node(name)}["{name}{hooks}"]')
    return "\n".join([*lines, "```"])


def node(name: str) -> str:
    """A name that Mermaid takes for a node."""
    return name.replace(".", "_")


def methods(trace: Trace) -> str:
    """All methods that were called: within what, how often, and the hooks that each calls."""
    lines = ["| called within | method | times | hooks, in order |", "| ---- | ---- | ----: | ---- |"]
    last = ""
    for name, call in trace["calls"].items():
        hooks = ", ".join(f"`{hook}`" for hook in hooks_of(name)) or UPSTREAM.get(name, "—")
        within = "" if call["within"] == last else f"`{call['within']}`"
        last = call["within"]
        lines.append(f"| {within} | `{name}` | {call['times']} | {hooks} |")
    return "\n".join(lines)


def hooks_of(name: str) -> list[str]:
    """The hooks of features that a method of StageTrainer calls, in the order of its lines."""
    for file in ("stage_trainer.py", "feature_host.py"):
        tree = ast.parse((ROOT / "hftune" / "trainers" / file).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return list(dict.fromkeys(re.findall(r"\bFeature\.(\w+)", ast.unparse(node))))
    return []


def features(trace: Trace) -> str:
    """SFT's features in their order: when a run has each, its hooks, and what its file says of itself."""
    from hftune.trainers.features.feature import Feature

    hooks = [name for name, value in vars(Feature).items() if inspect.isfunction(value)]
    lines = ["| feature | when | hooks | what |", "| ---- | ---- | ---- | ---- |"]
    for place, when in all_features([f"{module}:{name}" for module, name in trace["features"]]):
        module, name = place.split(":")
        kind = getattr(importlib.import_module(module), name)
        own = ", ".join(f"`{hook}`" for hook in hooks if getattr(kind, hook) is not getattr(Feature, hook))
        lines.append(f"| [`{name}`](../{path_of(module)}) | {when} | {own} | {summary(sys.modules[module].__doc__)} |")
    return "\n".join(lines)


def all_features(in_run: list[str]) -> Iterator[tuple[str, str]]:
    """The places of the features that a run had and of those that other runs have; and when they do.

    The order is that of the run, and of the list in `common_features`, whose features stand together in every run.
    """
    common = dict(common_features())
    at = [number for number, place in enumerate(in_run) if place in common]
    assert set(in_run[at[0] : at[-1] + 1]) <= set(common), "a stage's own feature among the common ones"
    always = {place for place, when in common.items() if when == "always"}
    assert always <= set(in_run), f"not in the run: {always - set(in_run)}"
    yield from ((place, "always") for place in in_run[: at[0]])
    yield from common.items()
    yield from ((place, "always") for place in in_run[at[-1] + 1 :])


def common_features() -> Iterator[tuple[str, str]]:
    """The list in `common_features` as it is written: the places of its features, and when a run has each."""
    tree = ast.parse((ROOT / "hftune/trainers/features/order.py").read_text(encoding="utf-8"))
    origin = dict(imported(tree))
    (made,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "common_features")
    terms = {ast.unparse(node.targets[0]): node.value for node in made.body if isinstance(node, ast.Assign)}
    (listed,) = (node.value for node in made.body if isinstance(node, ast.Return) and isinstance(node.value, ast.List))
    for entry in listed.elts:
        called = entry.value if isinstance(entry, ast.Starred) else entry
        assert isinstance(called, ast.Call), ast.unparse(entry)
        if isinstance(entry, ast.Starred):  # *_where(condition, place)
            condition, place = called.args
            when = ast.unparse(terms.get(ast.unparse(condition), condition))
            yield str(ast.literal_eval(place)), f"`{when}`".replace("|", "\\|")
        else:
            name = ast.unparse(called.func)
            yield f"{origin[name]}:{name}", "always"


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that a tree takes from modules, and the modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((name.asname or name.name, node.module) for name in node.names)


def path_of(module: str) -> str:
    """The file of a module."""
    return module.replace(".", "/") + ".py"


def summary(docstring: str | None) -> str:
    """The first paragraph of a docstring, on one line of a table."""
    text = " ".join((docstring or "").split("\n\n")[0].split())
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
