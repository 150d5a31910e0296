"""Spans under templates that nobody wrote: each answer with its end, or an error, never another text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.data.mask import SpanFinder
from hftune.errors import DataError
from tests.unit.data.helpers import assistant, make_tokenizer, user

MARK = st.text("<>|[ae", min_size=1, max_size=4)
CONTENT = st.text("<>|[ae \n你", max_size=6)
TRAINED = st.lists(st.booleans(), min_size=3, max_size=3)


def written(opening: str, middle: str, closing: str, tail: str, head: str) -> str:
    """A template that writes turns one after the other, each between the same marks."""
    return (
        f"{head}{{% for m in messages %}}{{{{ {opening!r} + m.role + {middle!r} + m.content + {closing + tail!r} }}}}"
        f"{{% endfor %}}{{% if add_generation_prompt %}}{{{{ {opening + 'assistant' + middle!r} }}}}{{% endif %}}"
    )


@settings(max_examples=150)
@given(
    opening=MARK, middle=MARK, closing=MARK, tail=st.sampled_from(["", "\n", "\n\n"]),
    head=st.sampled_from(["", "<bos>"]), said=st.lists(st.tuples(CONTENT, CONTENT), min_size=1, max_size=3),
    trained=TRAINED, last=st.booleans(),
)  # fmt: skip
def test_an_answer_and_its_end(
    opening: str,
    middle: str,
    closing: str,
    tail: str,
    head: str,
    said: list[tuple[str, str]],
    trained: list[bool],
    last: bool,
) -> None:
    messages, text, wanted = [], head, []
    for number, (question, answer) in enumerate(said):
        messages += [user(question), assistant(answer, weight=int(trained[number]))]
        text += f"{opening}user{middle}{question}{closing}{tail}{opening}assistant{middle}"
        if trained[number] and (not last or number == len(said) - 1):
            wanted.append((len(text), len(text) + len(answer + closing)))
        text += f"{answer}{closing}{tail}"
    try:
        found = SpanFinder(make_tokenizer(written(opening, middle, closing, tail, head)), last_turn_only=last)(messages)
    except DataError:
        return
    assert found.text == text
    assert [(span.start, span.end) for span in found.spans] == wanted
