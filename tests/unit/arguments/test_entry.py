"""`--help` is made once, and then shown without the libraries that know all arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hftune.arguments import entry, stages


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["run_sft.py"])
    return tmp_path / "cache" / "help"


def test_a_page_is_kept(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = stages.help_of("sft", [])
    with pytest.raises(SystemExit) as ended:
        entry.parse_arguments("sft", ["--help"])
    assert ended.value.code == 0 and capsys.readouterr().out == page
    (kept,) = cache.iterdir()
    assert kept.read_bytes()[32:] == page.encode()
    assert (cache.stat().st_mode & 0o777, kept.stat().st_mode & 0o777) == (0o700, 0o600)
    monkeypatch.setattr(stages, "help_of", lambda *_: pytest.fail("made again"))
    assert entry.help_page("sft", ["--help"]) == page


def test_a_page_that_is_damaged_is_made_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = iter(("first", "second"))
    monkeypatch.setattr(stages, "help_of", lambda *_: next(pages))
    assert entry.help_page("sft", []) == "first"
    (kept,) = cache.iterdir()
    kept.write_bytes(kept.read_bytes().replace(b"first", b"fist!"))
    assert [entry.help_page("sft", []) for _ in range(2)] == ["second", "second"]


@pytest.mark.parametrize("change", ["version", "width", "stage", "command line"])
def test_what_a_page_depends_on(cache: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    pages = iter(("first", "second"))
    monkeypatch.setattr(stages, "help_of", lambda *_: next(pages))
    assert entry.help_page("rl", []) == "first"
    if change == "version":
        monkeypatch.setattr(entry, "version", lambda _: "9.9")
    if change == "width":
        monkeypatch.setenv("COLUMNS", "43")
    argv = ["--rl_algorithm", "rloo"] if change == "command line" else []
    assert entry.help_page("sft" if change == "stage" else "rl", argv) == "second"


def test_a_cache_that_cannot_be_used_is_no_harm(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parent.write_text("a file where the folder would be")
    monkeypatch.setattr(stages, "help_of", lambda *_: "page")
    assert entry.help_page("sft", []) == "page"


def test_the_way_in_imports_nothing_heavy() -> None:
    ways = {
        "import hftune.arguments.entry, hftune.cli, hftune.tools.pipeline.starting": "torch, transformers, trl",
        "from hftune.arguments.merging import MergeParser; MergeParser()": "torch, transformers, accelerate",
    }
    for way, heavy in ways.items():
        code = f"import sys; {way}; print(*set('{heavy}'.split(', ')) & {{*sys.modules}})"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "", way
