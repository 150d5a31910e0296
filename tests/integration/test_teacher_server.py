"""A student of `hftune serve` learns what it learns of the same teacher itself, in any number of processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hftune.cli import dispatch
from tests.conftest import NETGUARD, ROOT

KEY = "key-of-the-teacher-0123456789"


@pytest.fixture
def served(tiny_teacher: Path, tmp_path: Path, netguard_log: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    log = tmp_path / "serve.log"
    paths = [str(NETGUARD), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HFTUNE_API_KEY": KEY}
    environment["HFTUNE_NETGUARD_LOG"] = str(netguard_log)
    command = [sys.executable, "-P", "-m", "hftune.cli", "serve", str(tiny_teacher), "--port", "0", "--use_cpu", "True"]
    with log.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, text=True)
    try:
        for _ in range(1200):
            found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
            if found or process.poll() is not None:
                break
            time.sleep(0.1)
        assert found, log.read_text()
        yield found[0], process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_student_learns_from_a_server_as_from_the_teacher(
    run: Callable,
    tiny_model: Path,
    tiny_teacher: Path,
    tiny_data: Path,
    tmp_path: Path,
    served: tuple[str, subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HFTUNE_TEACHER_API_KEY", KEY)
    url, process = served
    given = ["--model_name_or_path", tiny_model, "--train_file_dir", tiny_data / "sft", "--max_length", 64, "--use_cpu"]
    words = [str(word) for word in given]
    stored = str(tmp_path / "targets")
    source = ["--teacher_model_name_or_path", str(tiny_teacher)]
    dispatch(["teach", *words, *source, "--top_k", "5", "--output_dir", stored])
    server = ["--teacher_server_url", url, "--teacher_top_k", "5"]
    again = str(tmp_path / "again")
    dispatch(["teach", *words, *server, "--output_dir", again])
    words += ["--max_steps", "3", "--logging_steps", "1", "--beta", "0.5", "--learning_rate", "1e-3"]
    words += ["--gradient_accumulation_steps", "2", "--save_strategy", "no"]

    def losses(name: str, *more: str, processes: int = 1) -> list[float]:
        folder = tmp_path / name
        batch = ("--per_device_train_batch_size", str(4 // processes), "--output_dir", str(folder))
        launcher = {"launcher": f"torchrun --nproc_per_node {processes}"} if processes > 1 else {"warm": True}
        run("run_distill.py", *words, *batch, *more, **launcher).check()
        text = (folder / "hftune.json").read_text()
        assert KEY not in text
        history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
        if server[0] in more:
            assert all(0 <= entry["teacher_lost_mass"] < 1 for entry in history if "loss" in entry)
            assert json.loads(text)["teachers"] == [{"name": url.removeprefix("http://"), "fingerprint": None}]
        return [entry["loss"] for entry in history if "loss" in entry]

    offline = ("--distill_mode", "offline")
    wanted = losses("stored", *offline, "--teacher_targets", stored)
    assert len(wanted) == 3
    for file in sorted(Path(stored).glob("targets-*.safetensors")):
        mine, theirs = load_file(file), load_file(Path(again) / file.name)
        torch.testing.assert_close(theirs["log_probs"], mine["log_probs"], rtol=0, atol=1e-5)
        assert (theirs["ids"] == mine["ids"]).float().mean() > 0.95  # near ties may change places
    alone = losses("alone", *offline, *server)
    assert alone == pytest.approx(wanted, abs=1e-5)
    assert losses("two", *offline, *server, processes=2) == pytest.approx(alone, abs=1e-4)
    drawn = ("--max_completion_length", "8")
    # With all of the vocabulary: the same as the teacher itself, on the student's own answers.
    own = losses("drawn", *drawn, *server[:2], "--teacher_top_k", "100000")
    assert own == pytest.approx(losses("loaded", *drawn, *source), abs=1e-5)

    process.kill()
    process.wait()
    gone = run("run_distill.py", *words, *offline, *server, "--output_dir", str(tmp_path / "gone"), warm=True)
    assert gone.code == 2 and "does not answer" in gone.output and "Traceback" not in gone.output
