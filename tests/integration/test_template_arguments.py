"""The arguments of a chat template through the real scripts: said once, kept, and taken by the stages after."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

THOUGHTS = [
    {"messages": [
        {"role": "user", "content": f"What is {number} + 1?"},
        {"role": "assistant", "content": f"It is {number + 1}.", "reasoning_content": f"One more than {number}."},
        {"role": "user", "content": "And one more?"},
        {"role": "assistant", "content": f"It is {number + 2}.", "reasoning_content": "Once more."},
    ]}
    for number in range(8)
]  # fmt: skip
PAIRS = [{"prompt": f"{number} + 1?", "chosen": f"{number + 1}", "rejected": "no"} for number in range(8)]


def write(file: Path, records: list[dict]) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(file)


def flags(model: Path, data: str, out: Path, *more: str) -> list[str]:
    given = {"model_name_or_path": model, "train_file_dir": data, "output_dir": out, "max_steps": 1, "max_length": 256}
    return ["--use_cpu", *(part for name, value in given.items() for part in (f"--{name}", str(value))), *more]


@pytest.fixture(scope="module")
def thoughtful(run: Callable, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A model trained with thinking off, from conversations whose first thoughts the template drops; what was said."""
    folder = tmp_path_factory.mktemp("thoughts")
    arguments = ("--chat_template", "qwen3", "--chat_template_kwargs", '{"enable_thinking": true}')
    data = write(folder / "data.jsonl", THOUGHTS)
    finished = run("run_sft.py", *flags(tiny_model, data, folder / "sft", *arguments), warm=True).check()
    return folder / "sft", finished.output


def test_conversations_with_thoughts_become_rows(thoughtful: tuple[Path, str]) -> None:
    folder, said = thoughtful
    manifest = json.loads((folder / "hftune.json").read_text())
    assert manifest["tokenizer"]["chat_template_kwargs"] == {"enable_thinking": True}
    counts = manifest["data"]["train"]
    assert (counts["rows"], counts["used"], counts["rewritten"], counts["rewritten_rows"]) == (8, 8, 8, 16)
    assert "8 of 8 records became 16 rows" in said


def test_the_next_stage_takes_them(run: Callable, thoughtful: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = thoughtful
    pairs = write(tmp_path / "pairs.jsonl", PAIRS)
    taken = run("run_dpo.py", *flags(folder, pairs, tmp_path / "dpo"), warm=True).check()
    assert "was trained with enable_thinking true" in taken.output
    manifest = json.loads((tmp_path / "dpo" / "hftune.json").read_text())
    assert manifest["tokenizer"]["chat_template_kwargs"] == {"enable_thinking": True}
