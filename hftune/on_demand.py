"""Import on demand: what a table names as "package.module:name" is imported when it is chosen, and not before."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def on_demand(place: str) -> Any:
    """The function, class or value that a place such as `hftune.models.kernels.float8:to_float8` names.

    For tables of which a run uses one or a few entries. `tests/unit/test_on_demand.py` holds every such string of the
    package against the modules that are there, since neither mypy nor an import would notice a wrong one.
    """
    # The form of entry points; a dot alone would leave open where the module ends.
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
