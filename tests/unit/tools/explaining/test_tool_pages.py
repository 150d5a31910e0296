"""Pages of parameters: written by the table, each name on the page of its tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.arguments.names.table import tools
from hftune.tools.explaining.__main__ import main
from hftune.tools.explaining.tool_pages import INDEX, PAGES, pages


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """The pages as the table makes them now."""
    return pages()


def test_each_name_is_on_the_page_of_its_tool(written: dict[str, str]) -> None:
    """And on no other tool's: a reader of MedicalGPT's page reads nothing about Megatron."""
    assert sorted(tool for page in PAGES.values() for tool in page.tools) == sorted(tools())
    for file, page in PAGES.items():
        rows = [line for line in written[f"parameters/{file}.md"].splitlines() if line.startswith("| `")]
        names = {name for tool in page.tools for name in tools()[tool]}
        assert sorted(row.split("`")[1] for row in rows) == sorted(names), file
        assert all((row.count(" | ") - row.count("\\| ")) >= 3 for row in rows), file


def test_pages_are_written_where_they_are_asked_for(tmp_path: Path, written: dict[str, str]) -> None:
    main(["--write-docs", str(tmp_path)])
    assert {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.md")} == {
        *written,
        "defaults.md",
    }
    assert (tmp_path / INDEX).read_text(encoding="utf-8") == written[INDEX]
