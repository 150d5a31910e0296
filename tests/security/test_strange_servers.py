"""Servers that teach, judge or answer, and mean harm: one message, no memory taken, a key shown to nobody else."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hftune.errors import ArgumentError
from hftune.inference import judging
from hftune.inference.judging import ChatServer, Judge
from hftune.inference.questions import Question, asked
from hftune.opening import json_server
from hftune.trainers.distillation.teacher_server import TeacherServer
from tests.answering import server
from tests.conftest import tiny_tokenizer
from tests.spokes import spokes

KEY = "sk-hush-of-the-test-77"
ANY: dict[str, Any] = {
    "half a character": b'{"choices": [{"message": {"content": "\\ud800"}}]}',
    "lists": b'{"choices": [' + b"[]," * 3_000_000 + b"1]}",
    **{f"choices {value!r}": {"choices": value} for value in (None, "x", {}, [], [5])},
    "no message": {"choices": [{}]},
    "an error that tells the key": (400, {"error": f"wrong key: {KEY}"}),
    "a status line without end": b"raw:HTTP/1.1 200 " + b"x" * 100_000,
    "continue, for ever": b"raw:" + b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
    "a length below 0": b"raw:HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",
    "a chunk of 2**60 bytes": b"raw:HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1000000000000000\r\nab",
    "chunks over the limit": b"raw:HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"ffff\r\n"
    + b"x" * (6 << 20),
    "packed": b"raw:HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08",
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for; the key is there for all."""
    monkeypatch.setattr(json_server.time, "sleep", lambda seconds: None)
    monkeypatch.setattr("hftune.opening.json_server.ModelServer.patience", 0.0)
    monkeypatch.setattr("hftune.trainers.distillation.teacher_server._PATIENCE", 0.0)
    for name in ("HFTUNE_TEACHER_API_KEY", "HFTUNE_JUDGE_API_KEY"):
        monkeypatch.setenv(name, KEY)


def taught(url: str) -> None:
    TeacherServer(url, "t", 3, timeout=5.0).check(tiny_tokenizer())


def judged(url: str) -> None:
    Judge(url, "t").wins([replace(asked("Q"), right="B")], [{"role": "assistant", "content": "A"}])


@pytest.mark.parametrize(("name", "asks"), spokes(ANY, [taught, judged]))
def test_whatever_is_answered(name: str, asks: Callable[[str], None]) -> None:
    found = ANY[name] if isinstance(ANY[name], tuple) else (200, ANY[name])
    with server(lambda path, body: found) as asked, pytest.raises(ArgumentError) as problem:
        asks(asked.url)
    said = str(problem.value)
    assert problem.value.fix and asked.url in said and len(said) < 2000
    assert KEY not in said and "\x1b" not in said
    assert len(asked.requests) <= 4, "it follows nobody, and asks nobody for ever"


# --- a teacher ---


def places(change: Callable[[dict[str, Any]], Any], body: dict[str, Any]) -> dict[str, Any]:
    """vLLM's answer, changed where it is about ids."""
    given = body["prompt"]
    ids = given if isinstance(given, list) else tiny_tokenizer()(given).input_ids
    said: list[Any] = [None, *({str(one): {"logprob": -1.0}, "5": {"logprob": -2.0}} for one in ids[1:])]
    choice = {"prompt_logprobs": said, "prompt_token_ids": ids}
    if isinstance(given, list):
        change(choice)
    return {"choices": [choice]}


def entry(key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda choice: choice["prompt_logprobs"][2].update({key: value})


HARMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{
        f"the id {key!r}": entry(key, {"logprob": -1.0})
        for key in ("", "-1", "+5", "５", "9" * 30, "\x1b[2J")
    },
    **{
        f"the number {value!r}": entry("6", value if isinstance(value, dict) else {"logprob": value})
        for value in (None, "x", {}, {"logprob": []}, True, 1.0, {"logprob": "-inf"})
    },
    **{
        f"places {value!r:.20}": lambda choice, value=value: choice.update(prompt_logprobs=value)
        for value in (None, 5, [], [None], [None] * 10_000, [{}] * 5)
    },
    "a number that no float holds": entry("6", {"logprob": -(10**400)}),
    "one place more": lambda choice: choice["prompt_logprobs"].append({"5": -1.0}),
    "one place fewer": lambda choice: choice["prompt_logprobs"].pop(),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_what_a_teacher_says_of_tokens(harm: Callable[[dict[str, Any]], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with server(lambda path, body: (200, places(harm, body))) as asked, pytest.raises(ArgumentError) as problem:
        taught(asked.url)
    assert problem.value.fix and "\x1b" not in str(problem.value) and len(str(problem.value)) < 2000


@pytest.mark.parametrize("logprob", [-1e308, -1000.0, -(10**30)])
def test_what_is_next_to_impossible_is_a_number(logprob: float) -> None:
    with server(lambda path, body: (200, places(entry("6", {"logprob": logprob}), body))) as asked:
        teacher = TeacherServer(asked.url, "t", 3)
        teacher.check(tiny_tokenizer())
        ((_, log_probs),) = teacher.said([[1, 2, 3]])
    assert not any(math.isnan(float(value)) for value in log_probs.reshape(-1))


# --- what answers ---


@pytest.mark.parametrize(
    "message",
    [
        *({"content": 5}, {"content": [{"type": "text"}]}, {"content": "x", "reasoning_content": ["x"]}),
        *({"content": None, "tool_calls": value} for value in (5, {"a": 1}, [5], [{"function": 5}])),
        {"content": None, "tool_calls": [{"function": {"name": 5, "arguments": "{}"}}]},
        {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": 5}}]},
    ],
    ids=lambda message: ascii(message)[:60],
)
def test_messages_that_are_none(message: dict[str, Any]) -> None:
    answer = {"choices": [{"message": {"role": "assistant", **message}}]}
    with server(lambda path, body: (200, answer)) as asked, pytest.raises(ArgumentError, match="holds no message"):
        ChatServer(asked.url, "--server_url", "t", "--server_model", "NO_KEY")(
            [Question([{"role": "user", "content": "Q"}])], max_new_tokens=8
        )


def test_a_judge_that_gives_no_verdict_is_told_of() -> None:
    said = iter(["Verdict: A", "I will not say", "", "ignore that. Verdict: C"])
    notices: list[str] = []
    judgement = lambda path, body: (200, {"choices": [{"message": {"content": next(said)}}]})  # noqa: E731
    with server(judgement) as service, pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "notice", notices.append)
        patch.setattr(judging, "_SIDE_BY_SIDE", 1)
        said_here = [{"role": "assistant", "content": "A"}] * 2
        assert Judge(service.url, "t").wins([replace(asked("Q"), right="B")] * 2, said_here) == [0.5, 0.5]
    assert notices == ["3 of 4 answers of the judge hold no verdict; each counts as a tie"]


def test_a_key_is_sent_to_the_address_that_was_given_alone() -> None:
    with server(lambda path, body: (200, {})) as other:
        moved = b"raw:HTTP/1.1 307 Moved\r\nLocation: " + other.url.encode() + b"/v1\r\nContent-Length: 0\r\n\r\n"
        for asks in (taught, judged):
            with (
                server(lambda path, body: moved and (200, moved)) as asked,
                pytest.raises(ArgumentError, match="leads to"),
            ):
                asks(asked.url)
            assert json.dumps(asked.requests).count(KEY) >= 1
        assert other.requests == []
