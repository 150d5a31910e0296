"""Code of the user's that an argument names: `module:NAME` or `file.py:NAME`."""

from __future__ import annotations

import importlib
import importlib.util
import traceback
from pathlib import Path
from typing import Any

from hftune.errors import ArgumentError, shown


def named_code(name: str, flag: str, what: str = "function", hint: str = "") -> Any:
    """The function or class behind `module:NAME` or `file.py:NAME`.

    Args:
        name: As it was given.
        flag: The argument, for messages.
        what: What it must be, in a word.
        hint: What may have been meant, where it has no module.

    Raises:
        ArgumentError: It names none, or its module cannot be imported. The error's place is `flag`.
    """
    where, _, attribute = name.rpartition(":")
    if not where:
        fix = f"{hint} write {flag} FILE.py:{what.upper()} or MODULE:{what.upper()}".strip()
        raise ArgumentError(f"{name!r} names no {what}", place=flag, fix=fix)
    module: Any
    try:
        if where.endswith(".py"):
            if not Path(where).is_file():
                raise FileNotFoundError(f"No such file: {where}")
            # By its path: the file need not lie where Python looks for modules.
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            if not all(part.isidentifier() for part in where.split(".")):
                raise ImportError(f"{shown(where)} is no name of a module")
            module = importlib.import_module(where)
        return getattr(module, attribute)
    except (ImportError, FileNotFoundError, AttributeError) as error:
        upper = what.upper()
        fix = f"write {flag} FILE.py:{upper}, of a file that is there and a {what} in it, or MODULE:{upper}"
        raise ArgumentError(f"{name} cannot be loaded: {error}", place=flag, fix=fix) from error
    except Exception as error:  # the module is its author's, and may raise anything
        cause = f"{where} raised {type(error).__name__}: {shown(error)}"
        raise ArgumentError(cause, place=f"{flag} ({line_of(error, where)})", fix="mend it") from error


def line_of(error: BaseException, file: str) -> str:
    """`file:line` of the line in a file of the user's that an error came from; else of the last line that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).resolve() == Path(file).resolve()] or frames[-1:]
    # A file that is no Python has not run.
    where = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (own[-1].filename, own[-1].lineno)
    return "{}:{}".format(*where)
