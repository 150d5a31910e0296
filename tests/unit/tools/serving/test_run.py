"""`hftune serve` before it serves: arguments, ports, missing packages, weights held once."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.arguments.stages import parse_command
from hftune.tools.serving import run as serving
from hftune.tools.serving.answers import Served, unmarked
from hftune.tools.serving.arguments import ServeArguments
from hftune.tools.serving.entry import one_flag
from hftune.tools.serving.errors import RequestError
from hftune.tools.serving.requests import read_chat
from hftune.tools.serving.run import (
    adapters_of,
    backend_of,
    bound,
    check_serve,
    name_of,
    run_server,
    server_of,
    share_weights,
)
from hftune.tools.talking.loading import load_talker
from hftune.tools.talking.parsing import AnswerForm
from tests.conftest import tiny_tokenizer


def problems(**given: Any) -> str:
    return "\n".join(str(error) for error in check_serve(ServeArguments(**given)))


def test_a_repeated_flag_is_one() -> None:
    argv = ["--model", "m", "--adapter", "a=1", "--port", "1", "--adapter=b=2", "--adapter", "c=3", "d=4"]
    argv += ["--use_cpu", "True"]
    assert one_flag(argv, "--adapter")[-5:] == ["--adapter", "a=1", "b=2", "c=3", "d=4"]
    args = parse_command(ServeArguments, one_flag(argv, "--adapter"))
    assert adapters_of(args) == {"a": "1", "b": "2", "c": "3", "d": "4"} and (args.port, args.use_cpu) == (1, True)


def test_what_is_wrong_with_the_arguments(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    base, judge, calls = str(folders["base"]), str(folders["judge"]), str(folders["calls"])
    assert problems(model=base, adapter=[f"a={calls}"], reward_model=judge) == ""
    assert "no model was named" in problems()
    assert "is a reward model and says nothing" in problems(model=judge)
    assert "calls does not name an adapter and its folder" in problems(model=base, adapter=["calls"])
    assert "there is no adapter in" in problems(model=base, adapter=[f"a={base}"])
    assert "two models would be called base" in problems(model=base, adapter=[f"base={calls}"])
    assert "cannot be sent in a header" in problems(model=base, api_key="zwei Wörter")
    monkeypatch.setenv("HFTUNE_API_KEY", "from-the-environment")
    args = ServeArguments(model=base)
    assert not [*check_serve(args)] and args.api_key == "from-the-environment"
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name))
    said = problems(model=base)
    assert "needs uvicorn" in said and "pip install 'hftune[serve]'" in said


def test_names_and_backends(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_of(ServeArguments(model=f"{folders['base']}/")) == "base"
    assert name_of(ServeArguments(model="owner/name")) == "owner/name"
    assert name_of(ServeArguments(model="owner/name", served_model_name="x")) == "x"
    args = ServeArguments(model=str(folders["base"]))
    monkeypatch.setattr(serving, "program", lambda name: "/bin/vllm")
    assert backend_of(args) == "transformers", "no GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert backend_of(args) == "vllm"
    assert backend_of(ServeArguments(reward_model="x")) == "transformers"
    assert "vLLM's server has one model" in problems(model=args.model, backend="vllm", reward_model="x")
    monkeypatch.setattr(serving, "program", lambda name: None)
    assert backend_of(args) == "transformers"
    assert "vllm is not installed" in problems(model=args.model, backend="vllm")


def test_an_adapter_holds_only_what_it_changes(folders: dict[str, Path]) -> None:
    args = ServeArguments()
    base, calls = (load_talker(str(folders[name]), args) for name in ("base", "calls"))
    before = {name: value.clone() for name, value in calls.model.state_dict().items()}
    share_weights(calls, base)
    theirs, own = dict(base.model.named_parameters()), dict(calls.model.named_parameters())
    shared = {name for name in own if own[name] is theirs[name]}
    assert {name.rsplit(".", 2)[-2] for name in own.keys() - shared} == {"o_proj", "down_proj", "lm_head"}
    assert "model.embed_tokens.weight" in shared
    assert all(torch.equal(value, before[name]) for name, value in calls.model.state_dict().items())


def served(folders: dict[str, Path], **own: Any) -> Served:
    talker = load_talker(str(folders["base"]), ServeArguments())
    for name, value in own.items():
        setattr(talker.sampling, name, value)
    return Served("base", talker, "split", 100)


def test_settings_are_the_models_own_under_those_of_the_request(folders: dict[str, Path]) -> None:
    def settings(one: Served, **more: Any) -> Any:
        request = read_chat({"model": "base", "messages": [{"role": "user", "content": "Hi"}], **more})
        return SimpleNamespace(**one.settings(request, one.prompt(request)))

    greedy, sampling = served(folders), served(folders, do_sample=True, temperature=0.6, top_k=20)
    assert not settings(greedy).do_sample and settings(greedy, temperature=0.5).do_sample
    assert settings(greedy, top_p=0.9).do_sample and settings(greedy, top_p=0.9).top_p == 0.9
    assert not settings(greedy, repetition_penalty=1.2).do_sample
    assert settings(greedy, repetition_penalty=1.2).repetition_penalty == 1.2
    own = settings(sampling, top_p=0.5)
    assert (own.do_sample, own.temperature, own.top_k, own.top_p) == (True, 0.6, 20, 0.5)
    assert not settings(sampling, temperature=0).do_sample and not hasattr(settings(sampling, temperature=0), "top_k")
    prompt = len(greedy.prompt(read_chat({"model": "base", "messages": [{"role": "user", "content": "Hi"}]})).ids)
    assert settings(greedy).max_new_tokens == 100 - prompt and settings(greedy, max_tokens=3).max_new_tokens == 3
    with pytest.raises(RequestError, match="you requested 101 tokens"):
        settings(greedy, max_tokens=101 - prompt)


def test_a_border_in_a_question_stays_text_and_a_switch_reaches_the_template(folders: dict[str, Path]) -> None:
    one = served(folders)

    def prompt(content: str, **more: Any) -> list[int]:
        body = {"model": "base", "messages": [{"role": "user", "content": content}], **more}
        return one.prompt(read_chat(body)).ids

    ends = one.talker.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert prompt("a<|im_end|>b").count(ends) == prompt("ab").count(ends) == 1
    off = one.prompt(read_chat({"model": "base", "messages": [{"role": "user", "content": "a"}]} | THINKING_OFF))
    assert off.text.endswith("<think>\n\n</think>\n\n")
    with pytest.raises(RequestError, match="maximum context length is 100 tokens"):
        prompt("long " * 200)


THINKING_OFF: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}


def test_special_tokens_are_text_only_where_they_mark_a_part() -> None:
    tokenizer: Any = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|call|>", "<|other|>"]})
    call, other = tokenizer.convert_tokens_to_ids(["<|call|>", "<|other|>"])
    assert {call, other} <= unmarked(tokenizer, AnswerForm(None))
    form = AnswerForm(None)
    form.template = {"fields": {"tool_calls": {"open_pattern": r"\s*<\|call\|>", "content": "json"}}}
    found = unmarked(tokenizer, form)
    assert other in found and call not in found


class Stopped(BaseException):
    """What a signal raises in the main thread, as hftune's handlers do."""


@pytest.fixture
def signalled() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Stopped

    before = signal.signal(signal.SIGUSR2, stop)
    yield
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.usefixtures("signalled")
def test_an_interrupt_ends_streams_and_frees_the_port(folders: dict[str, Path]) -> None:
    server, listening, read = server_of(ServeArguments(model=str(folders["base"]))), bound("127.0.0.1", 0), []
    port = listening.getsockname()[1]
    listening.listen()

    def ask() -> None:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        body = {"model": "base", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "n": 16}
        try:
            client.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = client.getresponse()
            read.append(response.readline())
        finally:
            os.kill(os.getpid(), signal.SIGUSR2)
        read.append(response.read())

    thread = threading.Thread(target=ask)
    thread.start()
    with pytest.raises(Stopped):
        run_server(server, listening)
    thread.join()
    assert read[0].startswith(b"data: {") and b'"code": "stopping"' in read[1] and b"[DONE]" not in read[1]
    bound("127.0.0.1", port).close()


@pytest.mark.usefixtures("signalled")
def test_an_interrupt_ends_vllm_too(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, said = tmp_path / "vllm", tmp_path / "pid"
    lines = ["import os, pathlib, signal, time", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"]
    lines += [f"pathlib.Path({str(said)!r}).write_text(str(os.getpid()))", "time.sleep(60)"]
    script.write_text("\n".join([f"#!{sys.executable}", *lines]))
    script.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def interrupt() -> None:
        while not said.exists() or not said.read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGUSR2)

    threading.Thread(target=interrupt).start()
    with pytest.raises(Stopped):
        serving.serve(ServeArguments(model=str(folders["base"]), backend="vllm"))
    with pytest.raises(ProcessLookupError):
        os.kill(int(said.read_text()), 0)
