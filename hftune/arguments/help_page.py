"""The order that `--help` shows arguments in: hftune's own by topic, then what the libraries below bring."""

from __future__ import annotations

import argparse
import copy
import inspect
from collections.abc import Iterable
from dataclasses import fields, is_dataclass

_TITLES = {
    "ModelArguments": "model and tokenizer",
    "DataArguments": "data",
    "AdapterArguments": "adapters and quantised bases",
    "MergeArguments": "merging",
}


def help_groups(classes: Iterable[type], actions: Iterable[argparse.Action]) -> dict[str, list[argparse.Action]]:
    """Title -> arguments, in the order in which they are shown.

    Args:
        classes: The dataclasses of the parser, each with those it extends.
        actions: The parser's; those that belong to no class (`--help`) come first.
    """
    owners = {name: title for cls in classes for name, title in _owners(cls).items()}
    groups: dict[str, list[argparse.Action]] = {"options": []}
    for title in dict.fromkeys(owners.values()):
        groups[title] = []
    for action in actions:
        groups[owners.get(action.dest, "options")].append(_with_underscores(action))
    ours = [title for title in groups if " of " not in title]
    # TRL's before transformers', which has a hundred that few need.
    theirs = sorted((title for title in groups if " of " in title), key=lambda title: "transformers" in title)
    return {title: groups[title] for title in [*ours, *theirs] if groups[title]}


def _with_underscores(action: argparse.Action) -> argparse.Action:
    """The argument without its second spelling, `--learning-rate`, which works as well."""
    # A copy: the parser still accepts both spellings.
    shown = copy.copy(action)
    shown.option_strings = [option for option in action.option_strings if "-" not in option.lstrip("-")]
    return shown


def _owners(cls: type) -> dict[str, str]:
    """Field -> title of the class that says most about it; the outermost class that has it counts."""
    owners: dict[str, str] = {}
    # From the outermost class inwards: whoever redefines a field has written the help that is shown.
    for base in cls.__mro__:
        if is_dataclass(base):
            own = inspect.get_annotations(base)
            owners |= {
                field.name: _title(base) for field in fields(base) if field.name in own and field.name not in owners
            }
    return owners


def _title(cls: type) -> str:
    package = cls.__module__.split(".")[0]
    if package != "hftune":
        return f"arguments of {package}'s {cls.__name__}"
    return _TITLES.get(cls.__name__, "training")
