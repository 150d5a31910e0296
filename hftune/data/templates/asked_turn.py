"""A turn behind the prompt that inference gives, where the template writes no conversation that holds both.

gpt-oss's template shows the thoughts before a call until the answer is written, and drops them then: the answer was
given to a prompt that no conversation with the answer begins with. So the row is the prompt, and behind it what the
template writes of the turn in a conversation of a question and this turn alone.
"""

from __future__ import annotations

from hftune.data.templates.spans import Span
from hftune.data.templates.turns import TurnFinder
from hftune.errors import DataError


def asked_turn(finder: TurnFinder) -> tuple[str, Span] | None:
    """The prompt and the last turn of a conversation as a text, and where the turn is in it.

    Returns:
        None unless the conversation as the template writes it ends with the very same turn, behind the end of a
        generation prompt.
    """
    *before, turn = finder.messages
    prompt, without = finder.beginning(len(before), prompt=True), finder.beginning(len(before))
    question = [message for message in before if message["role"] == "user"][-1:]
    if not question or not prompt or not without or not prompt.startswith(without):
        return None
    try:
        alone = TurnFinder([*question, turn], finder.renderer, finder.tools, proposes=False)
        alone.empty_thoughts = finder.empty_thoughts
        span = alone.exact_span(1)
    except DataError:
        return None
    # What stands before it in both conversations is what the template asks with, such as a header.
    asks, body = prompt[len(without) :], alone.text[span.start :]
    if not asks or not finder.text.endswith(asks + body):
        return None
    return prompt + body, Span(len(prompt), len(prompt) + span.end - span.start, span.weight)
