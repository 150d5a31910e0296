"""What was lost or told once, by the commands that a user types: each attempt is a command line and what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.conftest import NETGUARD, ROOT, without_launcher
from tests.unit.merging.models import make_adapter

pytestmark = pytest.mark.slow  # each starts one to three processes that import torch
TOKEN = "hf_" + "aB3" * 11
CHAT = [{"role": "user", "content": "What is red?"}, {"role": "assistant", "content": "A colour."}]


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path) -> Path:
    """A folder with a model of its own (`M`), data (`S`) and a thesis."""
    shutil.copytree(tiny_model, tmp_path / "M")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("x")
    write_data(tmp_path, [{"messages": CHAT}] * 4)
    return tmp_path


def write_data(home: Path, records: list[Any]) -> None:
    (home / "S").mkdir(exist_ok=True)
    (home / "S" / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def environment(home: Path) -> dict[str, str]:
    search = [str(NETGUARD), os.environ.get("PYTHONPATH", ""), str(ROOT)]
    return without_launcher(os.environ) | {
        "PYTHONPATH": os.pathsep.join(filter(None, search)),
        "HFTUNE_CACHE": str(home / "cache"),
        "HFTUNE_NETGUARD_LOG": str(home / "netguard.log"),
        "CUDA_VISIBLE_DEVICES": "",
    }


def start(home: Path, *words: str) -> subprocess.Popen[str]:
    """A script of hftune's or its command, by an interpreter that does not look into the working folder itself."""
    command = [str(ROOT / words[0]), *words[1:]] if words[0].endswith(".py") else ["-m", "hftune.cli", *words]
    return subprocess.Popen(
        [sys.executable, "-P", *command],
        cwd=home,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def typed(home: Path, *words: str) -> tuple[int, str]:
    process = start(home, *words)
    try:
        said, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    return process.returncode, said


def sft(home: Path, *flags: str) -> tuple[int, str]:
    words = ["--model_name_or_path", "M", "--train_file_dir", "S", "--output_dir", "O", "--report_to", "none"]
    return typed(home, "run_sft.py", *words, "--use_cpu", "True", *flags)


def refused(result: tuple[int, str]) -> str:
    code, said = result
    assert code == 2 and "Traceback" not in said, said[-3000:]
    return said


@pytest.mark.parametrize("pair", range(4))
def test_two_merges_into_one_folder(home: Path, pair: int) -> None:
    """What is there at the end is one of the two, and its manifest is that one's."""
    flags = ["--base_model_name_or_path", "M", "--overwrite_output_dir", "True", "--verify", "false"]
    for seed, name in enumerate(("first", "second")):
        torch.manual_seed(seed)
        make_adapter(home / "M", home / name, target_modules=["q_proj", "v_proj"])
    both = []
    for name in ("first", "second"):
        both.append(start(home, "merge_peft_adapter.py", "--peft_model_path", name, "--output_dir", "O", *flags))
        time.sleep(0.2 * pair)
    ended = [(process.communicate(timeout=240)[0], process.returncode) for process in both]
    assert {code for _, code in ended} <= {0, 2} and not any("Traceback" in said for said, _ in ended), ended
    manifest = json.loads((home / "O" / "hftune.json").read_text())
    named = [Path(parent["folder"]).name for parent in manifest["parents"]]
    assert manifest["status"] == "complete" and len(named) == 1
    model = AutoModelForCausalLM.from_pretrained(home / "M")
    expected = PeftModel.from_pretrained(model, home / named[0]).merge_and_unload().state_dict()
    found = load_file(home / "O" / "model.safetensors")
    changed = "model.layers.0.self_attn.q_proj.weight"
    assert torch.allclose(found[changed].float(), expected[changed].float(), atol=1e-5)


# --- damage is found --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0.3, 0.5, 0.7, "cut"])
def test_a_damaged_tokenised_folder_is_not_trained_on(home: Path, place: float | str) -> None:
    write_data(home, [{"messages": CHAT}] * 600)
    flags = ["--model_name_or_path", "M", "--train_file_dir", "S", "--output_dir", "T", "--use_cpu", "True"]
    code, said = typed(home, "tokenize", "run_sft", *flags)
    assert code == 0, said
    file = max(home.joinpath("T").rglob("*.arrow"), key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    if isinstance(place, float):
        content[int(place * len(content))] ^= 4
    file.write_bytes(content if isinstance(place, float) else content[: len(content) // 2])
    words = ["--model_name_or_path", "M", "--tokenized_dir", "T", "--output_dir", "O", "--use_cpu", "True"]
    refused(typed(home, "run_sft.py", *words, "--max_steps", "1", "--report_to", "none"))


# --- nothing told -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--hub_token", "--hub-token", "--push_to_hub_token"])
def test_a_run_keeps_no_token(home: Path, flag: str) -> None:
    code, said = sft(
        home, "--max_steps", "1", "--save_strategy", "steps", "--save_steps", "1", flag, TOKEN, flag, TOKEN
    )
    assert code == 0, said
    kept = [file for file in home.rglob("*") if file.is_file() and TOKEN.encode() in file.read_bytes()]
    assert not kept and TOKEN not in said
