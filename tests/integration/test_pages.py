"""The pages for newcomers as they stand: the first hour in a shell, MedicalGPT's eight commands with a tiny model."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import Finished, without_launcher
from tests.documents import ROOT, blocks, commands
from tests.table.tiny import tiny_checkpoint

FIRST_HOUR = (ROOT / "docs" / "first_hour.md").read_text(encoding="utf-8")
MEDICALGPT = (ROOT / "docs" / "from_medicalgpt.md").read_text(encoding="utf-8")
LINKED = ("run_sft.py", "merge_peft_adapter.py", "examples", "ds_configs", "hftune", "Makefile", "constraints.txt")
INSTALLED = {"make venv": "make -n venv", "source .venv/bin/activate": "true"}
"""What a test does in place of installing once more: make says what it would do."""


@pytest.mark.slow
def test_the_first_hour_runs_as_it_stands(tiny_model: Path, workspace: Path, tmp_path: Path) -> None:
    """All commands of the page, in one shell, on the example data; the model is a tiny one in SmolLM2's folder."""
    for name in (*LINKED, "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    base = tmp_path / "outputs" / "base" / "SmolLM2-135M-Instruct"
    shutil.copytree(tiny_model, base)
    (base / "SOURCE").write_text("the tests\n")
    shell = "\n".join(block.text for block in blocks(FIRST_HOUR) if block.language == "bash")
    for command, instead in INSTALLED.items():
        assert shell.count(command) == 1
        shell = shell.replace(command, instead)
    finished = in_shell(shell, tmp_path, workspace)
    assert finished.code == 0, finished.output[-4000:]

    first = tmp_path / "outputs" / "first"
    manifest = json.loads((first / "hftune.json").read_text())
    assert manifest["status"] == "complete" and (first / "report.html").is_file()
    assert any(folder.name.startswith("checkpoint-") for folder in first.iterdir())
    assert (tmp_path / "outputs" / "first-merged" / "model.safetensors").is_file()
    assert list((tmp_path / "outputs" / "first-gguf").glob("*.gguf"))
    for said in ("pip install", "trained (", "GiB in each process", "Who are you?", "outputs/first-merged"):
        assert said in finished.output


def in_shell(text: str, folder: Path, workspace: Path) -> Finished:
    """A shell that ends at the first command which fails; `hftune` is that of these sources."""
    function = f'hftune() {{ {sys.executable} -m hftune.cli "$@"; }}'
    finished = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{function}\n{text}"],
        cwd=folder,
        env=without_launcher(os.environ)
        | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HFTUNE_CACHE": str(workspace / "cache"),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    return Finished(finished.returncode, finished.stdout)


_DIFFS = [words for block in blocks(MEDICALGPT) if block.language == "diff" for words in commands(block)]
EIGHT = {words[words.index("--output_dir") + 1]: words for words in _DIFFS}
"""Output folder -> the words of hftune's command, from the diffs of the page."""
MODELS = ["llama", "qwen3_5", "qwen3_5_moe"]
"""The tiny model of all tests; and MedicalGPT's default, in the layout that is published: a vision tower included."""
DATA = {"./data/pretrain": "pt", "./data/sft": "sft", "./data/reward": "pairs", "data/grpo": "grpo"}


def arguments_of(words: list[str]) -> list[str]:
    """What stands behind the script."""
    return words[next(number for number, word in enumerate(words) if word.endswith(".py")) + 1 :]


@pytest.fixture(scope="module")
def questions(tiny_data: Path) -> Path:
    """Records as MedicalGPT's GRPO has them."""
    folder = tiny_data / "grpo"
    folder.mkdir(exist_ok=True)
    records = [{"question": f"What is {a} plus 3?", "answer": f"{a} + 3 = {a + 3}\n#### {a + 3}"} for a in range(16)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.fixture(scope="module")
def run_eight(run: Callable, tiny_model: Path, tiny_data: Path, questions: Path, workspace: Path) -> Callable:
    """Run one of the eight, unchanged but for names of models, paths and steps; each once. Its output folder."""

    @functools.cache
    def model_of(model_type: str) -> Path:
        return tiny_model if model_type == "llama" else tiny_checkpoint(model_type, workspace / "eight" / model_type)

    @functools.cache
    def once(name: str, model_type: str) -> Path:
        folder = workspace / "eight" / f"of-{model_type}" / name
        after = EIGHT[name]
        words = with_steps(arguments_of(after))
        for number, (flag, value) in enumerate(pairwise(words)):
            if flag in ("--model_name_or_path", "--sft_model_path", "--teacher_model_name_or_path"):
                words[number + 1] = str(model_of(model_type))
            elif flag == "--reward_model_path":
                words[number + 1] = str(once(value, model_type))
            elif flag in ("--train_file_dir", "--validation_file_dir"):
                words[number + 1] = str(tiny_data / DATA[value])
            elif flag in ("--output_dir", "--cache_dir"):
                words[number + 1] = str(folder if flag == "--output_dir" else workspace / "hub")
        script = next(word for word in after if word.endswith(".py"))
        run(script, *words, warm=True).check()
        return folder

    return once


def with_steps(words: list[str]) -> list[str]:
    """Two steps, and drawn answers of 16 tokens, which make these as short."""
    words = [*words, *([] if "--max_steps" in words else ["--max_steps", ""])]
    words[words.index("--max_steps") + 1] = "2"
    for name in {"--max_completion_length", "--max_new_tokens"} & {*words}:
        words[words.index(name) + 1] = "16"
    return words


@pytest.mark.slow  # quickly: each is parsed and checked by the tests of pages, and tests/matrix trains every stage
@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("name", EIGHT)
def test_the_eight_commands_train(name: str, model_type: str, run_eight: Callable) -> None:
    folder = run_eight(name, model_type)
    manifest = json.loads((folder / "hftune.json").read_text())
    assert manifest["status"] == "complete"
    state = json.loads((folder / "trainer_state.json").read_text())
    assert state["global_step"] == 2
    assert (folder / "adapter_model.safetensors").is_file() == ("--use_peft" in EIGHT[name])
    if "orpo" in name:
        assert manifest["arguments"]["training"]["loss_type"] == ["orpo"]
