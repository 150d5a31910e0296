"""Whether a chat template only copies what is said, whatever that is.

A template is run once with contents that cannot be looked at: objects of type `Said`, which may be output, joined to
other text and stripped of white space at their ends. Any other use of one (a comparison, a search, its length, a
filter) ends the run. A template that comes through takes the same way for all conversations with the same roles, so
what it writes around the contents is known for all of them, and no record has to be rendered.

Templates run in Jinja's sandbox as always; its hooks (`call`, `call_binop`, `concat`, filters and tests) are guarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce, wraps
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.environment import Environment, Template
from jinja2.exceptions import TemplateError
from jinja2.nodes import EvalContext
from jinja2.runtime import Context, Macro, Undefined
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

# What only asks for the type of a content, which is text in all records that are filled into a form.
_TYPE_TESTS = frozenset(("defined", "undefined", "none", "string", "number", "boolean", "mapping", "integer", "float"))
# What hands on the parts of a list as they are; on a content itself they would ask for its characters and fail.
_LIST_FILTERS = frozenset(("length", "count", "first", "last", "list", "default", "d", "selectattr", "rejectattr"))

_UNSEEN = "hftune_refuse"
"""A filter in place of what cannot be guarded."""


class Peeked(Exception):
    """The template does more with a content than to copy it."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of message `index` as it is written: whether white space at its ends is kept."""

    index: int
    keeps_left: bool = True
    keeps_right: bool = True


Part = str | Content


class Said(str):
    """Text that holds contents, as parts; itself empty, so that a use that was overlooked leaves a gap and is found."""

    parts: list[Part]

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Said:
        """The parts one after the other."""
        said = cls()
        said.parts = list(parts)
        return said

    def __str__(self) -> str:
        return self

    def __add__(self, other: Any) -> Said:
        return Said.of([*self.parts, *_parts(other)])

    def __radd__(self, other: Any) -> Said:
        return Said.of([*_parts(other), *self.parts])

    def strip(self, *characters: Any) -> Said:  # type: ignore[override]
        """Without white space at both ends."""
        return self.lstrip(*characters).rstrip(*characters)

    def lstrip(self, *characters: Any) -> Said:  # type: ignore[override]
        """Without white space at the start."""
        return Said.of(_stripped(self.parts, left=True)) if not characters else _refuse()

    def rstrip(self, *characters: Any) -> Said:  # type: ignore[override]
        """Without white space at the end."""
        return Said.of(_stripped(self.parts[::-1], left=False)[::-1]) if not characters else _refuse()


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise Peeked


_OBJECT = frozenset((*dir(object), "__getnewargs__")) - {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
_REFUSED = (set(dir(str)) - _OBJECT - set(vars(Said))) | {"__bool__", "__rmod__", "__hash__", "__repr__", "__format__"}
for _name in _REFUSED:
    setattr(Said, _name, _refuse)


def _parts(value: Any) -> list[Part]:
    if isinstance(value, Said):
        return value.parts
    if isinstance(value, str):
        return [value]
    raise TypeError("only text can be joined to text")


def _stripped(parts: list[Part], *, left: bool) -> list[Part]:
    """Without white space at the first part (which is the last one where `left` is False)."""
    first, rest = parts[0], parts[1:]
    if isinstance(first, Content):
        if rest:
            raise Peeked  # a blank content would let the white space behind it go, too
        return [Content(first.index, first.keeps_left and not left, first.keeps_right and left)]
    kept = first.lstrip() if left else first.rstrip()
    return [kept, *rest] if kept or not rest else _stripped(rest, left=left)


def outline(template: Template, roles: Iterable[str], special: dict[str, Any]) -> list[Part] | None:
    """What a template writes for conversations of plain text with these roles; None where it depends on what is said.

    Args:
        template: From `guarded`.
        special: The special tokens that templates are given.

    Returns:
        Texts and contents in turn; neighbouring texts are joined.
    """
    messages = [{"role": role, "content": Said.of([Content(index)])} for index, role in enumerate(roles)]
    try:
        found = template.render(messages=messages, tools=None, documents=None, add_generation_prompt=False, **special)
    except (Peeked, TemplateError, TypeError, ValueError):
        return None
    return _joined(_parts(found))


def guarded(template: Template, source: str) -> Template:
    """The template in an environment that does not let it look at contents.

    Args:
        template: Compiled by transformers, with its filters and functions.
        source: Its text.
    """
    environment = template.environment.overlay()
    environment.filters = {name: _guarded_filter(name, made) for name, made in environment.filters.items()}
    environment.filters[_UNSEEN] = _refuse
    environment.tests = {name: _guarded_test(name, made) for name, made in environment.tests.items()}
    call = environment.call  # type: ignore[attr-defined]
    hooks = {"concat": _concat, "call": _guarded_call(call), "call_binop": _guarded_operator(environment)}
    vars(environment).update(hooks, intercepted_binops=frozenset("%"))
    code = environment.compile(_Spelled().visit(environment.parse(source)))
    return Template.from_code(environment, code, environment.make_globals(None))


class _Spelled(NodeTransformer):
    """Operators that Python would carry out unseen, as filters and tests, which are guarded."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        """a ~ b."""
        self.generic_visit(node)
        texts = [nodes.Filter(part, "string", [], [], None, None) for part in node.nodes]
        return reduce(nodes.Add, texts)  # type: ignore[arg-type]

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:
        """a in b, a not in b."""
        self.generic_visit(node)
        if not any(operand.op in ("in", "notin") for operand in node.ops):
            return node
        if len(node.ops) > 1:
            return nodes.Filter(node.expr, _UNSEEN, [], [], None, None)
        found = nodes.Test(node.expr, "in", [node.ops[0].expr], [], None, None)
        return found if node.ops[0].op == "in" else nodes.Not(found)


def _holds(value: Any) -> bool:
    """Whether a value may hold a content."""
    if isinstance(value, (Said, dict, list, tuple)):
        inner = value.values() if isinstance(value, dict) else value
        return isinstance(value, Said) or any(map(_holds, inner))
    plain = (str, int, float, type(None), Undefined, Macro, Context, EvalContext, Environment)
    return not isinstance(value, plain)


def _concat(parts: Iterable[str]) -> str:
    texts = list(parts)
    if any(isinstance(text, Said) for text in texts):
        return Said.of(part for text in texts for part in _parts(text))
    return "".join(texts)


def _guarded_filter(name: str, made: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(made)
    def run(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], Said) and name in ("trim", "string"):
            return args[0].strip(*args[1:], **kwargs) if name == "trim" else args[0]
        if name not in _LIST_FILTERS and any(map(_holds, (*args, *kwargs.values()))):
            raise Peeked
        return made(*args, **kwargs)

    return run


def _guarded_test(name: str, made: Any) -> Callable[..., Any]:
    @wraps(made)
    def run(*args: Any, **kwargs: Any) -> Any:
        if name == "in":
            # Whether a dict or a list has a plain value; a content among those compared refuses by itself.
            if _holds(args[0]) or isinstance(args[1], Said):
                raise Peeked
        elif name not in _TYPE_TESTS and any(map(_holds, args)):
            raise Peeked
        return made(*args, **kwargs)

    return run


def _guarded_call(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(context: Context, called: Any, *args: Any, **kwargs: Any) -> Any:
        takes_contents = isinstance(called, Macro) or (isinstance(called, type) and issubclass(called, Namespace))
        if not takes_contents and any(map(_holds, (*args, *kwargs.values()))):
            raise Peeked
        if getattr(called, "__name__", "") == "strftime_now":
            raise Peeked  # what it writes today it does not write tomorrow
        return call(context, called, *args, **kwargs)

    return run


def _guarded_operator(environment: Environment) -> Callable[..., Any]:
    def run(context: Context, operator: str, left: Any, right: Any) -> Any:
        if _holds(left) or _holds(right):
            raise Peeked
        return environment.binop_table[operator](left, right)  # type: ignore[attr-defined]

    return run


def _joined(parts: list[Part]) -> list[Part]:
    joined: list[Part] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined
