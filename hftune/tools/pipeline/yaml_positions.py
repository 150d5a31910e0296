"""Reads a YAML file as values that know their lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hftune.errors import ArgumentError, UserError
from hftune.opening.yaml_file import UniqueNames, read_yaml_text, yaml_errors


@dataclass(frozen=True)
class Positioned:
    """A value and where it stands.

    Args:
        value: A text, number, bool or None; for a mapping a dict of name to `Positioned`, for a list a list of them.
        place: `file:line`.
        name_place: Where its name stands, if it has one; else `place`.
    """

    value: Any
    place: str
    name_place: str = ""

    @property
    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {name: child.plain for name, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain for child in self.value]
        return self.value

    def mapping(self, what: str, problems: list[UserError]) -> dict[str, Positioned]:
        """The value as a dict; an empty one if it is something else, which is added to `problems`."""
        if isinstance(self.value, dict):
            return self.value
        if self.value is not None:
            problems.append(ArgumentError(f"{what} must hold names and values", place=self.place, fix="NAME: VALUE"))
        return {}


def read_yaml(file: Path) -> Positioned:
    """The content of a file.

    Raises:
        ArgumentError: No such file, not YAML, a name twice in one mapping.
    """
    if not file.is_file():
        raise ArgumentError(f"there is no file {file}", fix="hftune pipeline run PIPELINE.yaml; see examples/pipelines")
    text = read_yaml_text(file)
    with yaml_errors(file):
        loader = UniqueNames(text)
        try:
            # Nodes and not loaded values: only nodes have lines. The type stubs of PyYAML leave these methods untyped.
            node = loader.get_single_node()
            return Positioned({}, f"{file}:1") if node is None else _positioned(loader, node, str(file))
        finally:
            loader.dispose()


def _positioned(loader: yaml.SafeLoader, node: yaml.Node, file: str, name_place: str = "") -> Positioned:
    place = f"{file}:{node.start_mark.line + 1}"
    name_place = name_place or place
    if isinstance(node, yaml.SequenceNode):
        return Positioned([_positioned(loader, child, file) for child in node.value], place, name_place)
    if not isinstance(node, yaml.MappingNode):
        # Untyped in the stubs of PyYAML, as above.
        return Positioned(loader.construct_object(node), place, name_place)
    # Puts the names of `<<: *other` first.
    loader.flatten_mapping(node)
    found = {}
    for key, child in node.value:
        if not isinstance(key, yaml.ScalarNode):
            line = key.start_mark.line + 1
            raise ArgumentError("a name must be a text", place=f"{file}:{line}", fix="NAME: VALUE")
        # Of a name that `<<` brings and the mapping has itself, the own one is last.
        found[str(key.value)] = _positioned(loader, child, file, f"{file}:{key.start_mark.line + 1}")
    return Positioned(found, place, name_place)
