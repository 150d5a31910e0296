"""`hftune serve` as OpenAI's own client library sees it, in a process of its own, until Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from hftune.cli import dispatch
from hftune.constants import INTERRUPTED_EXIT_CODE
from tests.conftest import NETGUARD, ROOT
from tests.speaking import speaking_models

KEY = "key-of-the-test-0123456789"
ASKED: list[Any] = [{"role": "user", "content": "What is 2 plus 3?"}]
_PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "add", "description": "d", "parameters": _PARAMETERS}}]


@dataclass
class Started:
    """A server that was started, and how to ask it."""

    process: subprocess.Popen[str]
    log: Path
    port: int
    client: Any

    def chat(self, model: str = "base", messages: list[Any] = ASKED, **more: Any) -> Any:
        return self.client.chat.completions.create(model=model, messages=messages, **{"temperature": 0, **more})


@pytest.fixture(scope="module")
def folders(workspace: Path) -> dict[str, Path]:
    return speaking_models(workspace / "speaking")


@pytest.fixture(scope="module")
def server(folders: dict[str, Path], workspace: Path, netguard_log: Path) -> Iterator[Started]:
    """A base, two adapters and a reward model behind a key."""
    log = workspace / "serve.log"
    paths = [str(NETGUARD), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "HFTUNE_NETGUARD_LOG": str(netguard_log),
        "HFTUNE_API_KEY": KEY,
    }
    command = [sys.executable, "-P", "-m", "hftune.cli", "serve", str(folders["base"]), "--port", "0"]
    for name in ("calls", "thinks"):
        command += ["--adapter", f"{name}={folders[name]}"]
    command += ["--reward_model", str(folders["judge"]), "--use_cpu", "True"]
    with log.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, text=True)
    try:
        for _ in range(1200):
            found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", log.read_text())
            if found or process.poll() is not None:
                break
            time.sleep(0.1)
        assert found, log.read_text()
        port = int(found[1])
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0, timeout=60)
        yield Started(process, log, port, client)
    finally:
        process.kill()
        process.wait()


def test_an_answer_is_what_hftune_ask_says(server: Started, folders: dict[str, Path], tmp_path: Path) -> None:
    assert [model.id for model in server.client.models.list().data] == ["base", "calls", "thinks", "judge"]
    said = server.chat(max_tokens=12)
    flags = ["--questions", ASKED[0]["content"], "--max_new_tokens", "12", "--output_dir", str(tmp_path)]
    dispatch(["ask", "--models", str(folders["base"]), *flags])
    (answers,) = json.loads((tmp_path / "answers.json").read_text())["answers"].values()
    assert [said.choices[0].message.content.strip()] == answers and answers[0]
    assert said.choices[0].finish_reason == "length" and said.model == "base"
    assert said.usage.completion_tokens == 12 and said.usage.total_tokens == said.usage.prompt_tokens + 12


def test_a_stream_says_the_same(server: Started) -> None:
    whole = server.chat(max_tokens=30)
    stream = [*server.chat(max_tokens=30, stream=True, stream_options={"include_usage": True})]
    parts = [event.choices[0] for event in stream if event.choices]
    assert "".join(part.delta.content or "" for part in parts) == whole.choices[0].message.content
    assert len(parts) > 5 and parts[0].delta.role == "assistant" and parts[-1].finish_reason == "length"
    assert stream[-1].usage == whole.usage


def test_calls_and_thoughts_of_two_adapters(server: Started) -> None:
    called = server.chat("calls", tools=TOOLS).choices[0]
    assert called.finish_reason == "tool_calls" and called.message.content is None
    (call,) = called.message.tool_calls
    assert call.function.name == "add" and json.loads(call.function.arguments) == {"a": 2, "b": 3}
    result = {"role": "tool", "tool_call_id": call.id, "content": "5"}
    after: list[Any] = [*ASKED, called.message.model_dump(exclude_none=True), result]
    thought = server.chat("thinks", after, tools=TOOLS).choices[0]
    assert thought.finish_reason == "stop" and thought.message.content == "Five."
    assert thought.message.reasoning_content == "Two and three."
    streamed = [event.choices[0].delta for event in server.chat("calls", tools=TOOLS, stream=True)]
    (made,) = [delta.tool_calls[0] for delta in streamed if delta.tool_calls]
    assert (made.index, made.function.name) == (0, "add")
    streamed = [event.choices[0].delta for event in server.chat("thinks", stream=True)]
    reasons = "".join(getattr(delta, "reasoning_content", None) or "" for delta in streamed)
    assert reasons.strip() == "Two and three."
    assert "".join(delta.content or "" for delta in streamed) == "Five."


def test_what_cannot_be_answered_is_refused_as_openai_refuses(server: Started) -> None:
    with pytest.raises(openai.NotFoundError) as found:
        server.chat("nobody")
    assert found.value.code == "model_not_found"
    long = [{"role": "user", "content": "a b " * 3000}]
    for more in ({"messages": long}, {"max_tokens": 5000}):
        with pytest.raises(openai.BadRequestError) as error:
            server.chat(**more)
        assert error.value.code == "context_length_exceeded" and "2048 tokens" in error.value.message
    with pytest.raises(openai.BadRequestError, match="enable_thinkin; it reads enable_thinking"):
        server.chat(extra_body={"chat_template_kwargs": {"enable_thinkin": True}})
    with pytest.raises(openai.BadRequestError, match="logit_bias is not supported"):
        server.chat(logit_bias={"5": 1})
    with pytest.raises(openai.AuthenticationError):
        server.client.with_options(api_key="another").models.list()


def raw(server: Started, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    """The status and the body of a request that no client library would send."""
    given = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", body, given)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_requests_that_no_client_would_send(server: Started) -> None:
    path, before = "/v1/chat/completions", server.log.read_text()
    good = json.dumps({"model": "thinks", "messages": ASKED}).encode()
    assert raw(server, path, good)[0] == 200
    for body, status in ((b'{"model": ', 400), (b"[]", 400), (b"[" * 100_000, 400), (b"x" * (9 << 20), 413)):
        code, said = raw(server, path, body)
        assert code == status and said["error"]["type"] == "invalid_request_error"
    # What a page in a browser could send, and what it could make this machine's name lead to.
    assert raw(server, path, good, **{"Content-Type": "text/plain"})[0] == 415
    assert raw(server, path, good, Host="evil.example")[0] == 403
    assert raw(server, "/nowhere", good)[0] == 404
    assert raw(server, path, good, Authorization="")[0] == 401
    evil = "\x1b]0;evil\x07\nINFO all is well"
    code, said = raw(server, path, json.dumps({"model": evil, "messages": ASKED}).encode())
    assert code == 404 and "all is well" in said["error"]["message"]
    raw(server, path, json.dumps({evil: 1, "model": "base", "messages": [{"role": evil, "content": evil}]}).encode())
    written = server.log.read_text().removeprefix(before)
    assert "\x1b" not in written and "all is well" not in written and KEY not in server.log.read_text()


def test_scores_of_the_reward_model(server: Started, folders: dict[str, Path], tmp_path: Path) -> None:
    talk = [*ASKED, {"role": "assistant", "content": "5"}]
    said = server.client.post("/pooling", body={"model": "judge", "messages": talk}, cast_to=object)
    file, scored = tmp_path / "talk.jsonl", tmp_path / "scored.jsonl"
    file.write_text(json.dumps({"messages": talk}))
    dispatch(["score", str(file), "--model", str(folders["judge"]), "--output", str(scored)])
    score = json.loads(scored.read_text())["score"]
    assert said["data"][0]["data"] == [pytest.approx(score)] and said["data"][0]["score"] == pytest.approx(score)
    with pytest.raises(openai.BadRequestError, match="last message"):
        server.client.post("/pooling", body={"model": "judge", "messages": ASKED}, cast_to=object)


def test_eight_at_once_are_answered_as_each_alone(server: Started) -> None:
    models = ["base", "thinks", "base", "calls", "base", "base", "base", "base"]
    asked = [
        [{"role": "user", "content": f"What is {number} plus {number}? {'Say why. ' * number}"}] for number in range(8)
    ]

    def answer(number: int) -> Any:
        return (
            server.chat(models[number], asked[number], max_tokens=16)
            .choices[0]
            .message.model_dump(exclude={"tool_calls"})
        )

    alone = [answer(number) for number in range(8)]
    assert len({json.dumps(one) for one in alone}) > 5, "the answers differ"
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(answer, range(8))] == alone


def test_a_seed_repeats_and_stops_end(server: Started) -> None:
    sampled = {"temperature": 1.0, "max_tokens": 16, "n": 3}
    first, again, other = (server.chat(seed=seed, **sampled).choices for seed in (7, 7, 8))
    texts = [[choice.message.content for choice in choices] for choices in (first, again, other)]
    assert texts[0] == texts[1] != texts[2] and len({*texts[0]}) == 3
    whole = server.chat(max_tokens=30).choices[0].message.content
    stopped = server.chat(max_tokens=30, stop=[whole[8:11]]).choices[0]
    assert stopped.message.content == whole[: whole.index(whole[8:11])] and stopped.finish_reason == "stop"


def test_ctrl_c_ends_streams_and_frees_the_port(server: Started) -> None:
    """The last: the server ends."""
    events = iter(server.chat(max_tokens=2000, stream=True, temperature=1.5, seed=1, n=8))
    next(events)
    server.process.send_signal(signal.SIGINT)
    with pytest.raises(openai.APIError, match="stopping"):
        for event in events:
            assert event.choices
    assert server.process.wait(timeout=60) == INTERRUPTED_EXIT_CODE
    with socket.socket() as probe:
        # As servers do: connections that were closed linger for a minute.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", server.port))
    written = server.log.read_text()
    assert "Traceback" not in written and written.rstrip().endswith("stopped; nothing is left half written")
