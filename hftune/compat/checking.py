"""Check that the installed libraries still have the private parts that hftune uses.

python -m hftune.compat.checking      prints a line for each symbol that changed; `hftune doctor` and a test run it
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from packaging.specifiers import SpecifierSet

from hftune.compat.symbols import UpstreamSymbol, listed
from hftune.visible import say

OTHERS = "..."
"""Last in `Touched.parameters`: hftune does not name the other parameters."""

CHANGED, LOOKED_AT = "changed: ", " private or replaced parts of other libraries looked at"
"""How lines of `main` begin, and how its last one ends."""

# Not None, which may be an attribute's value.
_GONE = object()
_SET_BY_SOURCE = object()


def problems(entries: Iterable[UpstreamSymbol] | None = None) -> Iterator[str]:
    """A line for each entry that the installed libraries do not have as it is listed. Imports the libraries."""
    for entry in listed() if entries is None else entries:
        problem = problem_of(entry)
        if problem is not None:
            yield problem


def problem_of(entry: UpstreamSymbol) -> str | None:
    """What changed upstream, and which feature needs it; None where all is as listed, or there is nothing to check.

    Libraries that are not installed, and versions that the entry is not for, have no problem.
    """
    version = installed(entry.library)
    # Before anything is imported: bitsandbytes, say, is not on every machine.
    if importlib.util.find_spec(entry.library) is None:
        return None
    # Pre-releases as well, which a range excludes by default: who tries one needs the check most.
    if version is not None and not SpecifierSet(entry.versions).contains(version, prereleases=True):
        return None
    found = find(entry.symbol)
    where = f"{entry.library} {version}" if version else entry.library
    if found is _GONE:
        return f"{entry.symbol} is not in {where}: {entry.feature} needs it"
    if entry.parameters is None:
        return None
    now = parameters_of(found)
    if now == entry.parameters or (entry.parameters[-1:] == (OTHERS,) and _in_order(entry.parameters[:-1], now)):
        return None
    return (
        f"{entry.symbol} takes ({', '.join(now)}) in {where}, and took ({', '.join(entry.parameters)}): "
        f"{entry.feature} needs it"
    )


@functools.cache  # it is read from a file, a dozen times a run
def installed(library: str) -> str | None:
    """The version of a library; None where it is not installed, or belongs to Python."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def find(symbol: str) -> Any:
    """The object at a dotted path; `_GONE` where there is none, `_SET_BY_SOURCE` for what only code sets.

    The last name may be an attribute that the class or module before it sets on objects.
    """
    parts = symbol.split(".")
    owner: Any = importlib.import_module(parts[0])
    for number, name in enumerate(parts[1:], start=1):
        value = getattr(owner, name, _GONE)
        # A module that nobody has imported is no attribute of its package yet.
        if value is _GONE and isinstance(owner, ModuleType):
            value = _imported(f"{owner.__name__}.{name}")
        if value is _GONE:
            return _SET_BY_SOURCE if number == len(parts) - 1 and _sets(owner, name) else _GONE
        owner = value
    return owner


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return _GONE


def _sets(owner: Any, name: str) -> bool:
    """Whether the sources of a module, or of a class and its bases, mention an attribute of that name."""
    # Looked for in the sources: such an attribute exists on objects alone, and none is made here.
    mentioned = re.compile(rf"\.{re.escape(name)}\b")
    owners = inspect.getmro(owner) if inspect.isclass(owner) else (owner,)
    for one in owners:
        try:
            source = inspect.getsource(one)
        except (OSError, TypeError):  # built in, or no source
            continue
        if mentioned.search(source):
            return True
    return False


def parameters_of(found: Any) -> tuple[str, ...]:
    """Names of a callable's parameters, with stars and without `self` or `cls`; empty where it takes none.

    What hftune put in its place says so with `__wrapped__`, so that the original's are returned.
    """
    try:
        parameters = list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError):  # no callable any more, or one of C
        return ("?",)
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    names = [stars.get(parameter.kind.name, "") + parameter.name for parameter in parameters]
    return tuple(names[1:] if names[:1] in (["self"], ["cls"]) else names)


def _in_order(wanted: tuple[str, ...], there: tuple[str, ...]) -> bool:
    # An iterator: each name is looked for behind the one before it.
    rest = iter(there)
    return all(name in rest for name in wanted)


def main() -> None:
    """Print a line for each symbol that changed, and last how many were looked at."""
    for problem in problems():
        say(f"{CHANGED}{problem}")
    say(f"{len(listed())}{LOOKED_AT}")


if __name__ == "__main__":
    main()
