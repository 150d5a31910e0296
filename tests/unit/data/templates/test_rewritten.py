"""Conversations that a template writes otherwise than inference shows them: which rows they become."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hftune.data import turns
from hftune.data.mask import SpanFinder, rows_of
from hftune.data.turns import TurnFinder
from hftune.errors import DataError
from tests.unit.data.helpers import assistant, make_tokenizer, template, user

THOUGHTS = [
    user("a"), assistant("b", reasoning_content="hm"), user("c"), assistant("d", reasoning_content="oh"),
]  # fmt: skip
PLAIN = [user("a"), assistant("b"), user("c"), assistant("d")]
END = "<｜end▁of▁sentence｜>"
FIRST, SECOND = "<bos><｜User｜>a<｜Assistant｜>", f"<bos><｜User｜>a<｜Assistant｜>b{END}<｜User｜>c<｜Assistant｜>"
# As DeepSeek-V3.1: no line breaks around thoughts.
TIGHT = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content.split('</think>')[-1] + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant><think>' }}{% endif %}"
)


def rows(text: str, messages: list[dict[str, Any]], **settings: Any) -> list[tuple[str, str]]:
    """(before, trained) of each row with its only turn."""
    finder = SpanFinder(make_tokenizer(text), **{"rewritten": "split", **settings})
    found = finder.rows(messages)
    return [(one.text[: one.spans[0].start], one.text[one.spans[0].start : one.spans[-1].end]) for one in found]


def test_each_turn_behind_the_prompt_of_inference() -> None:
    asked = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    then = f"{asked}b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    first = (asked, "<think>\nhm\n</think>\n\nb<|im_end|>")
    second = (then, "<think>\noh\n</think>\n\nd<|im_end|>")
    assert rows(template("qwen3"), THOUGHTS) == [first, second]
    assert rows(template("qwen3"), THOUGHTS, rewritten="last") == [second]
    assert rows(template("qwen3"), [*THOUGHTS[:3], {**THOUGHTS[3], "weight": 0}]) == [first]
    with pytest.raises(DataError, match=r"rewrites earlier turns: turn 2 \(assistant\)"):
        rows(template("qwen3"), THOUGHTS, rewritten="refuse")


def test_calls_stay_with_the_answer_after_them() -> None:
    call = [{"type": "function", "function": {"name": "get", "arguments": {"x": 1}}}]
    messages = [
        user("a"), assistant("", reasoning_content="hm", tool_calls=call), {"role": "tool", "content": "1"},
        assistant("b", reasoning_content="oh"), user("c"), assistant("d", reasoning_content="so"),
    ]  # fmt: skip
    finder = TurnFinder(messages, SpanFinder(make_tokenizer(template("qwen3"))).render)
    assert [row.turns for row in rows_of(finder)] == [[1, 3], [5]]


@pytest.mark.parametrize("name", ["deepseekv3", "deepseek_r1_distill", "deepseek_r1_distill_training"])
def test_a_thought_that_the_prompt_opens(name: str) -> None:
    """The row continues the prompt of inference, though the template writes no thoughts in conversations."""
    given = [(f"{FIRST}<think>\n", f"hm\n</think>\n\nb{END}"), (f"{SECOND}<think>\n", f"oh\n</think>\n\nd{END}")]
    assert rows(template(name), THOUGHTS) == given
    assert rows(template(name), THOUGHTS[:2], rewritten="refuse") == given[:1]
    inline = [user("a"), assistant("<think>hm</think>b")]
    assert rows(template("deepseekv3"), inline) == given[:1]
    empty = "\n</think>\n\n"
    asked = [(f"{FIRST}<think>\n{empty}", f"b{END}"), (f"{SECOND}<think>\n{empty}", f"d{END}")]
    assert rows(template(name), PLAIN) == asked
    # Rows follow the turns that are trained.
    assert rows(template(name), [*PLAIN[:3], {**PLAIN[3], "weight": 0}]) == asked[:1]
    assert rows(template(name), [PLAIN[0], {**PLAIN[1], "weight": 0}, *PLAIN[2:]]) == asked[1:]
    trained = [(f"{FIRST}<think>\n", f"{empty}b{END}"), (f"{SECOND}<think>\n", f"{empty}d{END}")]
    assert rows(template(name), PLAIN, empty_thoughts="train") == trained
    with pytest.raises(DataError, match="opens thoughts, so empty ones cannot be dropped"):
        rows(template(name), PLAIN, empty_thoughts="drop")


def test_line_breaks_are_those_of_the_prompt() -> None:
    assert rows(TIGHT, THOUGHTS[:2]) == [("<user>a<end><assistant><think>", "hm</think>b<end>")]
    assert rows(TIGHT, PLAIN[:2]) == [("<user>a<end><assistant><think></think>", "b<end>")]
    square = TIGHT.replace("<think>", "[THINK]").replace("</think>", "[/THINK]")
    assert rows(square, THOUGHTS[:2]) == [("<user>a<end><assistant>[THINK]", "hm[/THINK]b<end>")]


def test_another_beginning_is_refused() -> None:
    other = TIGHT.replace("'<assistant><think>'", "'<assistant>Sure: <think>'")
    for text in (other, TIGHT.replace("'<assistant><think>'", "'<assistant><note>'")):
        with pytest.raises(DataError, match="what would be trained is not what the model is asked"):
            rows(text, PLAIN[:2])
    # Thoughts in two places: one of them would be lost.
    with pytest.raises(DataError, match="drops the reasoning"):
        rows(TIGHT, [user("a"), assistant("<think>one</think>b", reasoning_content="two")])


def test_the_argument_with_which_a_template_asks_as_it_writes_is_named() -> None:
    """As a user types it: JSON has `false`."""
    asking = (
        "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '<end>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<assistant>' }}{% if think is not defined or think %}{{ '[hm]' }}"
        "{% endif %}{% endif %}"
    )
    with pytest.raises(DataError) as problem:
        rows(asking, [user("a"), assistant("b")], rewritten="refuse")
    assert """--chat_template_kwargs '{"think": false}'""" in str(problem.value)
    refuses = "{% if think is defined and think %}{{ raise_exception('no') }}{% endif %}"
    with pytest.raises(DataError) as problem:
        rows(refuses + asking, [user("a"), assistant("b")], rewritten="refuse")
    assert """--chat_template_kwargs '{"think": false}'""" in str(problem.value), "the other value is tried as well"
    assert rows(asking.replace("not defined or think", "defined and think"), [user("a"), assistant("b")])


ASKING = (
    "{% for m in messages %}{{ '<' + m.role + '>' + (said or '') * (m.role == 'assistant') + m.content + '<end>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}ASKED{% endif %}"
)


@pytest.mark.parametrize("fits", ["true", "false"])
def test_only_an_argument_that_asks_as_the_template_writes_is_named(fits: str) -> None:
    """Of both values the one that does, and none that changes the prompt to something else."""
    asked = f"{{% if think is not defined %}}[hm]{{% elif think != {fits} %}}[oh]{{% endif %}}"
    with pytest.raises(DataError, match=r"with '\[hm\]' where it writes 'b<end>'") as problem:
        rows(ASKING.replace("ASKED", asked), [user("a"), assistant("b")], rewritten="refuse")
    assert f"""--chat_template_kwargs '{{"think": {fits}}}'""" in str(problem.value)


def test_an_argument_that_changes_nothing_is_not_named() -> None:
    same = ASKING.replace("ASKED", "[hm]{% if think %}{% endif %}")
    with pytest.raises(DataError, match="what would be trained is not what the model is asked") as problem:
        rows(same, [user("a"), assistant("b")], rewritten="refuse")
    assert "think" not in str(problem.value) and "give --rewritten_turns keep" in str(problem.value.fix)


def test_where_nobody_asks_no_other_argument_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one costs a rendering, and the fix is left out."""
    tokenizer = make_tokenizer(TIGHT.replace("'<assistant><think>'", "'<assistant>Sure: '"))
    tried: list[Any] = []
    monkeypatch.setattr(turns, "names_read", lambda text: tried.append(text) or [])
    finder = TurnFinder(PLAIN[:2], SpanFinder(tokenizer).render)
    for proposes in (True, False):
        tried.clear()
        with pytest.raises(DataError, match="what would be trained is not what the model is asked") as problem:
            finder.exact_span(1, proposes=proposes)
        assert bool(tried) == bool(problem.value.fix) == proposes
        assert "give --rewritten_turns keep" in (problem.value.fix or "") or not proposes
        assert finder.proposes is True, "as it was"


@pytest.mark.parametrize("earlier", [True, False])
def test_whether_a_turn_is_asked_otherwise_since_another_follows(earlier: bool) -> None:
    finder: Any = SimpleNamespace(
        text="<user>a<end>abcdefghijklmnopqrstuvwxyz", beginning=lambda index, prompt: "<user>a<end>Sure: ",
        _switch=lambda index: "",
        _is_earlier=lambda index: earlier, _fix_for=lambda what, otherwise: otherwise,
    )  # fmt: skip
    said = str(TurnFinder._inexact(finder, 1, 12))
    assert "turn 2 (assistant) with 'Sure: ' where it writes 'abcdefghijklmnopqrst'" in said
    why = ", as it rewrites earlier turns" if earlier else ""
    assert f"in the conversation{why}: what would be trained" in said
