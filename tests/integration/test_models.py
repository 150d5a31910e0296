"""Types of models that differ most, through the real scripts; every type of transformers in the slow test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, Finished
from tests.table.data import write_data
from tests.table.models import RESULTS, STAGES, flags_of, reload
from tests.table.table import environment
from tests.table.tiny import model_types, tiny_checkpoint

# Heads of two sizes; a router that returns two tensors and layers changed in place; Mamba, experts and attention in
# layers of their own.
FEW = ("gemma4_text", "llama4_text", "nemotron_h")


@pytest.mark.parametrize("model_type", FEW)
def test_an_adapter_is_trained_and_merged(model_type: str, run: Callable[..., Finished], tmp_path: Path) -> None:
    tiny_checkpoint(model_type, tmp_path / "model")
    write_data(tmp_path / "data")
    for stage in ("sft_lora", "merge"):
        run(STAGES[stage].script, *flags_of(stage, tmp_path, tmp_path), warm=True).check()
    reload(tmp_path / "merge")


@pytest.mark.parametrize(("model_type", "stage"), [("llama4_text", "grpo"), ("nemotron", "dpo")])
def test_no_head_and_no_layout_of_others(
    model_type: str, stage: str, run: Callable[..., Finished], tmp_path: Path
) -> None:
    """TRL's fused head is not theirs; Nemotron's layers tell their attention nothing of shared prompts."""
    tiny_checkpoint(model_type, tmp_path / "model")
    write_data(tmp_path / "data")
    done = run(STAGES[stage].script, *flags_of(stage, tmp_path, tmp_path), warm=True).check()
    assert ("tell their attention nothing of shared prompts" in done.output) is (stage == "dpo")


def test_a_reward_model_that_transformers_has_no_class_for(run: Callable[..., Finished], tmp_path: Path) -> None:
    tiny_checkpoint("lfm2", tmp_path / "model")
    write_data(tmp_path / "data")
    run("run_rm.py", *flags_of("rm", tmp_path, tmp_path), warm=True).check()
    merged = ("--peft_model_path", str(tmp_path / "rm"), "--output_dir", str(tmp_path / "merged"))
    run("merge_peft_adapter.py", *merged, warm=True).check()
    assert json.loads((tmp_path / "merged/config.json").read_text())["architectures"] == [
        "Lfm2ForSequenceClassification"
    ]
    flags = flags_of("grpo", tmp_path, tmp_path)
    place = flags.index("--reward_funcs")
    flags[place : place + 2] = ["--reward_model_path", str(tmp_path / "merged")]
    run("run_rl.py", *flags, warm=True).check()


def test_a_config_without_sizes_is_refused(run: Callable[..., Finished], tmp_path: Path) -> None:
    tiny_checkpoint("blt", tmp_path / "model")
    write_data(tmp_path / "data")
    finished = run("run_sft.py", *flags_of("sft_full", tmp_path, tmp_path), warm=True)
    assert finished.code == 2 and "its config has no hidden_size" in finished.output
    assert "Traceback" not in finished.output


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_no_stage_of_any_type_ends_in_a_traceback(part: int, tmp_path: Path) -> None:
    types = model_types()[part::8]
    command = [sys.executable, "-m", "tests.table.models", "--work", str(tmp_path), "--types", ",".join(types)]
    subprocess.run(command, cwd=ROOT, env=environment(tmp_path) | {"PATH": os.environ["PATH"]}, check=True)
    results = [json.loads(line) for line in (tmp_path / RESULTS).read_text(encoding="utf-8").splitlines()]
    upstream = {one["type"] for one in results if one["stage"] == "plain" and one["outcome"] == "crashed"}
    wrong = [one for one in results if one["outcome"] in ("crashed", "time") and one["type"] not in upstream]
    assert {one["type"] for one in results} == set(types)
    assert not wrong, "\n".join(f"{one['type']} {one['stage']}: {one['why']}" for one in wrong)
