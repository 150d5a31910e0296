"""`/v1/completions` and log-probabilities: equal to a plain forward pass, in OpenAI's and vLLM's forms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from openai.types import Completion
from openai.types.chat import ChatCompletion
from transformers import AutoTokenizer, LlamaForCausalLM

from hftune.tools.serving import log_probs
from hftune.tools.serving.app import Server
from hftune.tools.serving.arguments import ServeArguments
from hftune.tools.serving.completions import read_completion
from hftune.tools.serving.errors import RequestError
from hftune.tools.serving.run import server_of
from tests.unit.tools.serving.test_app import call

IDS = [5, 17, 40, 8, 33, 21]


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[Server]:
    found = server_of(ServeArguments(model=str(folders["base"])))
    yield found
    found.queue.stop()


@pytest.fixture(scope="module")
def said(folders: dict[str, Path]) -> torch.Tensor:
    """(6, vocabulary) log-probabilities of what follows each token of `IDS`, and of what they are continued by."""
    model: Any = LlamaForCausalLM.from_pretrained(folders["base"])
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([IDS])).logits[0], dim=-1)


def complete(server: Server, prompt: Any = IDS, **more: Any) -> Any:
    found = call(server, "/v1/completions", {"model": "base", "prompt": prompt, "temperature": 0, **more})
    assert found.status == 200, found.body
    if not more.get("echo"):  # the first token's numbers are null, which OpenAI's types do not say
        Completion.model_validate(found.json)
    return found.json


def test_prompts_as_vllm_tells_of_them(server: Server, said: torch.Tensor) -> None:
    (choice,) = complete(server, max_tokens=1, prompt_logprobs=3, return_token_ids=True)["choices"]
    first, *rest = choice["prompt_logprobs"]
    assert first is None and choice["prompt_token_ids"] == IDS and choice["logprobs"] is None
    for place, entry in enumerate(rest):
        top = said[place].topk(3)
        own = IDS[place + 1]
        assert {*map(int, entry)} == {own, *top.indices.tolist()}
        for key, value in entry.items():
            assert value["logprob"] == pytest.approx(float(said[place, int(key)]), abs=1e-5)
            assert value["rank"] == int((said[place] > said[place, int(key)]).sum()) + 1
    assert choice["token_ids"] == [int(said[-1].argmax())] and choice["finish_reason"] == "length"
    (bare,) = complete(server, max_tokens=0, prompt_logprobs=0)["choices"]
    assert [[*map(int, entry)] for entry in bare["prompt_logprobs"][1:]] == [[one] for one in IDS[1:]]
    assert bare["text"] == ""


def test_echoes_as_openai_tells_of_them(server: Server, said: torch.Tensor, folders: dict[str, Path]) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(folders["base"])
    (choice,) = complete(server, echo=True, logprobs=2, max_tokens=2, return_tokens_as_token_ids=True)["choices"]
    told = choice["logprobs"]
    assert told["tokens"][:6] == [f"token_id:{one}" for one in IDS] and len(told["tokens"]) == 8
    assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
    assert told["token_logprobs"][1:6] == pytest.approx(
        [float(said[at, one]) for at, one in enumerate(IDS[1:])], abs=1e-5
    )
    assert told["token_logprobs"][6] == pytest.approx(float(said[-1].max()), abs=1e-5)
    assert all(2 <= len(entry) <= 3 for entry in told["top_logprobs"][1:])
    assert choice["text"].startswith(tokenizer.decode(IDS)) and told["text_offset"][:2] == [
        0,
        len(tokenizer.decode([5])),
    ]
    (answer,) = complete(server, logprobs=2, max_tokens=2)["choices"]
    assert answer["logprobs"]["token_logprobs"] == pytest.approx(told["token_logprobs"][6:], abs=1e-6)
    assert choice["text"].endswith(answer["text"]) and "token_id" not in str(answer["logprobs"]["tokens"])


def test_texts_and_several_prompts(server: Server, folders: dict[str, Path]) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(folders["base"])
    text = "What is 2 plus 3?"
    found = complete(server, [text, "Two"], max_tokens=3, n=2, return_token_ids=True, add_special_tokens=False)
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert found["choices"][0]["prompt_token_ids"] == ids
    assert found["choices"][0]["token_ids"] == found["choices"][1]["token_ids"]
    assert found["usage"]["completion_tokens"] == 12
    (alone,) = complete(server, ids, max_tokens=3)["choices"]
    assert alone["text"] == found["choices"][0]["text"]


def test_answers_of_chats(server: Server) -> None:
    body = {"model": "base", "messages": [{"role": "user", "content": "What is 2 plus 3?"}], "temperature": 0}
    body |= {"max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    found = ChatCompletion.model_validate(call(server, "/v1/chat/completions", body).json)
    told = found.choices[0].logprobs
    assert told and told.content and len(told.content) == 4
    for token in told.content:
        assert len(token.top_logprobs) == 2 and token.bytes == [*token.token.encode()]
        # Greedy: what was said is what was most likely.
        assert token.top_logprobs[0].logprob == token.logprob and token.top_logprobs[0].token == token.token
    assert call(server, "/v1/chat/completions", body | {"stream": True}).status == 400
    assert call(server, "/v1/chat/completions", body | {"logprobs": False}).status == 400


@pytest.mark.parametrize(
    ("more", "param", "says"),
    [
        ({"prompt": None}, "prompt", "found None"),
        ({"prompt": [[1, "a"]]}, "prompt", "token ids"),
        ({"prompt": [[]]}, "prompt", "token ids"),
        ({"prompt": [1, True]}, "prompt", "token ids"),
        ({"prompt": ["a"] * 300}, "prompt", "more than 256"),
        ({"logprobs": -1}, "logprobs", "from 0"),
        ({"prompt_logprobs": True}, "prompt_logprobs", "whole number"),
        ({"max_tokens": -1}, "max_tokens", "from 0"),
        ({"stream": True}, "stream", "not supported"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"messages": []}, "messages", "not known"),
        ({"echo": "yes"}, "echo", "type bool"),
    ],
)
def test_what_is_wrong_is_named(more: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(RequestError) as error:
        read_completion({"model": "m", "prompt": "a", **more})
    assert error.value.param == param and says in error.value.message


def test_what_does_not_fit_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**more: Any) -> dict[str, Any]:
        found = call(server, "/v1/completions", {"model": "base", "prompt": IDS, **more})
        assert found.status in (400, 404)
        return dict(found.json["error"])

    assert "out of vocabulary" in refused(prompt=[1, 10**6])["message"]
    assert "out of vocabulary" in refused(prompt=[-1])["message"]
    assert "is empty" in refused(prompt="", add_special_tokens=False)["message"]
    long = refused(prompt=[1] * 2040, max_tokens=10)
    assert long["code"] == "context_length_exceeded" and long["param"] == "prompt"
    assert refused(model="nobody")["code"] == "model_not_found"
    monkeypatch.setattr(log_probs, "MOST_VALUES", 12)
    assert "too many" in refused(prompt_logprobs=2, max_tokens=0)["message"]
    assert complete(server, prompt_logprobs=1, max_tokens=0)
