"""The tables of docs/parameters and docs/defaults.md: each name on the page of its tool, between the pages' marks."""

from __future__ import annotations

import shutil
from pathlib import Path
from runpy import run_path

from hftune.arguments.names.table import tools
from tests.documents import ROOT

TABLES = run_path(str(ROOT / "docs" / "site" / "tables.py"))
PAGES, main, tool_tables = (TABLES[name] for name in ("PAGES", "main", "tool_tables"))


def test_each_name_is_on_the_page_of_its_tool() -> None:
    """And on no other tool's: a reader of MedicalGPT's page reads nothing about Megatron."""
    assert sorted(tool for owners in PAGES.values() for tool in owners) == sorted(tools())
    for file, owners in PAGES.items():
        rows = [line for line in tool_tables(owners).splitlines() if line.startswith("| `")]
        names = {name for tool in owners for name in tools()[tool]}
        assert sorted(row.split("`")[1] for row in rows) == sorted(names), file
        assert all((row.count(" | ") - row.count("\\| ")) >= 3 for row in rows), file


def test_tables_are_written_between_the_marks(tmp_path: Path) -> None:
    for page in ("parameters", "parameters.md", "defaults.md"):
        copy = shutil.copytree if (ROOT / "docs" / page).is_dir() else shutil.copy
        copy(ROOT / "docs" / page, tmp_path / page)
    page = tmp_path / "defaults.md"
    whole = page.read_text(encoding="utf-8")
    lines = [line for line in whole.splitlines() if not line.startswith("| `learning_rate`")]
    page.write_text("\n".join([*lines, ""]), encoding="utf-8")
    main([str(tmp_path)])
    assert page.read_text(encoding="utf-8") == whole
