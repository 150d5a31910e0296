"""Write the page of defaults:  python -m hftune.arguments.defaults --write-docs [docs/defaults.md]"""

from __future__ import annotations

import sys
from pathlib import Path

from hftune.arguments.defaults.page import PAGE, measured_section, page
from hftune.visible import say


def main(argv: list[str]) -> None:
    """Print the page, or write it; what benchmarks have measured stays at its end."""
    if argv[:1] != ["--write-docs"]:
        say(page())
        return
    target = Path(argv[1]) if len(argv) > 1 else PAGE
    measured = measured_section(target.read_text(encoding="utf-8")) if target.is_file() else ""
    target.write_text(page() + measured, encoding="utf-8")
    say(f"{target} is written")


if __name__ == "__main__":
    main(sys.argv[1:])
