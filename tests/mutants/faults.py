"""Faults for the core files: a sample is drawn by lines, with a seed; mutmut makes the changes.

mutmut's own runner starts from one process that has imported what is tested, and knows no sample: here are its
operators only, of which those that change nothing but words or types are left out.
"""

from __future__ import annotations

import functools
import random
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_assignment

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

# What these are given is said, or only read by type checkers.
_SPEAKING = frozenset(("cast", "notice", "say", "warn", "debug", "info", "TypeVar"))

# Invariants, as `assert` is one: lengths that are equal, and UTF-8, which is how this machine reads and writes anyhow.
_INVARIANT = frozenset(("strict", "encoding"))


@dataclass(frozen=True)
class Fault:
    """One change of a file.

    Attributes:
        line: Where the change begins.
        before: The lines that change, without the white space around them.
        after: What they become.
        source: The whole file with the fault.
        inside: Whether it lies in a function's body; what does not is executed by the import.
    """

    file: str
    line: int
    before: str
    after: str
    source: str
    inside: bool


@dataclass(frozen=True)
class _Change:
    kind: str
    old: cst.CSTNode
    new: cst.CSTNode
    inside: bool


def groups() -> dict[str, Any]:
    """What `core.toml` says: by group, its bar and the files that it holds now."""
    table = tomllib.loads((HERE / "core.toml").read_text())
    for group in table.values():
        found = [sorted(ROOT.glob(pattern)) for pattern in group["files"]]
        group["files"] = [
            str(file.relative_to(ROOT)) for files in found for file in files if file.name != "__init__.py"
        ]
    return table


def equivalent() -> list[dict[str, str]]:
    """What `equivalent.toml` lists: `file`, `before`, `after`, `why`."""
    rows: list[dict[str, str]] = tomllib.loads((HERE / "equivalent.toml").read_text()).get("fault", [])
    return rows


def draw(files: Iterable[str], number: int, seed: int) -> list[Fault]:
    """So many faults: a line by chance, a kind of change on it, a change of this kind; none twice, and none listed."""
    chance = random.Random(seed)
    known = {(row["file"], row["before"], row["after"]) for row in equivalent()}
    changes = functools.cache(lambda file: _changes((ROOT / file).read_text()))
    lines = [(file, at + 1) for file in files for at in range(len((ROOT / file).read_text().splitlines()))]
    drawn: dict[tuple[str, str, int], Fault] = {}
    tried: set[int] = set()
    for file, line in chance.choices(lines, k=500 * number) if lines else ():
        module, found = changes(file)
        if kinds := found.get(line):
            change = chance.choice(kinds[chance.choice(sorted(kinds))])
            fault = None if id(change) in tried else _fault(file, line, module, change)
            tried.add(id(change))
            if fault and (file, fault.before, fault.after) not in known:
                drawn.setdefault((file, fault.after, line), fault)
        if len(drawn) == number:
            break
    return list(drawn.values())


def _fault(file: str, line: int, module: cst.Module, change: _Change) -> Fault | None:
    source = module.deep_replace(change.old, change.new).code
    old, new = module.code.splitlines(), source.splitlines()
    try:
        compile(source, file, "exec")
    except SyntaxError:
        return None
    same = next((at for at, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), None)
    if same is None:
        return None
    ends = 0
    while ends < min(len(old), len(new)) - same - 1 and old[-1 - ends] == new[-1 - ends]:
        ends += 1
    before, after = (" ".join(map(str.strip, text[same : len(text) - ends])) for text in (old, new))
    return Fault(file, line, before, after, source, change.inside)


def _changes(source: str) -> tuple[cst.Module, Mapping[int, dict[str, list[_Change]]]]:
    """The parsed file, and by line and kind what may be changed."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    places = wrapper.resolve(PositionProvider)
    found: dict[int, dict[str, list[_Change]]] = {}
    for node, inside in _nodes(wrapper.module, False):
        for kind, new in _changed(node):
            line = places[node].start.line
            found.setdefault(line, {}).setdefault(kind, []).append(_Change(kind, node, new, inside))
    return wrapper.module, found


def _nodes(node: cst.CSTNode, inside: bool) -> Iterator[tuple[cst.CSTNode, bool]]:
    """All nodes that may be changed, and whether they are executed by a call."""
    if isinstance(node, (cst.Annotation, cst.Decorator, cst.Assert, cst.Raise, cst.Import, cst.ImportFrom)):
        return
    if isinstance(node, cst.Call) and (_last_name(node.func) in _SPEAKING or _last_name(node.func).endswith("Error")):
        return
    if isinstance(node, cst.Arg) and _keyword(node) in _INVARIANT:
        return
    if isinstance(node, cst.If) and _last_name(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, cst.Expr) and isinstance(node.value, (cst.SimpleString, cst.ConcatenatedString)):
        return
    yield node, inside
    for child in node.children:
        yield from _nodes(child, inside or (isinstance(node, cst.FunctionDef) and child is node.body))


def _changed(node: cst.CSTNode) -> Iterator[tuple[str, cst.CSTNode]]:
    if isinstance(node, (cst.If, cst.While, cst.CompIf)):
        yield "condition", node.with_changes(test=_not(node.test), **_space(node))
    if isinstance(node, cst.SimpleString) and " " in node.value:
        return  # prose
    for kind, operator in mutation_operators:
        if isinstance(node, kind) and operator is not operator_assignment:
            for new in operator(node):
                # Left out is what any call that gets there notices: None for an argument.
                if not isinstance(node, cst.Call) or new.func is not node.func or _argument_went(node, new):
                    yield operator.__name__, new


def _argument_went(before: cst.Call, after: cst.Call) -> bool:
    """Whether an argument is left out, and none that states an invariant."""
    stated = [sum(_keyword(arg) in _INVARIANT for arg in call.args) for call in (before, after)]
    return len(before.args) != len(after.args) and stated[0] == stated[1]


def _keyword(argument: cst.Arg) -> str:
    return argument.keyword.value if argument.keyword is not None else ""


def _not(test: cst.BaseExpression) -> cst.BaseExpression:
    inner = test if test.lpar else test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.UnaryOperation(cst.Not(), inner)


def _space(node: cst.CSTNode) -> dict[str, Any]:
    name = "whitespace_before_test"
    return {name: cst.SimpleWhitespace(" ")} if hasattr(node, name) else {}


def _last_name(node: cst.CSTNode) -> str:
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""
