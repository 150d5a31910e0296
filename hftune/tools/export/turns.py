"""Finds the text that a chat template puts around each turn, if it does no more than that."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from hftune.inference.prompts import Messages, render_whole

# Letters alone: templates strip white space and would escape nothing in these.
_MARKS = ("Qsystemq", "Quseroneq", "Qanswroneq", "Qusertwoq", "Qanswrtwoq", "Quserthreeq")


@dataclass(frozen=True)
class Turns:
    """Text around turns: `before["user"] + content + after["user"]`, and so on.

    Attributes:
        opening: What a conversation without a system turn begins with: nothing, or a system turn by default.
        start: The token that the tokenizer puts before any text and that the template writes as well; else nothing.
        before: Role to the text before a turn.
        after: Role to the text after it.
        asks: What follows the last turn of a user so that the model answers.
    """

    start: str
    opening: str
    before: dict[str, str]
    after: dict[str, str]
    asks: str

    def render(self, messages: Messages, *, ask: bool) -> str:
        """The text of a conversation, put together from the texts around its turns."""
        opening = "" if messages and messages[0]["role"] == "system" else self.opening
        turns = (self.before[turn["role"]] + turn["content"] + self.after[turn["role"]] for turn in messages)
        return self.start + opening + "".join(turns) + (self.asks if ask else "")


def turns_of(tokenizer: PreTrainedTokenizerBase) -> Turns | None:
    """The text around turns in a tokenizer's chat template; None without one, or where it does more than that.

    They are read from conversations of marks, and checked on others.
    """
    if not tokenizer.chat_template:
        return None
    found = _guess_turns(tokenizer)
    return found if found is not None and _reproduces(found, tokenizer) else None


def _guess_turns(tokenizer: PreTrainedTokenizerBase) -> Turns | None:
    system, first, answer, second, _, _ = _MARKS
    user, assistant = {"role": "user", "content": first}, {"role": "assistant", "content": answer}
    alone = render_whole(tokenizer, [user], ask=False)
    asked = render_whole(tokenizer, [user], ask=True)
    pair = render_whole(tokenizer, [user, assistant], ask=False)
    three = render_whole(tokenizer, [user, assistant, {"role": "user", "content": second}], ask=False)
    if None in (alone, asked, pair, three):
        return None
    assert alone is not None and asked is not None and pair is not None and three is not None
    head, after_user = alone.split(first)
    after_answer = pair.split(answer)[1]
    between = three.split(answer)[1].split(second)[0]
    if not asked.startswith(alone) or not pair.startswith(alone) or not between.startswith(after_answer):
        return None
    # Between an answer and the next question stands the end of the one and the beginning of the other; the end is known
    # from the pair.
    before_user = between[len(after_answer) :]
    if not head.endswith(before_user):
        return None
    # What is left before the first question: a default system turn, or the first token.
    opening = head[: len(head) - len(before_user)]
    start = _added_at_start(tokenizer) if opening.startswith(_added_at_start(tokenizer)) else ""
    before = {"user": before_user, "assistant": pair.split(answer)[0][len(alone) :]}
    after = {"user": after_user, "assistant": after_answer}
    # Templates without system turns refuse them, or put them into the user's: then none is learnt.
    guided = render_whole(tokenizer, [{"role": "system", "content": system}, user], ask=False)
    if guided is not None and guided.count(system) == 1 and guided.endswith(before_user + first + after_user):
        before_system, after_system = guided[: -len(before_user + first + after_user)].split(system)
        if before_system.startswith(start):
            before["system"], after["system"] = before_system[len(start) :], after_system
    return Turns(start, opening[len(start) :], before, after, asked[len(alone) :])


def _added_at_start(tokenizer: PreTrainedTokenizerBase) -> str:
    adds = bool(tokenizer.bos_token) and tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]
    return str(tokenizer.bos_token) if adds else ""


def _reproduces(turns: Turns, tokenizer: PreTrainedTokenizerBase) -> bool:
    system, *said = _MARKS
    roles = ("user", "assistant", "user", "assistant", "user")
    talk = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    opened: Messages = [{"role": "system", "content": system}] if "system" in turns.before else []
    cases: list[tuple[Messages, bool]] = [(talk[:1], True), (talk[:3], True), (talk[:4], False), (talk, True)]
    # A template that counts turns, trims old ones or treats the last one otherwise fails one of these.
    cases += [([*opened, *messages], ask) for messages, ask in cases]
    return all(turns.render(messages, ask=ask) == render_whole(tokenizer, messages, ask=ask) for messages, ask in cases)
