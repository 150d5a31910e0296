"""What is heard of an answer while it is generated, and how its tokens are chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaForCausalLM

from hftune.inference.generate import Answerer, Listener, sampling
from hftune.inference.loading import Talker
from tests.conftest import tiny_config, tiny_tokenizer
from tests.unit.tools.chatting.scripted import says, talker


@pytest.mark.parametrize(
    ("given", "saved", "wanted"),
    [
        ({}, {}, {"do_sample": False}),
        ({"temperature": 0.0, "top_p": 0.5}, {"do_sample": True}, {"do_sample": False}),
        ({"temperature": 1e-30}, {"do_sample": True}, {"do_sample": False}),
        ({}, {"do_sample": True, "temperature": 1e-30}, {"do_sample": False}),
        ({"temperature": 0.5}, {"top_p": 0.9, "top_k": 20}, {"temperature": 0.5, "top_p": 0.9, "top_k": 20}),
        ({}, {"do_sample": True, "temperature": 0.6}, {"temperature": 0.6, "top_p": 1.0, "top_k": 0}),
        ({"top_k": -1}, {"top_k": 20, "top_p": 0.9}, {"temperature": 1.0, "top_p": 0.9, "top_k": 0}),
        ({"min_p": 0.1}, {}, {"min_p": 0.1}),
        ({"repetition_penalty": 1.2}, {}, {"do_sample": False, "repetition_penalty": 1.2}),
    ],
)
def test_how_tokens_are_chosen(given: dict[str, Any], saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    own = GenerationConfig(**saved)
    found = sampling(own, {"temperature": None, "top_p": None} | given)
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": own.top_k or 0}
    assert found == (wanted if "do_sample" in wanted else {"do_sample": True, **neutral, **wanted})


def heard(said: str, tokens: int = 99) -> tuple[str, Listener]:
    """What is shown of a model that says this."""
    parts: list[str] = []
    one = says(talker(), said)
    listener = Listener(Answerer(one, "split", 0), parts.append)
    listener.hear([1, 2], max_new_tokens=tokens)
    assert one.model.calls[0]["num_beams"] == 1  # type: ignore[union-attr]  # a streamer hears no beams
    return "".join(parts), listener


def test_all_but_the_end_is_text() -> None:
    end = tiny_tokenizer().convert_tokens_to_ids("<|im_end|>")
    text = "What is 2 plus 3? 你好, 世界! \U0001f600 naïve\nend"
    shown, listener = heard(text)
    assert shown == text and listener.ended and listener.ids[-1] == end
    shown, listener = heard("a你", tokens=2)
    assert shown == "a" and len(listener.ids) == 2 and not listener.ended, "half a character is left out"


def test_a_model_that_was_saved_with_beams_is_heard() -> None:
    tokenizer = tiny_tokenizer()
    model = LlamaForCausalLM(tiny_config(tokenizer)).eval()
    model.generation_config.num_beams, model.generation_config.max_length = 3, 4
    one = Talker("tiny", model, tokenizer, model.generation_config, [tokenizer.eos_token_id])
    listener = Listener(Answerer(one, "split", 0), lambda text: None)
    listener.hear([5, 6, 7, 8], max_new_tokens=5, do_sample=False)
    with torch.no_grad():
        first = model(torch.tensor([[5, 6, 7, 8]])).logits[0, -1].argmax().item()
    assert listener.ids[0] == first and len(listener.ids) <= 5
