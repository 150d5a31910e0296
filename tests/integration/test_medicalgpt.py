"""MedicalGPT's command lines with a tiny Qwen3.5 in the layout that is published, a vision tower included."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.table.tiny import tiny_checkpoint
from tests.unit.arguments.defaults.medicalgpt_lists import COMMANDS

STAGES = {"orpo": "dpo", "rloo": "rl", "grpo": "rl"}
"""The scripts of those that are not called as hftune's."""

DATA = {"pretrain": "pt", "sft": "sft", "reward": "pairs"}

# What the guide for MedicalGPT's users adds: its scripts have these built in (docs/from_medicalgpt.md).
ADDED = {"orpo": ["--loss_type", "orpo"], "grpo": ["--reward_funcs", "accuracy", "format"]}

FEW = ["--max_steps", "1"]
SHORT = {"rloo": ["--max_completion_length", "4"], "grpo": ["--max_completion_length", "4"]}
SHORT["distill"] = ["--max_new_tokens", "4"]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`qwen("qwen3_5")`: its folder, made once."""
    made: dict[str, Path] = {}

    def checkpoint(model_type: str) -> Path:
        if model_type not in made:
            made[model_type] = tiny_checkpoint(model_type, tmp_path_factory.mktemp(model_type))
        return made[model_type]

    return checkpoint


def renamed(command: str, model: Path, data: Path, reward: Path | None, out: Path) -> Iterator[str]:
    """The words of a command line with other names and paths."""
    words = iter(shlex.split(command))
    for word in words:
        yield word
        if word in ("--model_name_or_path", "--sft_model_path") or word == "--teacher_model_name_or_path":
            next(words)
            yield str(model)
        elif word == "--reward_model_path":
            next(words)
            yield str(reward)
        elif word in ("--train_file_dir", "--validation_file_dir"):
            folder = Path(next(words)).name
            yield str(out / folder if folder == "grpo" else data / DATA[folder])
        elif word in ("--output_dir", "--cache_dir"):
            next(words)
            yield str(out / word.strip("-"))


def write_questions(folder: Path) -> None:
    """Questions and answers as GRPO's rewards compare them."""
    folder.mkdir(parents=True)
    records = [{"question": f"What is {n} plus 1?", "answer": f"It is so.\n#### {n + 1}"} for n in range(8)]
    (folder / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def medicalgpt(run: Callable, qwen: Callable, tiny_data: Path) -> Callable[..., dict[str, Any]]:
    """`medicalgpt("sft", "qwen3_5", folder)`: run MedicalGPT's command, and return its manifest."""

    def train(name: str, model_type: str, out: Path, reward: Path | None = None) -> dict[str, Any]:
        write_questions(out / "grpo")
        words = [*renamed(COMMANDS[name], qwen(model_type), tiny_data, reward, out), *ADDED.get(name, [])]
        run(f"run_{STAGES.get(name, name)}.py", *words, *FEW, *SHORT.get(name, []), warm=True).check()
        manifest: dict[str, Any] = json.loads((out / "output_dir" / "hftune.json").read_text())
        assert manifest["status"] == "complete"
        return manifest

    return train


@pytest.mark.parametrize("name", ["pt", "sft", pytest.param("dpo", marks=pytest.mark.slow)])
def test_published_layout(name: str, medicalgpt: Callable, tmp_path: Path) -> None:
    manifest = medicalgpt(name, "qwen3_5", tmp_path)
    assert manifest["kind"] == "adapter"
    assert (tmp_path / "output_dir" / "adapter_config.json").is_file()
    if name == "pt":
        assert manifest["arguments"]["training"]["packing"], "asked for, and kept"


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_5_text", "qwen3_5_moe"])
def test_every_command(model_type: str, medicalgpt: Callable, tmp_path: Path) -> None:
    for name in ("pt", "sft", "rm", "dpo", "orpo", "rloo", "grpo", "distill"):
        manifest = medicalgpt(name, model_type, tmp_path / name, tmp_path / "rm" / "output_dir")
        assert manifest["kind"] == ("full" if name == "rloo" else "adapter")
