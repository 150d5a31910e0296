"""What a chat template is given besides the conversation, such as `enable_thinking`: read, checked, kept.

The arguments of a run are kept with its tokenizer, by whose template everything is written: records, prompts of RL,
what reward models read. A record may have others in its field `chat_template_kwargs`; they win, name by name.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from jinja2 import Environment, meta, nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from hftune.errors import ArgumentError, DataError, UserError, shown
from hftune.opening.json_file import parse_json

if TYPE_CHECKING:  # merging starts without it
    from transformers import PreTrainedTokenizerBase

FIELD = "chat_template_kwargs"
FLAG = f"--{FIELD}"
KIND = "bad template arguments"

TemplateArguments = dict[str, Any]
TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""What rendering a template may end in: it is a program of whoever made the model, so that besides Jinja's own errors
there are Python's, as of a division by zero or of a range that the sandbox finds too long."""

Tokenizer = TypeVar("Tokenizer", bound="PreTrainedTokenizerBase")

_ATTRIBUTE = "hftune_template_arguments"
_FIX = "Write a JSON object, such as '{\"enable_thinking\": false}'."
# What transformers gives a template itself: a record that set these would write another conversation.
_GIVEN = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize")
)
_FUNCTIONS = frozenset(("raise_exception", "strftime_now", "tojson"))
_DEEPEST = 20
# A broken template reads nothing here; what is wrong with it is said where it is rendered.
_BROKEN = (TemplateSyntaxError, RecursionError)


class _Generation(Extension):
    """Reads {% generation %} blocks, which are transformers' own."""

    tags = {"generation"}  # noqa: RUF012  # an attribute of instances in Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


@lru_cache(maxsize=32)
def names_read(template: str) -> frozenset[str]:
    """The arguments that a template reads, without those that transformers gives it itself."""
    with suppress(*_BROKEN):
        return _names_read(_parsed(template))
    return frozenset()


def _names_read(tree: nodes.Template) -> frozenset[str]:
    stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    # A name that the template sets itself is an argument only where it first asks whether one was given.
    asked = {test.node.name for test in _tests(tree, "defined", "undefined")}
    # `{% set x = x | default(...) %}`
    defaults = [filter.node for filter in tree.find_all(nodes.Filter) if filter.name in ("default", "d")]
    asked |= {node.name for node in defaults if isinstance(node, nodes.Name)}
    found = meta.find_undeclared_variables(tree) - (stored - asked) - _GIVEN - _FUNCTIONS
    return frozenset(name for name in found if not name.endswith("_token") and not name.startswith("_"))


@lru_cache(maxsize=32)
def switches(template: str) -> frozenset[str]:
    """Of the arguments those that the template compares with true or false alone, so that a text or a 0 is neither."""
    with suppress(*_BROKEN):
        return frozenset(test.node.name for test in _tests(_parsed(template), "true", "false"))
    return frozenset()


def _parsed(template: str) -> nodes.Template:
    return Environment(extensions=[_Generation, loopcontrols]).parse(template)  # noqa: S701  (parsed, never rendered)


def _tests(tree: nodes.Template, *names: str) -> list[Any]:
    """The tests of these names (`x is defined`) of plain variables."""
    return [test for test in tree.find_all(nodes.Test) if test.name in names and isinstance(test.node, nodes.Name)]


# --- reading ----------------------------------------------------------------------------------------------------------


def parse_arguments(value: Any, place: str, error: type[UserError] = ArgumentError) -> TemplateArguments:
    """An object, or one as a text of JSON, without names that are null; {} for nothing.

    Raises:
        ArgumentError: (or the class given) No JSON, no object, or a value that is none of JSON.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    found = parse_json(value, place, kind=None, error=error, fix=_FIX) if isinstance(value, str) else value
    if not isinstance(found, Mapping):
        raise _bad(f"{FIELD} must be an object, found {shown(found)}", place, error)
    if not _is_plain(found, _DEEPEST):
        raise _bad(f"{FIELD} holds what is no value of JSON, or is too deep", place, error)
    # Null counts as absent: Parquet gives every record the names of all.
    return {str(name): part for name, part in found.items() if part is not None}


def _is_plain(value: Any, depth: int) -> bool:
    if isinstance(value, Mapping):
        return depth > 0 and all(isinstance(name, str) and _is_plain(part, depth - 1) for name, part in value.items())
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(part, depth - 1) for part in value)
    # NaN and infinities differ from themselves, or are no JSON.
    return value is None or isinstance(value, (str, bool, int)) or (isinstance(value, float) and abs(value) < 1e300)


def check_arguments(
    arguments: Mapping[str, Any], template: str | None, place: str, error: type[UserError] = ArgumentError
) -> None:
    """Refuse arguments that the template does not read, and values that it would silently take for others.

    Raises:
        ArgumentError: (or the class given) Naming what the template reads.
    """
    known = names_read(template or "")
    strangers = [name for name in arguments if name not in known]
    if strangers:
        reads = f"it reads {', '.join(sorted(known))}" if known else "it reads none"
        said = ", ".join(map(shown, strangers))
        own = " (what transformers gives it itself cannot be set)" if _GIVEN.intersection(strangers) else ""
        fix = "Leave it out, or give a template that reads it by --chat_template."
        raise _bad(f"the chat template does not read {said}{own}; {reads}", place, error, fix)
    only = switches(template or "")
    for name, value in arguments.items():
        # "false" is a text like any other, and true to a template; 0 is not false to one that asks for false.
        words = isinstance(value, str) and value.strip().lower() in ("true", "false")
        if words or (name in only and not isinstance(value, bool)):
            raise _bad(f"{name} must be true or false, found {shown(value)}", place, error)


def _bad(cause: str, place: str, error: type[UserError], fix: str = _FIX) -> UserError:
    # One sort of fault, under which records that are dropped are counted.
    return (
        DataError(cause, place=place, fix=fix, kind=KIND) if error is DataError else error(cause, place=place, fix=fix)
    )


# --- with a tokenizer -------------------------------------------------------------------------------------------------


def arguments_of(tokenizer: Any) -> TemplateArguments:
    """The arguments with which a tokenizer's template writes."""
    return dict(getattr(tokenizer, _ATTRIBUTE, None) or {})


def give_arguments(tokenizer: Tokenizer, arguments: Mapping[str, Any] | None) -> Tokenizer:
    """Keep arguments with a tokenizer, for all that its template writes.

    Raises:
        ArgumentError: As `check_arguments`.
    """
    check_arguments(arguments or {}, template_text(tokenizer), FLAG)
    setattr(tokenizer, _ATTRIBUTE, copy.deepcopy(dict(arguments or {})))
    return tokenizer


def readable(arguments: Mapping[str, Any], tokenizer: Any) -> TemplateArguments:
    """Those of the arguments that a tokenizer's template reads."""
    known = names_read(template_text(tokenizer))
    return {name: value for name, value in arguments.items() if name in known}


def template_text(tokenizer: Any) -> str:
    """The template's text; of several (one for tools, say) all of them."""
    template = tokenizer.chat_template
    return "\n".join(template.values()) if isinstance(template, dict) else str(template or "")


def with_defaults(template: str, arguments: Mapping[str, Any]) -> str:
    """A template that takes these arguments where it is given none of that name."""
    found = [f"{{% set {name} = {name} if {name} is defined else {_literal(arguments[name])} %}}" for name in arguments]
    return "".join(found) + template


def _literal(value: Any) -> str:
    """A value of JSON as Jinja reads it, which is as Python writes it, but that a block ends within a text as well."""
    return repr(value).replace("%}", "%\\x7d")
