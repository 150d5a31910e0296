"""`hftune lineage` and `hftune report`."""

from __future__ import annotations

from hftune.errors import ArgumentError
from hftune.visible import as_json, say


def lineage(argv: list[str]) -> None:
    """The chain from base to a model."""
    from hftune.tools.reporting.lineage import draw, trace

    folders = [word for word in argv if not word.startswith("-")]
    strangers = [word for word in argv if word.startswith("-") and word != "--json"]
    if len(folders) != 1 or strangers:
        raise ArgumentError("`hftune lineage` needs one folder", fix="hftune lineage outputs/sft-merged [--json]")
    origin = trace(folders[0])
    say(as_json(origin.to_dict(), indent=2) if "--json" in argv else draw(origin))
    if origin.all_faults():
        raise SystemExit(1)


def report(argv: list[str]) -> None:
    """Curves, counts, answers and commands on one page."""
    from hftune.tools.reporting.page import write_pages

    if len(argv) != 1 or argv[0].startswith("-"):
        raise ArgumentError("`hftune report` needs one folder", fix="hftune report outputs/lora")
    say("\n".join(str(file) for file in write_pages(argv[0])))
