"""docs/output_folder.md names every file that real runs leave, and says nothing of files that no run could leave."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hftune.tools.reporting.page import write_pages
from tests.documents import ROOT

PAGE = (ROOT / "docs" / "output_folder.md").read_text(encoding="utf-8")
OF_OTHERS = ("runs", "profile")
"""Folders whose files belong to TensorBoard and torch's profiler."""
RUNS = {
    "sft": ("sft", "lora", "single", ("--save_strategy", "steps", "--save_steps", "5", "--report_to", "tensorboard")),
    "zero2": ("sft", "full", "zero2", ("--save_strategy", "steps", "--save_steps", "10")),
    "rl": (
        "rl",
        "lora",
        "single",
        ("--reward_funcs", "length", "--num_generations", "2", "--max_completion_length", "8"),
    ),
}


def patterns(page: str) -> list[re.Pattern[str]]:
    """What stands between backticks, as names of files: a number or N means any number, NAME any name."""
    found = []
    for name in re.findall(r"`([\w.-]+)/?`", page):
        spelled = re.sub(r"\d+N?|(?<=[-p_])N\b|(?<=\D)0000N", r"\\d+", re.escape(name))
        found.append(re.compile(spelled.replace("NAME", ".+")))
    return found


def unnamed(folder: Path, page: str) -> list[str]:
    """Files and folders in `folder`, however deep, that the page does not name."""
    known = patterns(page)
    lost = set()
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        for part in parts:
            if not any(pattern.fullmatch(part) for pattern in known):
                lost.add(part)
            if part in OF_OTHERS:
                break
    return sorted(lost)


@pytest.fixture(scope="module")
def merged(stage_run: Callable, run: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("merged") / "out"
    adapter = stage_run(*RUNS["sft"]).folder
    flags = ("--peft_model_path", str(adapter), "--output_dir", str(folder))
    run("merge_peft_adapter.py", *flags, warm=True).check()
    return folder


@pytest.fixture(params=RUNS)
def folder(request: pytest.FixtureRequest, stage_run: Callable) -> Iterator[Path]:
    yield stage_run(*RUNS[request.param]).folder


@pytest.mark.long
def test_every_file_of_a_run_is_named(folder: Path) -> None:
    write_pages(folder)
    assert (folder / "hftune.json").is_file()
    assert unnamed(folder, PAGE) == []


@pytest.mark.long
def test_every_file_of_a_merge_is_named(merged: Path) -> None:
    assert (merged / "model.safetensors").is_file()
    assert unnamed(merged, PAGE) == []


def test_a_file_that_is_not_named_is_found(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-10").mkdir()
    (tmp_path / "checkpoint-10" / "rng_state_3.pth").touch()
    (tmp_path / "checkpoint-ten").mkdir()
    (tmp_path / "model-00002-of-00007.safetensors").touch()
    (tmp_path / "notes.txt").touch()
    assert unnamed(tmp_path, PAGE) == ["checkpoint-ten", "notes.txt"]
