"""`hftune evaluate` on made-up tasks of the usual kinds, against lm-eval's own command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hftune import child_processes

HERE = Path(__file__).parents[1] / "lm_eval_tasks"
# The command without 100,000 bootstrap samples of each figure, which take minutes and change none.
_COMMAND = """
import functools, lm_eval
lm_eval.simple_evaluate = functools.partial(lm_eval.simple_evaluate, bootstrap_iters=0)
from lm_eval.__main__ import cli_evaluate
cli_evaluate()
"""
TASKS = [f"madeup_{kind}" for kind in ("choices", "words", "texts", "sums", "yes_no")]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks"
    folder.mkdir()
    for file in HERE.iterdir():
        (folder / file.name).write_text(file.read_text().replace("FOLDER", str(folder)))
    return folder


def numbers(value: Any) -> list[float]:
    """All numbers of nested lists, which lm-eval's command writes as texts; texts by their letters."""
    if isinstance(value, list | tuple):
        return [number for one in value for number in numbers(one)]
    text = {"True": "1", "False": "0"}.get(str(value), str(value))
    try:
        return [float(text)]
    except ValueError:
        return [float(ord(letter)) for letter in text]


@pytest.mark.slow
def test_lm_evals_own_command_says_the_same(run: Callable, tiny_model: Path, tasks: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    given = ["--tasks", ",".join(TASKS), "--include_path", str(tasks), "--batch_size", "1", "--device", "cpu"]
    given += ["--log_samples", "--output_path", str(tmp_path / "theirs"), "--model_args", f"pretrained={tiny_model}"]
    command = child_processes.python("-c", _COMMAND, "run", "--model", "hf", *given)
    alone = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    done = child_processes.run(command, capture_output=True, cwd=tmp_path, env=alone)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "theirs").rglob("results_*.json")
    wanted = json.loads(file.read_text())["results"]
    said: dict[str, list[float]] = {}
    for task in TASKS:
        (samples,) = (tmp_path / "theirs").rglob(f"samples_{task}_*.jsonl")
        lines = [json.loads(line) for line in samples.read_text().splitlines()]
        lines.sort(key=lambda line: (line["doc_id"], line["filter"]))
        said[task] = numbers([line["filtered_resps"] for line in lines])
    for name, batch, processes in (
        ("one", 1, "python"),
        ("many", 7, "python"),
        ("two", 3, "torchrun --nproc_per_node 2"),
    ):
        words = ["-m", "hftune.cli", "evaluate", str(tiny_model), "--eval_tasks", *TASKS, "--include_path", str(tasks)]
        words += ["--per_device_eval_batch_size", str(batch), "--output_dir", str(tmp_path / name), "--use_cpu"]
        run(*words, launcher=processes).check()
        found = json.loads((tmp_path / name / "evaluation.json").read_text())["models"][str(tiny_model)]
        figures = 0
        for task, theirs in wanted.items():
            for key, value in theirs.items():
                metric, _, kind = key.partition(",")
                if kind and not metric.endswith("_stderr") and isinstance(value, float):
                    ours = found[f"{task}/{metric}" if kind == "none" else f"{task}/{metric},{kind}"]
                    assert ours["value"] == pytest.approx(value, abs=1e-4, rel=1e-4), (name, task, key)
                    figures += 1
        assert figures >= 10
        lines = [json.loads(line) for line in (tmp_path / name / "records.jsonl").read_text().splitlines()]
        for task in TASKS:
            own = [line for line in lines if line["source"] == task and "responses" in line]
            own.sort(key=lambda line: (int(line["record"].split(":")[1]), line["record"].split(":")[2]))
            assert numbers([line["responses"] for line in own]) == pytest.approx(said[task], abs=1e-4), (name, task)
