"""`hftune serve` before and around the server: arguments, names, what it is given, proof of prompts, its end."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from hftune.arguments.asking import ServeArguments
from hftune.arguments.stages import parse_command
from hftune.errors import ArgumentError
from hftune.inference.loading import load_talker
from hftune.logging import notices
from hftune.tools.serving import run as serving
from hftune.tools.serving.run import (
    CONVERSATIONS,
    adapters_of,
    backend_of,
    bound,
    check_prompts,
    check_serve,
    expected_prompts,
    name_of,
    run_engine,
)
from hftune.tools.serving.servers import Engine, transformers_server
from tests.answering import Answer, server


def problems(**given: Any) -> str:
    return "\n".join(str(error) for error in check_serve(ServeArguments(**given)))


@pytest.fixture(autouse=True)
def _packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_NEEDED", ("uvicorn",))


def test_adapters_by_name() -> None:
    args = parse_command(
        ServeArguments, ["--model", "m", "--adapter", "a=1", "b=2", "--port", "1", "--use_cpu", "True"]
    )
    assert adapters_of(args) == {"a": "1", "b": "2"} and (args.port, args.use_cpu) == (1, True)


@pytest.mark.parametrize(("flag", "instead"), [("reward_model", "hftune score"), ("max_waiting", "queues requests")])
def test_what_went_is_refused_by_name(flag: str, instead: str) -> None:
    with pytest.raises(ArgumentError, match=f"--{flag} was removed(.|\\n)*{instead}"):
        parse_command(ServeArguments, [f"--{flag}", "1"])


def test_what_is_wrong_with_the_arguments(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    base, judge, calls = str(folders["base"]), str(folders["judge"]), str(folders["calls"])
    monkeypatch.setattr(serving, "program", lambda name: f"/bin/{name}")
    assert problems(model=base) == problems(model=base, adapter=[f"a={calls}"], backend="vllm") == ""
    assert "no model was named" in problems()
    assert "is a reward model and says nothing" in problems(model=judge)
    assert "calls does not name an adapter and its folder" in problems(model=base, adapter=["calls"])
    assert "there is no adapter in" in problems(model=base, adapter=[f"a={base}"])
    assert "two models would be called base" in problems(model=base, adapter=[f"base={calls}"])
    assert "cannot be sent in a header" in problems(model=base, api_key="zwei Wörter")
    assert "is no name for requests" in problems(model=base, served_model_name="a@b")
    monkeypatch.setenv("HFTUNE_API_KEY", "from-the-environment")
    args = ServeArguments(model=base, backend="vllm")
    assert not [*check_serve(args)] and args.api_key == "from-the-environment"
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name))
    said = problems(model=base)
    assert "needs uvicorn" in said and "pip install 'hftune[serve]'" in said


def test_what_one_server_cannot_is_refused(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    base = str(folders["base"])
    monkeypatch.setattr(serving, "program", lambda name: f"/bin/{name}")
    monkeypatch.delenv("HFTUNE_API_KEY", raising=False)
    given: dict[str, Any] = {"host": "0.0.0.0", "api_key": "k", "adapter": [f"a={folders['calls']}"]}
    places = [problem.place for problem in check_serve(ServeArguments(model=base, max_model_len=9, **given))]
    assert places == ["--host", "--api_key", "--adapter", "--max_model_len"]
    assert "put a key into the variable HFTUNE_API_KEY" in problems(model=base, host="0.0.0.0", backend="vllm")
    assert problems(model=base, host="0.0.0.0", backend="vllm", api_key="k") == ""


def test_names_and_backends(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_of(ServeArguments(model=f"{folders['base']}/")) == "base"
    assert name_of(ServeArguments(model="owner/name")) == "owner/name"
    assert name_of(ServeArguments(model="owner/name", served_model_name="x")) == "x"
    args = ServeArguments(model=str(folders["base"]))
    monkeypatch.setattr(serving, "program", lambda name: "/bin/vllm")
    assert backend_of(args) == "transformers", "no GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert backend_of(args) == "vllm"
    monkeypatch.setattr(serving, "program", lambda name: None)
    assert backend_of(args) == "transformers"
    assert "vllm is not installed" in problems(model=args.model, backend="vllm")


# --- what transformers' server is given -------------------------------------------------------------------------------


def test_a_folder_is_found_under_its_name_with_all_that_ends_an_answer(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    args = ServeArguments(model=str(folders["base"]), chat_template_kwargs='{"enable_thinking": false}', port=81)
    engine = transformers_server(args, "me/mine", 81, tmp_path)
    words = engine.command
    assert words[words.index("serve") + 1] == "me/mine" and words[words.index("--port") + 1] == "81"
    assert words[words.index("--host") + 1] == "127.0.0.1" and words[words.index("--dtype") + 1] == "float32"
    assert json.loads(words[words.index("--chat-template-kwargs") + 1]) == {"enable_thinking": False}
    folder = tmp_path / "me" / "mine"
    assert engine.cwd == tmp_path and (folder / "model.safetensors").samefile(folders["base"] / "model.safetensors")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert GenerationConfig.from_pretrained(folder).eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert not (folder / "generation_config.json").is_symlink(), "the model's own files stay as they are"


def test_an_adapter_is_written_whole(folders: dict[str, Path], tmp_path: Path) -> None:
    args = ServeArguments(model=str(folders["calls"]))
    engine = transformers_server(args, "calls", 81, tmp_path)
    assert "--chat-template-kwargs" not in engine.command and any("is an adapter" in line for line in notices())
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        served = AutoModelForCausalLM.from_pretrained(tmp_path / "calls")(ids).logits
        torch.testing.assert_close(served, load_talker(str(folders["calls"]), args).model(ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "calls").chat_template


# --- proof ------------------------------------------------------------------------------------------------------------


def test_the_server_s_prompts_are_compared_with_training_s(folders: dict[str, Path]) -> None:
    folder = str(folders["base"])
    expected = {json.dumps(messages): tokens for messages, tokens in expected_prompts(folder, None, False)}
    more = 0

    def answer(path: str, body: Any) -> Answer:
        assert path == "/v1/chat/completions" and body["model"] == "mine"
        return 200, {"usage": {"prompt_tokens": expected[json.dumps(body["messages"])] + more}}

    assert len(expected) == len(CONVERSATIONS)
    with server(answer) as asked:
        check_prompts(f"{asked.url}/v1", "mine", folder, ServeArguments(api_key="the-key-0123"))
        assert len(asked.requests) == 3 and asked.requests[0][2]["Authorization"] == "Bearer the-key-0123"
        more = 1
        with pytest.raises(ArgumentError, match=r"a prompt of \d+ tokens where training has \d+"):
            check_prompts(f"{asked.url}/v1", "mine", folder, ServeArguments())


def test_what_the_template_is_given_counts(folders: dict[str, Path]) -> None:
    plain, off = (
        [tokens for _, tokens in expected_prompts(str(folders["base"]), given, False)]
        for given in (None, {"enable_thinking": False})
    )
    assert all(one < other for one, other in zip(plain, off, strict=True)), "an empty thought is part of the prompt"


def test_a_model_without_a_template_is_said(tiny_model: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    check_prompts("http://127.0.0.1:1/v1", "mine", str(tmp_path), ServeArguments())
    assert any("has no chat template" in line for line in notices())


# --- life -------------------------------------------------------------------------------------------------------------


class Stopped(BaseException):
    """What a signal raises in the main thread, as hftune's handlers do."""


@pytest.fixture
def signalled() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Stopped

    before = signal.signal(signal.SIGUSR2, stop)
    yield
    signal.signal(signal.SIGUSR2, before)


HEALTHY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
server.handle_request()
raise SystemExit(4)
"""


def test_what_is_served_is_proven_once_requests_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    proven: list[tuple[str, ...]] = []
    monkeypatch.setattr(serving, "_LOOK", 0.05)
    monkeypatch.setattr(serving, "check_prompts", lambda url, name, folder, args: proven.append((url, name, folder)))
    with bound("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
    engine = Engine("the engine", [sys.executable, "-c", HEALTHY, str(port)])
    with pytest.raises(ArgumentError, match="the engine ended with code 4"):
        run_engine(engine, ServeArguments(host="0.0.0.0"), port, {"mine": "folder"})
    assert proven == [(f"http://127.0.0.1:{port}/v1", "mine", "folder")]


@pytest.mark.usefixtures("signalled")
def test_an_interrupt_ends_the_server(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_PATIENCE", 0.1)  # it ignores the first request
    script, said = tmp_path / "vllm", tmp_path / "pid"
    lines = ["import os, pathlib, signal, time", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"]
    lines += [f"pathlib.Path({str(said)!r}).write_text(str(os.getpid()))", "time.sleep(60)"]
    script.write_text("\n".join([f"#!{sys.executable}", *lines]))
    script.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def interrupt() -> None:
        while not said.exists() or not said.read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGUSR2)

    threading.Thread(target=interrupt).start()
    with pytest.raises(Stopped):
        serving.serve(ServeArguments(model=str(folders["base"]), backend="vllm", port=0), [])
    with pytest.raises(ProcessLookupError):
        os.kill(int(said.read_text()), 0)


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(folders: dict[str, Path]) -> None:
    with bound("127.0.0.1", 0) as listening:
        listening.listen()
        port = listening.getsockname()[1]
        with pytest.raises(ArgumentError, match="cannot be listened at"):
            serving.serve(ServeArguments(model=str(folders["base"]), port=port), [])
