"""YAML of bounded size; every fault is one message with the file and the line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from hftune.errors import ArgumentError
from hftune.opening.files import open_file

MAX_BYTES = 1 << 20
MAX_VALUES = 100_000
"""Values of a file after all aliases (`*name`) are written out: ten lines of them can stand for a billion."""

_OF_NAMES = re.compile(r"\b(?:alias|anchor|tag)\b")
_QUOTED = re.compile(r"\s*(?:'.*'|\".*\")", re.DOTALL)
_FIX = (
    "write NAME: VALUE, a line each, with a colon and a blank, and no tabs; a text with a colon or a # in it, or one "
    "that begins with a sign (* & ! % @) or looks like a date or number, stands in quotes"
)


class UniqueNames(yaml.SafeLoader):
    """A YAML loader that refuses a name which stands twice in one place, and aliases that stand for too much."""

    def get_single_node(self) -> yaml.Node | None:
        """Overrides `Composer.get_single_node`: whoever walks through the values would not come to an end."""
        root: yaml.Node | None = super().get_single_node()
        waiting, seen = [root], 0
        while waiting:
            node, seen = waiting.pop(), seen + 1
            if seen + len(waiting) > MAX_VALUES:
                mark = None if root is None else root.start_mark
                raise yaml.MarkedYAMLError(problem=f"it stands for more than {MAX_VALUES} values", problem_mark=mark)
            if isinstance(node, yaml.SequenceNode):
                waiting += node.value
            elif isinstance(node, yaml.MappingNode):
                waiting += chain.from_iterable(node.value)
        return root

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Overrides `Composer.compose_mapping_node`: a repeated name would lose its first value in silence."""
        node = super().compose_mapping_node(anchor)
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            # Several merge keys are usual: `<<: *a` and `<<: *b` fill in defaults, and lose nothing.
            if key.value in seen and key.value != "<<":
                problem = f"{key.value} stands here twice, first in line {seen[key.value]}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen[key.value] = key.start_mark.line + 1
        return node


def read_yaml_text(file: Path) -> str:
    """The text of a YAML file.

    Raises:
        ArgumentError: It is no file, too large, or no text.
    """
    try:
        with open_file(file) as stream:
            content = stream.read(MAX_BYTES + 1)
        # Editors on Windows begin files with a byte order mark.
        text = content.decode("utf-8-sig")
    except OSError as error:
        cause = f"cannot read the file: {error.strerror or error}"
        raise ArgumentError(cause, place=str(file), fix="give the path of a YAML file") from error
    except UnicodeDecodeError as error:
        raise ArgumentError(f"not UTF-8: {error.reason}", place=str(file), fix="save the file as UTF-8") from error
    if len(content) > MAX_BYTES:
        raise ArgumentError(f"the file has more than {MAX_BYTES} bytes", place=str(file), fix="shorten the file")
    return text


@contextmanager
def yaml_errors(file: Path | str) -> Iterator[None]:
    """Turn errors of PyYAML in the block into one message with the line.

    Raises:
        ArgumentError: In its place.
    """
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}:{mark.line + 1}" if mark else str(file)
        cause = f"not valid YAML: {_without_names(error)}"
        raise ArgumentError(cause, place=place, fix=_FIX) from None
    except ReaderError as error:  # a character that YAML does not allow
        cause = " ".join(str(error).split())
        raise ArgumentError(f"not valid YAML: {cause}", place=str(file), fix=_FIX) from error
    except RecursionError:
        raise ArgumentError("not valid YAML: nested too deeply", place=str(file), fix="write a flat list") from None
    except (yaml.YAMLError, ValueError, OverflowError, TypeError, LookupError, AttributeError) as error:
        # What PyYAML does not expect, 2024-13-45 as a date, !!bool perhaps; most of these quote the value.
        cause = f"not valid YAML: a value is not of its type ({type(error).__name__})"
        raise ArgumentError(cause, place=str(file), fix=_FIX) from None


def _without_names(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's words without names from the file: a password may begin with `*`, `&` or `!`."""
    problem = error.problem or "it cannot be read"
    return _QUOTED.sub("", problem) if _OF_NAMES.search(problem) else problem


def read_yaml(file: Path) -> Any:
    """The plain values of a file.

    Raises:
        ArgumentError: It cannot be read, or is no YAML.
    """
    text = read_yaml_text(file)
    with yaml_errors(file):
        return yaml.load(text, Loader=UniqueNames)  # noqa: S506  (a SafeLoader)
