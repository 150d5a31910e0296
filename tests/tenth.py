"""A plugin of pytest that keeps another tenth of the tests each day, and shuffles it: CI runs a part of the slow ones.

`pytest -p tests.tenth -m slow`; HFTUNE_TENTH chooses another day, as the number of days since 1970.
"""

from __future__ import annotations

import os
import time
import zlib

import pytest


def day() -> int:
    """Days since 1970, or what is asked for."""
    return int(os.environ.get("HFTUNE_TENTH", time.time() // 86400))


def chosen(tests: list[str], number: int) -> list[str]:
    """The tenth of one day, in an order of that day: where time ends, others are first in ten days."""
    mine = [test for test in tests if zlib.crc32(test.encode()) % 10 == number % 10]
    return sorted(mine, key=lambda test: zlib.crc32(f"{number} {test}".encode()))


@pytest.hookimpl(trylast=True)  # behind what marks leave out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out nine tenths."""
    known = {item.nodeid: item for item in items}
    kept = [known[test] for test in chosen(list(known), day())]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
