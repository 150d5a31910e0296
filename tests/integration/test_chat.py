"""`hftune chat` as a person uses it, at a pseudo-terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import NETGUARD, ROOT, without_launcher
from tests.faults.at_terminal import AtTerminal
from tests.speaking import speaking_models

CHAT = [sys.executable, "-m", "hftune.cli", "chat"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return speaking_models(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def environment(workspace: Path, netguard_log: Path) -> dict[str, str]:
    search = os.pathsep.join(filter(None, [str(NETGUARD), str(ROOT), os.environ.get("PYTHONPATH")]))
    own = {"HFTUNE_CACHE": str(workspace / "cache"), "HF_HOME": str(workspace / "hf"), "PYTHONPATH": search}
    own |= {"HFTUNE_NETGUARD_LOG": str(netguard_log), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "160"}
    return without_launcher(os.environ) | own


@pytest.mark.slow
def test_a_conversation_at_a_terminal(models: dict[str, Path], environment: dict[str, str], tmp_path: Path) -> None:
    """Thoughts shown, a record saved, Ctrl-C in an answer and at the prompt."""
    file = tmp_path / "mine.jsonl"
    words = [*CHAT, str(models["thinks"]), "--seed", "1"]
    with AtTerminal(words, ROOT, environment) as terminal:

        def says(text: str, wanted: str | Callable[[str], bool], seconds: float = 120) -> None:
            before = len(terminal.output)
            os.write(terminal.master, text.encode())
            fits = wanted if callable(wanted) else lambda said: wanted in said and said.endswith("> ")
            assert terminal.wait_until(lambda: fits(terminal.output[before:]), seconds), terminal.output[-2000:]

        assert terminal.wait_until(lambda: terminal.output.endswith("> "), 300), terminal.output[-2000:]
        says("What is 2+3?\n", "Two and three.")
        says("Sure?\n", "Five.")
        says("/sav\n", "there is no /sav")
        says(f"/save {file}\n", "has 1 record]")
        assert [one["content"] for one in json.loads(file.read_text())["messages"]][1::2] == ["Five.", "Five."]
        terminal.ctrl_c()
        assert terminal.wait() == 130, "as every tool of hftune's"
