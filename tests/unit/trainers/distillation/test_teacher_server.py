"""What a teacher's server says, and what is made of answers that cannot be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hftune.errors import ArgumentError
from hftune.trainers.distillation.teacher_server import TeacherServer
from tests.answering import Answer, server
from tests.conftest import tiny_tokenizer

Change = Callable[[dict[str, Any]], None]
K = 3


def top(place: int, token: int) -> dict[int, float]:
    """What is said at a place: tokens 5, 6 and 7, in an order of their own, and the token that is there."""
    return {token: math.log(1e-3), 6: math.log(0.25), 5: math.log(0.5), 7: math.log(0.125) - place / 1000}


def vllm(body: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    ids = body["prompt"] if isinstance(body["prompt"], list) else tokenizer(body["prompt"]).input_ids
    k = body["prompt_logprobs"]
    said: list[Any] = [None]
    for place, token in enumerate(ids[1:], start=1):
        entries = {token: -1.0} if k == 0 else top(place, token)
        said.append({str(one): {"logprob": value, "rank": 1, "decoded_token": "x"} for one, value in entries.items()})
    return {"choices": [{"index": 0, "text": "", "prompt_logprobs": said}]}


def answers(change: Change = lambda choice: None, form: Any = vllm) -> Callable[[str, Any], Answer]:
    tokenizer = tiny_tokenizer()

    def answer(path: str, body: Any) -> Answer:
        if path == "/v1/models":
            return 200, {"data": [{"id": "teacher"}]}
        found = form(body, tokenizer)
        if isinstance(body["prompt"], list):
            change(found["choices"][0])
        return 200, found

    return answer


def test_the_most_likely_tokens_of_texts() -> None:
    with server(answers()) as asked:
        teacher = TeacherServer(asked.url, None, K)
        teacher.check(tiny_tokenizer())
        said = [*teacher.said([[4, 5, 6], [9, 8]])]
        sent = [body for path, body, _ in asked.requests if path == "/v1/completions"]
    assert teacher.k == K and all(body["model"] == "teacher" and "key" not in body for body in sent)
    assert [len(ids) for ids, _ in said] == [2, 1]
    np.testing.assert_array_equal(said[0][0], [[5, 6, 7]] * 2)
    np.testing.assert_allclose(np.exp(said[0][1][1]), [0.5, 0.25, 0.125 * math.exp(-0.002)], rtol=1e-6)


def test_k_is_what_the_server_gives() -> None:
    with server(answers()) as asked:
        teacher = TeacherServer(f"{asked.url}/v1", "other", 50)
        teacher.check(tiny_tokenizer())
        assert teacher.k == 4 and asked.requests[0][1]["model"] == "other"
        ((ids, log_probs),) = teacher.said([[4, 5]])
    assert ids.tolist() == [[5, 6, 7, -1]] and log_probs[0, 3] == 0, "the token itself was one of the three"


def _drop(choice: dict[str, Any]) -> None:
    choice["prompt_logprobs"].pop()


def _other(choice: dict[str, Any]) -> None:
    choice["prompt_logprobs"][1:] = [{"6": {"logprob": -1.0}}] * (len(choice["prompt_logprobs"]) - 1)


def _set(value: Any) -> Change:
    return lambda choice: choice["prompt_logprobs"][1].update({"5": value})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_drop, "tokens of"),
        (_other, "about other tokens"),
        (_set({"logprob": None}), "no prompt_logprobs as vLLM gives them (TypeError"),
        (_set({"logprob": "low"}), "no prompt_logprobs"),
        (_set({"logprob": 3.0}), "no log-probabilities"),
        (_set({"logprob": True}), "no log-probabilities"),
        (_set({"logprob": 0.0}), "sum to more than 1"),
        (lambda choice: choice["prompt_logprobs"][1].update({"the": {"logprob": -1}}), "'the' is no id"),
        (lambda choice: choice.update(prompt_logprobs=None), "no prompt_logprobs"),
        (lambda choice: choice["prompt_logprobs"].__setitem__(1, None), "no prompt_logprobs"),
        (lambda choice: choice["prompt_logprobs"].__setitem__(1, {}), "nothing is said of a token"),
    ],
)
def test_an_answer_that_cannot_be_is_one_message(change: Change, says: str) -> None:
    with server(answers(change)) as asked, pytest.raises(ArgumentError) as problem:
        TeacherServer(asked.url, "t", K).check(tiny_tokenizer())
    assert says in str(problem.value) and "cannot be used" in str(problem.value) and problem.value.fix


def test_a_server_without_prompt_logprobs_is_refused() -> None:
    form = answers(form=lambda body, tokenizer: {"choices": [{"text": "said"}]})
    with server(form) as asked, pytest.raises(ArgumentError, match="no prompt_logprobs") as problem:
        TeacherServer(asked.url, "t", K).check(tiny_tokenizer())
    assert "vllm serve" in str(problem.value.fix)


def test_another_tokenizer_is_refused() -> None:
    def other(body: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
        return vllm(body | {"prompt": [one + 1 for one in tokenizer(body["prompt"]).input_ids]}, tokenizer)

    with server(answers(form=other)) as asked, pytest.raises(ArgumentError, match="has another tokenizer"):
        TeacherServer(asked.url, "t", K).check(tiny_tokenizer())


def test_several_models_need_a_name() -> None:
    two = {"data": [{"id": "one"}, {"id": "two"}]}
    with server(lambda path, body: (200, two)) as asked, pytest.raises(ArgumentError, match="2 models: one, two"):
        TeacherServer(asked.url, None, K).check(tiny_tokenizer())


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTUNE_TEACHER_API_KEY", "key-of-the-teacher-1")
    with server(lambda path, body: (401, {})) as asked, pytest.raises(ArgumentError, match="HFTUNE_TEACHER_API_KEY"):
        TeacherServer(asked.url, "t", K).check(tiny_tokenizer())
    assert asked.requests[0][2]["Authorization"] == "Bearer key-of-the-teacher-1"
