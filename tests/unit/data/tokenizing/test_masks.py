"""Masks token by token on real templates, against the marks of those that have them, and against the text itself."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.constants import IGNORE_INDEX
from hftune.data.templates.rendering import Renderer
from hftune.errors import DataError
from tests.unit.data.helpers import (
    TEMPLATES,
    assistant,
    call,
    make_tokenizer,
    row,
    slow_if_alike,
    template,
    tokenize_chat,
    user,
)

IMAGES = {"idefics3", "llava_next", "smolvlm", "diffusion_gemma"}
SMOLLM2 = (
    "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SHIPPED = sorted(path.stem for path in TEMPLATES.glob("*.jinja") if path.stem.removesuffix("_training") not in IMAGES)
NAMES = [*SHIPPED, "SmolLM2"]
MARKED = [name for name in NAMES if name.endswith("_training")]
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer", "description": "e"}}, "required": ["x"]}
TOOLS = [{"type": "function", "function": {"name": "get", "description": "d", "parameters": SCHEMA}}]
TURNS = [user("你好，世界?"), assistant("第一 🙂!"), user("naïve?\n"), assistant("done\n\nThe answer is 42.")]
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "turns": TURNS,
    "system": [{"role": "system", "content": "Be brief. 简短。"}, *TURNS],
    "tools": [
        user("a?"),
        call("get", x=1),
        {"role": "tool", "name": "get", "content": "Ergebnis 77"},
        assistant("二十 grad!"),
    ],
}


def example(name: str, kind: str, *, by_marks: bool = False) -> tuple[Any, dict[str, list[int]]]:
    """The tokenizer with a template, and a conversation by it; skips where the template refuses the conversation."""
    tokenizer = make_tokenizer(SMOLLM2 if name == "SmolLM2" else template(name))
    tools = {"tools": TOOLS} if kind == "tools" else {}
    try:
        dataset, _ = tokenize_chat(
            [row(messages=CONVERSATIONS[kind], **tools)],
            tokenizer,
            max_length=4096,
            by_marks=by_marks,
            rewritten="keep",
        )
    except DataError as error:
        # Said with its reason, never masked on a guess.
        assert (
            error.kind in ("refused by the chat template", "turn cut by the chat template") or "rewritten" in error.kind
        )
        pytest.skip(str(error).splitlines()[0])
    return tokenizer, dataset[0]


@pytest.mark.parametrize("kind", CONVERSATIONS)
@pytest.mark.parametrize("name", slow_if_alike(NAMES))
@pytest.mark.parametrize("by_marks", [False, True])
def test_every_token_of_the_answers_and_none_of_the_rest(name: str, kind: str, by_marks: bool) -> None:
    if by_marks and name not in MARKED:
        pytest.skip("nothing is marked")
    tokenizer, found = example(name, kind, by_marks=by_marks)
    messages = CONVERSATIONS[kind]
    text = Renderer(tokenizer)(messages, TOOLS if kind == "tools" else None)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    assert found["input_ids"] == encoded["input_ids"]
    trained = [label != IGNORE_INDEX for label in found["labels"]]
    for message in messages:
        content = message["content"].strip()
        if not content:
            continue
        # Each content stands in these texts once; all of its tokens are trained, or none.
        assert text.count(content) == 1
        start = text.index(content)
        inside = [
            mark
            for (first, last), mark in zip(encoded["offset_mapping"], trained, strict=True)
            if first >= start and last <= start + len(content) and first < last
        ]
        assert inside and set(inside) == {message["role"] == "assistant"}, content


def _beginning(marks: list[bool], place: int) -> int:
    """Where the run of marks that a place is in begins."""
    while place > 0 and marks[place - 1]:
        place -= 1
    return place


@pytest.mark.parametrize("kind", CONVERSATIONS)
@pytest.mark.parametrize("name", slow_if_alike(MARKED))
def test_marks_are_taken_where_there_are_some(name: str, kind: str) -> None:
    """As the template marks them, and the terminator besides; but for what inference gives a turn to begin with."""
    tokenizer, found = example(name, kind, by_marks=True)
    tools = {"tools": TOOLS} if kind == "tools" else {}
    marked = tokenizer.apply_chat_template(
        CONVERSATIONS[kind], return_dict=True, return_assistant_tokens_mask=True, **tools
    )
    assert found["input_ids"] == marked["input_ids"]
    ours = [label != IGNORE_INDEX for label in found["labels"]]
    theirs = [bool(mark) for mark in marked["assistant_masks"]]
    more = [token for token, mine, other in zip(found["input_ids"], ours, theirs, strict=True) if mine and not other]
    # Headers and (empty) thoughts that are marked and given: they stand at the beginning of what is marked.
    begins = [_beginning(theirs, place) for place in range(len(ours))]
    given = [theirs[place] and not any(ours[begins[place] : place + 1]) for place in range(len(ours))]
    less = [
        token
        for token, mine, other, is_given in zip(found["input_ids"], ours, theirs, given, strict=True)
        if other and not mine and not is_given
    ]
    assert tokenizer.decode(more).replace("<|endoftext|>", "").replace("<|tool_response>", "").strip() == ""
    # Phi-3 marks a turn in two pieces, so its turns are located: without the line break after the last.
    assert not less or (name.startswith("phi3") and not tokenizer.decode(less).strip())


@pytest.mark.parametrize("kind", CONVERSATIONS)
@pytest.mark.parametrize("name", slow_if_alike(MARKED))
def test_the_marks_of_a_template_say_the_same(name: str, kind: str) -> None:
    """{% generation %} may also cover white space after the terminator, and what the generation prompt gives."""
    tokenizer, found = example(name, kind)
    marked = tokenizer.apply_chat_template(
        CONVERSATIONS[kind],
        tools=TOOLS if kind == "tools" else None,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    assert found["input_ids"] == marked["input_ids"]
    ours = [label != IGNORE_INDEX for label in found["labels"]]
    theirs = [bool(mark) for mark in marked["assistant_masks"]]
    pieces = [tokenizer.decode([token]) for token in found["input_ids"]]
    for place, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if mine and not other:
            # Phi-3 ends a text with EOS, Gemma 4 opens the tool's answer: the model writes both.
            assert pieces[place].strip() in ("", "<|endoftext|>") or "tool_response" in tokenizer.decode(
                found["input_ids"][max(0, place - 12) : place + 12]
            )
        if other and not mine:
            start = place
            while start + 1 < len(ours) and theirs[start] and not ours[start]:
                start += 1
            assert ours[start] or not pieces[place].strip(), (place, pieces[max(0, place - 3) : place + 4])
