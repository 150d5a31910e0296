"""Write the pages of parameters and of defaults:  python -m hftune.tools.explaining --write-docs [docs]"""

from __future__ import annotations

import sys
from pathlib import Path

from hftune.tools.explaining.defaults_page import PAGE, page
from hftune.tools.explaining.tool_pages import pages
from hftune.visible import say


def main(argv: list[str]) -> None:
    """Print the pages, or write them below a folder."""
    if argv[:1] != ["--write-docs"]:
        say("\n".join([*pages().values(), page()]))
        return
    folder = Path(argv[1]) if len(argv) > 1 else PAGE.parent
    written = {folder / name: text for name, text in pages().items()}
    for file, text in {**written, folder / PAGE.name: page()}.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    say(f"{len(written) + 1} pages in {folder}")


if __name__ == "__main__":
    main(sys.argv[1:])
