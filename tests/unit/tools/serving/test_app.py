"""The application without a network: who may ask, what comes back, and what becomes of an answer nobody waits for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.tools.serving import app as serving
from hftune.tools.serving.app import Server
from hftune.tools.serving.arguments import ServeArguments
from hftune.tools.serving.run import server_of

KEY = "key-of-the-test-0123456789"
ASKED = [{"role": "user", "content": "What is 2 plus 3?"}]
HEADERS = {"host": "127.0.0.1:8000", "authorization": f"Bearer {KEY}", "content-type": "application/json"}


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[Server]:
    adapters = [f"{name}={folders[name]}" for name in ("calls", "thinks")]
    found = server_of(
        ServeArguments(model=str(folders["base"]), adapter=adapters, reward_model=str(folders["judge"]), api_key=KEY)
    )
    yield found
    found.queue.stop()


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        lines = self.body.decode().split("\n\n")
        assert lines.pop() == ""
        return [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]


def call(server: Server, path: str, body: Any = None, *, leave: int | None = None, **headers: str | None) -> Response:
    """What the application answers to a request.

    Args:
        leave: The client leaves after so many pieces of the response; 0: as soon as it has asked.
    """
    own = {name.replace("_", "-"): value for name, value in headers.items()}
    given = {name: value for name, value in {**HEADERS, **own}.items() if value is not None}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    scope = {
        "type": "http",
        "asgi": {"spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET" if body is None else "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "server": ("127.0.0.1", 8000),
    }
    sent: list[dict[str, Any]] = []

    async def main() -> None:
        gone = asyncio.Event()
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if not asked:
                asked = True
                if leave == 0:
                    gone.set()
                return {"type": "http.request", "body": raw, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if leave and sum(one["type"] == "http.response.body" for one in sent) == leave:
                gone.set()

        await server.app(scope, receive, send)
        if leave is not None:
            # A server and its event loop keep running until the thread has nothing more to do.
            await asyncio.to_thread(server.queue.thread.submit(str).result)

    asyncio.run(main())
    start, *pieces = sent
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return Response(start["status"], found, b"".join(piece["body"] for piece in pieces))


def chat(server: Server, model: str = "thinks", leave: int | None = None, **more: Any) -> Response:
    body = {"model": model, "messages": ASKED, "temperature": 0, **more}
    return call(server, "/v1/chat/completions", body, leave=leave)


def test_an_answer_and_its_stream(server: Server, folders: dict[str, Path]) -> None:
    said = chat(server).json["choices"][0]
    assert said["message"] == {"role": "assistant", "content": "Five.", "reasoning_content": "Two and three."}
    streamed = chat(server, stream=True, n=2, stream_options={"include_usage": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    *events, usage = streamed.events
    for index in (0, 1):
        deltas = [event["choices"][0]["delta"] for event in events if event["choices"][0]["index"] == index]
        assert "".join(delta.get("content") or "" for delta in deltas) == "Five."
        assert "".join(delta.get("reasoning_content", "") for delta in deltas).strip() == "Two and three."
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 10
    assert [event["choices"][0]["finish_reason"] for event in events].count("stop") == 2
    called = chat(server, "calls").json["choices"][0]
    assert called["finish_reason"] == "tool_calls" and called["message"]["content"] is None


def test_stops_lengths_and_models(server: Server) -> None:
    whole = chat(server, "base", max_tokens=20).json
    text = whole["choices"][0]["message"]["content"]
    assert whole["choices"][0]["finish_reason"] == "length" and whole["usage"]["completion_tokens"] == 20
    stopped = chat(server, "base", max_tokens=20, stop=[text[5:7]]).json["choices"][0]
    assert stopped["message"]["content"] == text[: text.index(text[5:7])] and stopped["finish_reason"] == "stop"
    assert [card["id"] for card in call(server, "/v1/models").json["data"]] == ["base", "calls", "thinks", "judge"]
    assert call(server, "/v1/models/calls").json["max_model_len"] == 2048
    assert call(server, "/v1/models/judge").status == 200 and call(server, "/v1/models/x").status == 404


def test_scores(server: Server) -> None:
    talk = [*ASKED, {"role": "assistant", "content": "5"}]
    for path in ("/pooling", "/v1/pooling"):
        found = call(server, path, {"model": "judge", "messages": talk})
        (said,) = found.json["data"]
        assert said["data"] == [said["score"]] and found.json["usage"]["prompt_tokens"] > 10
    other = call(server, path, {"model": "judge", "messages": [*ASKED, {"role": "assistant", "content": "No idea"}]})
    assert other.json["data"][0]["score"] != said["score"]
    assert call(server, path, {"model": "base", "messages": talk}).status == 404
    long = [*ASKED, {"role": "assistant", "content": "5 " * 3000}]
    refused = call(server, path, {"model": "judge", "messages": long})
    assert refused.json["error"]["code"] == "context_length_exceeded"


def test_who_may_ask(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"model": "thinks", "messages": ASKED}

    def status(path: str = "/v1/chat/completions", given: Any = body, **headers: str | None) -> int:
        return call(server, path, given, **headers).status

    assert status() == 200 and status(host="localhost") == 200
    assert status(authorization=None) == status(authorization=f"Bearer {KEY}x") == 401
    assert status("/v1/models", None, authorization=None) == status("/pooling", authorization=None) == 401
    assert status("/v1/models/base", None, authorization="Bearer é") == 401
    assert status("/health", None, authorization=None) == 200
    assert status(host="evil.example") == status("/v1/models", None, host="evil.example:8000") == 403
    assert status(content_type="text/plain") == status(content_type=None) == 415
    assert status(content_type="application/json; charset=utf-8") == 200
    monkeypatch.setattr(serving, "LONGEST_BODY", 100)
    assert status(given=b" " * 101) == 413
    assert status("/nowhere") == 404 and status("/v1/chat/completions", None) == 405


def test_what_is_refused_says_so(server: Server) -> None:
    assert call(server, "/v1/chat/completions", b"{").json["error"]["code"] == "invalid_json"
    unknown = chat(server, "nobody")
    assert unknown.status == 404 and unknown.json["error"]["code"] == "model_not_found"
    # Also where a stream was asked for: the status is not sent before.
    assert chat(server, stream=True, max_tokens=5000).status == 400
    assert chat(server, stream=True, chat_template_kwargs={"a": 1}).status == 400


def test_what_nobody_foresaw_is_told_to_the_log_alone(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(server.models["thinks"], "answer", broken)
    # Starlette raises it once more, for the log of the program that runs it.
    with pytest.raises(ZeroDivisionError):
        chat(server)
    (*_, last) = chat(server, stream=True).events
    assert last["error"]["code"] == "failed" and "a bug" not in last["error"]["message"]


def test_an_answer_that_nobody_waits_for_ends(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[Any, ...]] = []
    monkeypatch.setattr(serving, "get_logger", lambda: SimpleNamespace(info=lambda _, *values: said.append(values)))
    for leave, stream in ((2, True), (0, False)):
        chat(server, "base", leave=leave, stream=stream, max_tokens=2000, temperature=1.5, seed=1, n=16)
    assert [values[3] for values in said] == ["left", "left"]
    assert max(values[2] for values in said) < 2000, "of 32000"


def test_the_end_of_the_server_is_told(folders: dict[str, Path]) -> None:
    server = server_of(ServeArguments(model=str(folders["base"])))
    served = server.models["base"]
    real = served.answer

    def answer(*given: Any) -> Any:
        # As Ctrl-C does, while an answer is made.
        server.queue.stop()
        return real(*given)

    served.answer = answer  # type: ignore[method-assign]
    found = chat(server, "base", stream=True, max_tokens=1000)
    assert found.events[-1]["error"]["code"] == "stopping" and b"[DONE]" not in found.body
    assert chat(server, "base").status == 503 and call(server, "/health").status == 503
