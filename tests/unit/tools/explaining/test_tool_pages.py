"""Pages of parameters: written by the table, each name on the page of its tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.arguments.names.table import tools
from hftune.tools.explaining.__main__ import main
from hftune.tools.explaining.tool_pages import INDEX, PAGES, pages, tool_page

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """The pages as the table makes them now."""
    return pages()


def test_the_pages_are_written_by_the_table(written: dict[str, str]) -> None:
    there = {INDEX, *(f"parameters/{file.name}" for file in (ROOT / "docs" / "parameters").iterdir())}
    assert there == set(written)


def test_each_name_is_on_the_page_of_its_tool(written: dict[str, str]) -> None:
    """And on no other tool's: a reader of MedicalGPT's page reads nothing about Megatron."""
    assert sorted(tool for page in PAGES.values() for tool in page.tools) == sorted(tools())
    for file, page in PAGES.items():
        rows = [line for line in written[f"parameters/{file}.md"].splitlines() if line.startswith("| `")]
        names = {name for tool in page.tools for name in tools()[tool]}
        assert sorted(row.split("`")[1] for row in rows) == sorted(names), file
        assert all((row.count(" | ") - row.count("\\| ")) >= 3 for row in rows), file


def test_rows_say_which_of_two_tools_has_a_name() -> None:
    both, one = tool_page(PAGES["erniekit"]), tool_page(PAGES["medicalgpt"])
    assert "| `do_train` | ERNIEKit, PaddleFormers | train | works |" in both
    assert "| `do_train` | train | works |" in one and "PaddleFormers" not in one


def test_own_arguments_name_their_scripts(written: dict[str, str]) -> None:
    page = written["parameters/hftune.md"]
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert rows["on_bad_record"].startswith("| `on_bad_record` | all | error: stop at a record")
    assert "| `run_pt` |" in rows["block_size"] and "| `run_dpo` |" in rows["simpo_gamma"]
    assert "| `run_rl` |" in rows["reward_model_path"] and "| `run_rl ppo` |" in rows["vf_coef"]
    assert "| `merge_peft_adapter` |" in rows["merge_base"]
    assert "adam_beta1" not in rows  # transformers'
    assert "as peft has it" in rows["target_parameters"]


def test_pages_are_written_where_they_are_asked_for(tmp_path: Path, written: dict[str, str]) -> None:
    main(["--write-docs", str(tmp_path)])
    assert {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.md")} == {
        *written,
        "defaults.md",
    }
    assert (tmp_path / INDEX).read_text(encoding="utf-8") == written[INDEX]
