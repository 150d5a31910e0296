"""A turn behind the prompt that inference gives, where no conversation with the turn begins with it."""

from __future__ import annotations

from typing import Any

from hftune.data.mask import asked_turn
from hftune.data.rendering import Renderer
from hftune.data.turns import TurnFinder
from tests.unit.data.helpers import assistant, call, make_tokenizer, template, user

# Thoughts before a call are shown until the answer is written.
DROPPING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and not messages[loop.index:] | selectattr('role', 'eq', 'assistant') | list %}"
    "<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SAID = [user("Q"), {**call("get", x=1), "reasoning_content": "so"}, {"role": "tool", "content": "7"}]


def finder(text: str, *messages: dict[str, Any]) -> TurnFinder:
    return TurnFinder([*messages], Renderer(make_tokenizer(text)), proposes=False)


def test_the_prompt_and_behind_it_the_turn() -> None:
    for answer in (assistant("A"), assistant("A", reasoning_content="oh"), assistant("A", weight=0.5)):
        part = finder(DROPPING, *SAID, answer)
        found = asked_turn(part)
        assert found is not None
        text, (span,) = found.text, found.spans
        prompt = part.renderer(SAID, add_generation_prompt=True)
        assert "<think>so</think>" in prompt and "so" not in part.text
        thoughts = "<think>oh</think>" if "reasoning_content" in answer else ""
        assert text == f"{prompt}{thoughts}A<|im_end|>\n"
        assert text[span.start : span.end] == f"{thoughts}A<|im_end|>" and span.start == len(prompt)
        assert span.weight == answer.get("weight", 1.0)


def test_none_where_the_turn_is_written_in_another_way() -> None:
    # Behind a result it is another text than behind a question.
    other = DROPPING.replace("{{ m.content }}", "{% if loop.index > 3 %}late {% endif %}{{ m.content }}")
    assert asked_turn(finder(other, *SAID, assistant("A"))) is None
    # No generation prompt, no question, and a turn that is lost.
    assert asked_turn(finder(DROPPING.split("{% if add_generation")[0], *SAID, assistant("A"))) is None
    assert asked_turn(finder(DROPPING, SAID[1], SAID[2], assistant("A"))) is None
    assert asked_turn(finder(template("qwen2_5"), *SAID[:1], assistant("A", reasoning_content="oh"))) is None
