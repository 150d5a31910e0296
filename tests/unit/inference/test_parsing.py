"""Answers in parts: for every template of TRL's what it writes is read back, and all else stays text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trl
from transformers import PreTrainedTokenizerBase

from hftune.data.messages import Message
from hftune.data.rendering import Renderer
from hftune.errors import DataError
from hftune.inference.parsing import AnswerForm
from tests.conftest import tiny_tokenizer
from tests.unit.data.helpers import slow_if_alike

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
# Their contents are lists of parts, pictures among them.
PICTURES = ("idefics", "smolvlm", "llava")
# Calls that are neither JSON nor tags, and marks of its own, under templates that TRL has no response template for.
UNREAD = ("lfm2_v2_training",)
OTHERS = ("muse_glimmer", "diffusion_gemma", "gptoss_training")

NAMES = sorted(file.stem for file in TEMPLATES.glob("*.jinja") if not file.stem.startswith(PICTURES + OTHERS))
ASKED: list[Message] = [{"role": "user", "content": "Hello"}]


def tool(name: str, **types: str) -> dict[str, Any]:
    properties = {key: {"type": kind, "description": key} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = [tool("get_weather", city="string", days="integer"), tool("sum2", a="integer")]
CALL = call("get_weather", city='Paris, "X" {}', days=7)
THOUGHT = {"reasoning_content": "Let me.\n\nThink", "thinking": "Let me.\n\nThink"}
SAID: dict[str, Message] = {
    "plain": {"content": "Good\n\n day."},
    "thought": {"content": "Good\n\n day.", **THOUGHT},
    "call": {"content": "", "tool_calls": [CALL]},
    "thought and call": {"content": "", "tool_calls": [CALL], **THOUGHT},
    "two calls": {"content": "", "tool_calls": [CALL, call("sum2", a=3)]},
}


def tokenizer_with(template: str) -> PreTrainedTokenizerBase:
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token, tokenizer.eos_token = "<bos>", "<|EOS|>"
    tokenizer.chat_template = template
    return tokenizer


def read(form: AnswerForm, prompt: str, said: str, ended_by: str = "") -> Message:
    return form.message(prompt, said, TOOLS, ended_by)


def after(render: Renderer) -> str:
    """What a template writes behind an answer."""
    try:
        return render([*ASKED, {"role": "assistant", "content": "HFTUNESAID"}]).partition("HFTUNESAID")[2]
    except DataError:
        return ""


def written(render: Renderer, said: Message) -> tuple[str, str] | None:
    """The prompt and the answer as a template writes them; None where it cannot."""
    tools = TOOLS if "tool_calls" in said else None
    try:
        whole = render([*ASKED, {"role": "assistant", **said}], tools)
        prompt = render(ASKED, tools, add_generation_prompt=True)
    except DataError:
        return None
    answer = whole.removeprefix(prompt)
    # What ends the turn ends the generation.
    for end in (after(render), "<|observation|>", "<|tool_response>"):
        answer = answer.removesuffix(end)
    return (prompt, answer) if whole.startswith(prompt) else None


@pytest.mark.parametrize("name", slow_if_alike(NAMES))
def test_what_a_template_writes_is_read_back(name: str) -> None:
    render = Renderer(tokenizer_with((TEMPLATES / f"{name}.jinja").read_text()))
    form, seen = AnswerForm(render), set()
    end = after(render).strip()
    for kind, said in SAID.items():
        found = written(render, said)
        calls = [one for one in said.get("tool_calls", []) if found and one["function"]["name"] in found[1]]
        if found is None or (calls == [] and "tool_calls" in said):
            continue  # deepseek's generation prompt begins a thought; many templates know no tools
        seen.add(kind)
        wanted: Message = {"role": "assistant", "content": said["content"]}
        if "Think" in found[1]:
            wanted["reasoning_content"] = "Let me.\n\nThink"
        if calls and name not in UNREAD:
            wanted["tool_calls"] = [{"type": "function", "function": one["function"]} for one in calls]
        got = read(form, *found, end)
        for one in got.get("tool_calls", []):
            one.pop("id", None)
        if name in UNREAD and calls:
            assert "get_weather" in got["content"] and "tool_calls" not in got
        else:
            assert got == wanted, (kind, found)
    assert seen or name.startswith("deepseek")
    assert name not in ("qwen3", "glm4moe", "gptoss", "nemotron_3_nano") or len(seen) > 1


def test_a_thought_that_the_prompt_has_begun() -> None:
    form = AnswerForm(Renderer(tokenizer_with((TEMPLATES / "deepseek_r1_distill.jinja").read_text())))
    got = read(form, "<｜User｜>Hello<｜Assistant｜><think>\n", "Hm.\n</think>\n\nYes.")
    assert got == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    # A user who writes the mark has begun nothing.
    got = read(form, "<｜User｜>What is <think>?<｜Assistant｜>", "A mark.")
    assert got == {"role": "assistant", "content": "A mark."}


CHATML = tiny_tokenizer().chat_template


def test_thoughts_without_a_template_that_writes_them() -> None:
    form = AnswerForm(Renderer(tokenizer_with(CHATML)))
    assert read(form, "P", "<think>\nHm.\n</think>\n\nYes.") == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "Hm.",
    }
    # In the middle of an answer it is what is spoken of.
    said = "It begins with <think> and ends with </think>."
    assert read(form, "P", said) == {"role": "assistant", "content": said}


@pytest.mark.parametrize(
    "broken", ['<tool_call>\n{"name": "get_weather", "argu', "<tool_call>\nnothing\n</tool_call>", "a < b <tool_ca"]
)
def test_what_is_no_call_stays_text(broken: str) -> None:
    form = AnswerForm(Renderer(tokenizer_with((TEMPLATES / "qwen3.jinja").read_text())))
    assert read(form, "P", broken) == {"role": "assistant", "content": broken}


def test_without_a_template_all_is_text() -> None:
    assert read(AnswerForm(None), "P", "<think>a</think>b")["content"] == "<think>a</think>b"


def test_the_tokenizers_own_response_template_comes_first() -> None:
    tokenizer = tokenizer_with(CHATML)
    fields = {"tool_calls": {"open": "[[", "close": "]]", "content": "json", "repeats": True}, "content": {}}
    tokenizer.response_template = {"start_anchor": "assistant\n", "fields": fields}
    got = read(AnswerForm(Renderer(tokenizer)), "assistant\n", '[[{"name": "f", "arguments": {}}]]')
    assert got["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    # One that cannot read what is said loses nothing of it.
    number = {"number": {"open": "#", "close": ";", "content": "int"}, "content": {}}
    tokenizer.response_template = {"start_anchor": "assistant\n", "fields": number}
    assert read(AnswerForm(Renderer(tokenizer)), "assistant\n", "One #x; and more.")["content"] == "One #x; and more."
    # One of a form that is not known is no reason to say nothing.
    tokenizer.response_template = {"version": 99}
    assert read(AnswerForm(Renderer(tokenizer)), "assistant\n", "Yes.")["content"] == "Yes."


def test_calls_in_the_form_of_mistral() -> None:
    form = AnswerForm(Renderer(tokenizer_with(CHATML + "{# [TOOL_CALLS] #}")))
    got = read(form, "P", '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]')
    assert got["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]


def test_special_tokens_are_text_only_where_they_mark_a_part() -> None:
    tokenizer: Any = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|channel|>", "<|other|>"]})
    mark, other = tokenizer.convert_tokens_to_ids(["<|channel|>", "<|other|>"])
    assert {mark, other} <= AnswerForm(None).unmarked(tokenizer)
    tokenizer.chat_template = (TEMPLATES / "gptoss.jinja").read_text()
    found = AnswerForm(Renderer(tokenizer)).unmarked(tokenizer)
    assert other in found and mark not in found
