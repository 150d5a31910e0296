"""`hftune serve` with transformers' own server, as OpenAI's client library sees it, in a process, until Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from hftune.cli import dispatch
from hftune.constants import INTERRUPTED_EXIT_CODE
from tests.conftest import NETGUARD, ROOT
from tests.speaking import speaking_models

pytest.importorskip("fastapi")

ASKED: list[Any] = [{"role": "user", "content": "What is 2 plus 3?"}]


@dataclass
class Started:
    """A server that was started, and how to ask it."""

    process: subprocess.Popen[str]
    log: Path
    port: int
    client: Any

    def chat(self, model: str, messages: list[Any] = ASKED, **more: Any) -> Any:
        return self.client.chat.completions.create(model=model, messages=messages, **{"temperature": 0, **more})


@pytest.fixture(scope="module")
def folders(workspace: Path) -> dict[str, Path]:
    return speaking_models(workspace / "speaking")


@contextmanager
def served(folder: Path, log: Path, netguard_log: Path) -> Iterator[Started]:
    paths = [str(NETGUARD), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "HFTUNE_NETGUARD_LOG": str(netguard_log),
    }
    command = [sys.executable, "-P", "-m", "hftune.cli", "serve", str(folder), "--port", "0", "--use_cpu", "True"]
    with log.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, text=True)
    try:
        for _ in range(1800):
            found = re.search(r"serving \S+ at http://127\.0\.0\.1:(\d+)/v1", log.read_text())
            if found or process.poll() is not None:
                break
            time.sleep(0.1)
        assert found, log.read_text()
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{found[1]}/v1", api_key="none", max_retries=0, timeout=60)
        yield Started(process, log, int(found[1]), client)
    finally:
        # As a user ends it: the server behind it has to end as well.
        process.send_signal(signal.SIGINT)
        process.wait()


@pytest.mark.slow
def test_a_model_answers_as_hftune_ask_says(folders: dict[str, Path], tmp_path: Path, netguard_log: Path) -> None:
    flags = ["--questions", ASKED[0]["content"], "--max_new_tokens", "12", "--output_dir", str(tmp_path)]
    dispatch(["ask", "--models", str(folders["base"]), *flags])
    ((answer,),) = json.loads((tmp_path / "answers.json").read_text())["answers"].values()
    with served(folders["base"], tmp_path / "log", netguard_log) as server:
        assert [model.id for model in server.client.models.list().data] == ["base"]
        said = server.chat("base", max_tokens=12)
        # The last token may be the beginning of a character, which `hftune ask` leaves out.
        assert said.choices[0].message.content.rstrip("\ufffd").strip() == answer != ""
        assert said.choices[0].finish_reason == "length" and said.usage.completion_tokens == 12
        parts = [event.choices[0].delta.content or "" for event in server.chat("base", max_tokens=12, stream=True)]
        assert "".join(parts).rstrip("\ufffd").strip() == answer
        with pytest.raises(openai.BadRequestError):
            server.chat("nobody")
        assert "the server's prompts have as many tokens as training's (3 conversations)" in server.log.read_text()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=60) == INTERRUPTED_EXIT_CODE
        with socket.socket() as probe:
            # As servers do: connections that were closed linger for a minute.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", server.port))
        assert "nothing is left half written" in server.log.read_text()
