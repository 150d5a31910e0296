"""Replace parts of other libraries, only where they still are as listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from hftune.compat.checking import problem_of
from hftune.compat.symbols import entry_of
from hftune.errors import UserError
from hftune.logging import notice

_FIX = "hftune doctor lists what changed; install a version of that library that hftune was made for"


def usable(symbol: str) -> bool:
    """Whether a listed symbol is as listed. Where it is not, a notice names the feature that is off."""
    problem = problem_of(entry_of(symbol))
    if problem is not None:
        notice(f"off: {entry_of(symbol).feature}; {problem}")
    return problem is None


def require(symbol: str) -> None:
    """Return where a listed symbol is as listed: for what a run may not do without.

    Raises:
        UserError: The library has changed.
    """
    problem = problem_of(entry_of(symbol))
    if problem is not None:
        raise UserError(problem, place=entry_of(symbol).library, fix=_FIX)


def replace_method(instance: Any, name: str, function: Callable[..., Any]) -> None:
    """Have one object, not its class, run `function(instance, ...)` for a method of its own.

    Raises:
        UserError: It has no such method.
    """
    if not callable(getattr(instance, name, None)):
        raise UserError(f"{type(instance).__name__} has no method {name}, which hftune replaces", fix=_FIX)
    # Bound to the object, so that a copy of it (`copy.deepcopy`) does not act on the original.
    setattr(instance, name, MethodType(function, instance))


@contextmanager
def method_replaced(instance: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """`replace_method` in the block; afterwards the object has its own replacement again, or its class's."""
    # In the object's own dict: a method of its class is found again when the replacement is deleted.
    own = vars(instance).get(name)
    replace_method(instance, name, function)
    try:
        yield
    finally:
        if own is None:
            delattr(instance, name)
        else:
            setattr(instance, name, own)
