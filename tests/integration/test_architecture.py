"""docs/architecture.md: a run calls what the page says, and its examples, applied to a copy of the repository, work."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hftune.models.experts import router_shares
from tests.conftest import NETGUARD, Finished, without_launcher
from tests.documents import ROOT, blocks, patches
from tests.warm import WarmStarter

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_a_run_calls_what_the_page_says(run: Callable, tiny_model: Path, tiny_data: Path, workspace: Path) -> None:
    sys.path.insert(0, str(ROOT / "docs" / "pictures"))
    architecture = importlib.import_module("architecture")
    calls = workspace / "calls.json"
    run(
        architecture.TRACED_RUN,
        str(calls),
        *("--model_name_or_path", str(tiny_model), "--output_dir", str(workspace / "traced")),
        *("--train_file_dir", str(tiny_data / "sft"), "--validation_file_dir", str(tiny_data / "sft_eval")),
        *architecture.TRACED_FLAGS,
        warm=True,
    ).check()
    parts = architecture.from_run(json.loads(calls.read_text()))
    for name, text in parts.items():
        made = architecture.filled(PAGE, {name: text})
        assert made == PAGE, f"{name}: python docs/pictures/architecture.py --model MODEL"


@dataclass
class Copy:
    """The repository with all examples applied, and runs in it.

    Attributes:
        root: Its folder.
        outputs: Where runs write.
    """

    root: Path
    outputs: Path
    starter: WarmStarter
    environment: dict[str, str]

    def follow(self, title: str, *flags: str, name: str = "", **variables: str | Path) -> Finished:
        """The commands below a title of the page, with flags behind the last; `name` tells its output from others'."""
        section = PAGE[PAGE.index(f"\n### {title}\n") + 1 :].split("\n### ")[0]
        (shell,) = [block.text for block in blocks(section) if block.language == "sh"]
        known = {name: str(value) for name, value in variables.items()} | {"OUT": str(self.folder(title, name))}
        finished = Finished(0, "")
        for line in shell.replace("\\\n", " ").splitlines():
            words = [re.sub(r"\$(\w+)", lambda at: known[at[1]], word) for word in shlex.split(line)]
            if words[0] == "python":
                finished = self.start(words[1], *words[2:], *flags)
            else:
                subprocess.run(["bash", "-c", line], check=True, env=self.environment | known)
        return finished

    def start(self, script: str, *flags: str) -> Finished:
        """One of its scripts."""
        return Finished(*self.starter.run(script, flags, 1, self.environment, 180))

    def folder(self, title: str, name: str = "") -> Path:
        """Where the command below a title writes."""
        return self.outputs / f"{title}{name}".replace(" ", "-")

    def logs(self, title: str, name: str = "") -> list[dict[str, Any]]:
        """What its run has logged."""
        return json.loads((self.folder(title, name) / "trainer_state.json").read_text())["log_history"]

    def manifest(self, title: str) -> dict[str, Any]:
        """What its run has recorded."""
        return json.loads((self.folder(title) / "hftune.json").read_text())


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, workspace: Path, netguard_log: Path) -> Iterator[Copy]:
    root = tmp_path_factory.mktemp("copy")
    for part in ("hftune", "ds_configs", "examples/data"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    scripts = [*ROOT.glob("run_*.py"), *(ROOT / "tests").glob("*.py")]
    for file in (*scripts, ROOT / "pyproject.toml"):
        (root / file.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(file, root / file.relative_to(ROOT))
    for patch in patches(PAGE):
        subprocess.run(["git", "apply", "-"], cwd=root, input=patch, text=True, check=True)
    environment = without_launcher(os.environ) | {
        "HFTUNE_CACHE": str(workspace / "cache"),
        "HF_HOME": str(workspace / "hf"),
        "HFTUNE_NETGUARD_LOG": str(netguard_log),
        "PYTHONPATH": os.pathsep.join([str(NETGUARD), str(root)]),
        "CUDA_VISIBLE_DEVICES": "",
    }
    copy = Copy(root, tmp_path_factory.mktemp("outputs"), WarmStarter(root), environment)
    yield copy
    copy.starter.stop()


def test_a_preference_loss(copy: Copy, tiny_model: Path) -> None:
    copy.follow("A preference loss", MODEL=tiny_model).check()
    # log 2 + 2 (1 / (2 * 0.1))^2 = 0.6931 + 2 * 25
    assert copy.logs("A preference loss")[0]["loss"] == pytest.approx(50.6931, abs=1e-3)


def test_a_chat_format(copy: Copy, tiny_model: Path) -> None:
    copy.follow("A chat format", MODEL=tiny_model).check()
    assert copy.manifest("A chat format")["data"]["train"]["used"] == 1
    broken = copy.outputs / "broken.jsonl"
    broken.write_text('{"data": "no list"}\n')
    finished = copy.follow("A chat format", "--train_file_dir", str(broken), name="-broken", MODEL=tiny_model)
    assert finished.code == 2 and '"data" must be a list of turns, found str' in finished.output


def test_a_trainer_feature(copy: Copy, tiny_model: Path) -> None:
    copy.follow("A trainer feature", MODEL=tiny_model).check()
    shares = [log["padding_share"] for log in copy.logs("A trainer feature") if "loss" in log]
    assert len(shares) == 2 and all(0 < share < 1 for share in shares)
    alone = ("--per_device_train_batch_size", "1")  # nothing to be padded to
    copy.follow("A trainer feature", *alone, name="-alone", MODEL=tiny_model).check()
    assert copy.logs("A trainer feature", "-alone")[0]["padding_share"] == 0


def test_a_deepspeed_feature(copy: Copy, tiny_model: Path) -> None:
    copy.follow("A DeepSpeed feature", MODEL=tiny_model).check()
    zero = copy.manifest("A DeepSpeed feature")["deepspeed"]["zero_optimization"]
    assert zero["stage"] == 2 and zero["round_robin_gradients"] is True
    config = json.dumps({"zero_optimization": {"stage": 3, "round_robin_gradients": True}})
    finished = copy.follow("A DeepSpeed feature", "--deepspeed", config, name="-3", MODEL=tiny_model)
    assert finished.code == 2 and "only ZeRO stages 1 and 2 copy gradients in turn" in finished.output


def test_an_architecture(copy: Copy, workspace: Path) -> None:
    model = workspace / "solar_open"
    from transformers import AutoConfig

    spec = importlib.util.spec_from_file_location("architectures_of_copy", copy.root / "tests" / "architectures.py")
    assert spec is not None and spec.loader is not None
    architectures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(architectures)
    architectures.make_model(model.name, model)

    assert router_shares(AutoConfig.from_pretrained(model)) is None, "known without the example"
    copy.follow("An architecture", MODEL=model).check()


def test_a_stage(copy: Copy, tiny_model: Path) -> None:
    copy.follow("A stage", MODEL=tiny_model).check()
    manifest = copy.manifest("A stage")
    # The stage that it is based on gives defaults, and decides that rows need no padding.
    asked = manifest["arguments"]["training"]
    assert (manifest["stage"], asked["lr_scheduler_type"], asked["padding_free"]) == ("unlearn", "cosine", True)
    # Of an untrained model hardly a token is likely: there is little to unlearn, where SFT's loss is above 4.
    assert 0 < copy.logs("A stage")[0]["loss"] < 0.5
