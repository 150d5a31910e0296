"""The messages that errors of a number may have, as the source has them: what is filled in later stands as `{...}`."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hftune
from hftune.error_numbers import number_of

PACKAGE = Path(hftune.__file__).parent
KINDS = ("UserError", "DataError", "ArgumentError", "ManifestError")
"""The classes of `errors.py`; those that extend them are found."""
FILLED_IN = "{...}"
# A helper's helper makes an error at most; what comes from further away is filled in.
_DEPTH = 3


@dataclass(frozen=True)
class Message:
    """A message of an error.

    Args:
        cause: What it says first.
        fix: The way out; "" where there is none, or it is only known when the error is made.
    """

    cause: str
    fix: str


@functools.cache
def modules() -> dict[str, Path]:
    """Every module by its name below hftune, such as `data.readers.files`."""
    found = {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): found[name] for name in sorted(found)}


@functools.cache
def kinds() -> frozenset[str]:
    """The names of all classes of errors for users."""
    texts = [file.read_text(encoding="utf-8") for file in modules().values()]
    bases = re.compile(rf"^class (\w+)\((?:\w+, )*(?:{'|'.join(KINDS)})\b", re.MULTILINE)
    return frozenset([*KINDS, *(name for text in texts for name in bases.findall(text))])


@functools.cache
def makes_errors(module: str) -> bool:
    """Whether a module makes errors for users."""
    text = modules()[module].read_text(encoding="utf-8")
    # Most modules make none, and reading them as Python takes seconds.
    return any(f"{kind}(" in text for kind in kinds()) and any(True for _ in Source.of(module).errors())


@functools.cache
def messages(number: str) -> list[Message]:
    """What errors of a number say, in the order of their modules, each cause once."""
    found: dict[str, Message] = {}
    for module in modules():
        if number_of(f"hftune.{module}") == number and makes_errors(module):
            for message in Source.of(module).messages():
                known = found.setdefault(message.cause, message)
                # Of several ways out, none is the one.
                if known.fix != message.fix:
                    found[message.cause] = Message(message.cause, "")
    return list(found.values())


class Source:
    """A module's source: where it makes errors, and what is known of their texts.

    Args:
        text: Of the module.
    """

    @staticmethod
    @functools.cache
    def of(module: str) -> Source:
        """That of a module below hftune."""
        return Source(modules()[module].read_text(encoding="utf-8"))

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.calls: list[ast.Call] = []
        # Node of a call or function -> the functions around it, the nearest first; the module is the last.
        self.around: dict[ast.AST, tuple[ast.AST, ...]] = {}
        self._look(self.tree, (self.tree,))

    def _look(self, node: ast.AST, scopes: tuple[ast.AST, ...]) -> None:
        if isinstance(node, ast.Call):
            self.calls.append(node)
            self.around[node] = scopes
        inner = (node, *scopes) if isinstance(node, ast.FunctionDef) else scopes
        for child in ast.iter_child_nodes(node):
            self._look(child, inner)

    def errors(self) -> Iterator[ast.Call]:
        """The calls that make an error, in the order of their lines."""
        yield from sorted((call for call in self.calls if _called(call) in kinds()), key=lambda call: call.lineno)

    def messages(self) -> Iterator[Message]:
        """What its errors say, as far as the source has it."""
        for call in self.errors():
            fix = next((entry.value for entry in call.keywords if entry.arg == "fix"), None)
            fixes = self.texts(fix, self.around[call]) if fix is not None else []
            for cause in self.texts(call.args[0], self.around[call]) if call.args else ():
                if _says_something(cause):
                    yield Message(cause, fixes[0] if len(fixes) == 1 and _says_something(fixes[0]) else "")

    def texts(self, value: ast.expr, scopes: tuple[ast.AST, ...], depth: int = _DEPTH) -> list[str]:
        """What an expression may say: a literal, both sides of a choice, what a name stands for; `{...}`: unknown."""
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return [value.value]
        if isinstance(value, ast.JoinedStr):
            return ["".join(self._part(part, scopes) for part in value.values)]
        if isinstance(value, ast.IfExp):
            return [text for side in (value.body, value.orelse) for text in self.texts(side, scopes, depth)]
        if isinstance(value, ast.BinOp):
            left, right = (self.texts(side, scopes, depth) for side in (value.left, value.right))
            return [f"{one}{other}" for one in left for other in right]
        if isinstance(value, ast.Call) and _called(value) == "join" and isinstance(listed := value.args[0], ast.List):
            # Several lines: the first says what it is.
            return self.texts(listed.elts[0], scopes, depth)
        if isinstance(value, ast.Name) and depth:
            known = (self.texts(found, where, depth - 1) for found, where in self._stands_for(value.id, scopes))
            return list(dict.fromkeys(text for texts in known for text in texts)) or [FILLED_IN]
        return [FILLED_IN]

    def _part(self, part: ast.expr, scopes: tuple[ast.AST, ...]) -> str:
        """A part of an f-string: constants of the module as they are, other plain names in braces."""
        if isinstance(part, ast.Constant):
            return str(part.value)
        value = part.value if isinstance(part, ast.FormattedValue) else part
        if not isinstance(value, ast.Name):
            return FILLED_IN
        known = [found for found, _ in self._stands_for(value.id, scopes)]
        constant = known[0] if len(known) == 1 else None
        if isinstance(constant, ast.Constant) and constant.value is not None:
            return str(constant.value)
        # A constant that is worked out tells nobody anything by its name.
        return f"{{{value.id}}}" if value.id.islower() and not value.id.startswith("_") else FILLED_IN

    def _stands_for(self, name: str, scopes: tuple[ast.AST, ...]) -> Iterator[tuple[ast.expr, tuple[ast.AST, ...]]]:
        """What is assigned to a name, or what calls in this module give for it; with the functions around."""
        for number, scope in enumerate(scopes):
            if values := _assignments(scope).get(name):
                yield from ((value, scopes[number:]) for value in values)
                return
            names = _parameters(scope) if isinstance(scope, ast.FunctionDef) else []
            if isinstance(scope, ast.FunctionDef) and name in names:
                for call in (call for call in self.calls if _called(call) == scope.name):
                    given = dict(zip(names, call.args, strict=False))
                    given |= {entry.arg: entry.value for entry in call.keywords if entry.arg}
                    if value := given.get(name, _defaults(scope).get(name)):
                        yield value, self.around[call]
                return


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def _says_something(text: str) -> bool:
    return len(re.findall(r"\w{2,}", re.sub(r"\{[^}]*\}", "", text))) > 1


def _parameters(function: ast.FunctionDef) -> list[str]:
    names = [entry.arg for entry in [*function.args.args, *function.args.kwonlyargs]]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _defaults(function: ast.FunctionDef) -> dict[str, ast.expr | None]:
    arguments = function.args
    last = arguments.args[len(arguments.args) - len(arguments.defaults) :]
    names = [entry.arg for entry in [*last, *arguments.kwonlyargs]]
    return dict(zip(names, [*arguments.defaults, *arguments.kw_defaults], strict=True))


@functools.cache
def _assignments(scope: ast.AST) -> dict[str, list[ast.expr]]:
    """Name -> what is assigned to it in a function, or at the top of a module."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(scope) if isinstance(scope, ast.FunctionDef) else ast.iter_child_nodes(scope):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        for name, given in pairs:
            if isinstance(name, ast.Name) and isinstance(given, ast.expr):
                found.setdefault(name.id, []).append(given)
    return found
