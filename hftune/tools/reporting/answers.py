"""What models answered: to the same questions before and after training, and during RL. As tables, and as cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hftune.tools.reporting.tables import Section
from hftune.visible import html

SHOWN = 6
"""Questions that a report shows at once: what `hftune ask` wrote may be many."""

Said = tuple[str, str, str]
"""Who answered, a note on it (a reward), and the answer."""


def labels(names: Sequence[str]) -> list[str]:
    """Short names of models: as few last parts of their paths as differ, `sft` for `outputs/x/sft-merged`."""
    deepest = max((len(Path(name).parts) for name in names), default=0)
    for depth in range(1, deepest + 1):
        tails = ["/".join(Path(name).parts[-depth:]) for name in names]
        # Without `-merged` where the names still differ: readers know stages, not steps of merging.
        for found in ([tail.removesuffix("-merged") for tail in tails], tails):
            if len(set(found)) == len(found):
                return found
    # Reached where the same name stands there twice.
    return list(names)


def answer_sections(found: Mapping[str, Any], shown: int = SHOWN) -> Iterator[Section]:
    """Tables of what `answers.json` holds: mean rewards where there are any, then the first questions.

    Raises:
        ValueError: A model has more answers than there are questions, or fewer.
    """
    questions, answers = found.get("questions") or [], found.get("answers") or {}
    # The file may have been edited or come from elsewhere: tables below count on equal lengths.
    for model, given in answers.items():
        if len(given) != len(questions):
            raise ValueError(f"{model} has {len(given)} answers to {len(questions)} questions")
    rewards = reward_section(found)
    if rewards is not None:
        yield rewards
    rows = [
        (question if number == 0 else "", label, answers[model][place])
        for place, question in enumerate(questions[:shown])
        for number, (label, model) in enumerate(zip(labels(list(answers)), answers, strict=True))
    ]
    if rows:
        yield Section("Answers", ("question", "model", "answer"), rows, _note(found, shown))


def reward_section(found: Mapping[str, Any]) -> Section | None:
    """A table of the mean reward of each model's answers; None without rewards."""
    rewards = found.get("rewards")
    if not rewards:
        return None
    means = [_mean(values) for values in rewards.values()]
    note = f"Mean raw reward of the answers to {len(found['questions'])} questions"
    model = found.get("reward_model")
    note += f", by {labels([model])[0]}." if model else "."
    rows = list(zip(labels(list(rewards)), means, strict=True))
    return Section("Reward of the answers", ("model", "mean reward"), rows, note)


def _mean(values: Sequence[float | None]) -> float | None:
    # An empty answer has no reward.
    known = [value for value in values if isinstance(value, int | float)]
    return sum(known) / len(known) if known else None


def _note(found: Mapping[str, Any], shown: int) -> str:
    limit = found.get("max_new_tokens")
    parts = [f"Greedy, at most {limit} tokens."] if limit else []
    left = len(found["questions"]) - shown
    parts += [f"The first {shown} of {left + shown} questions; all are in answers.json."] if left > 0 else []
    return " ".join(parts)


def completion_section(lines: Sequence[Mapping[str, Any]]) -> Section:
    """A table of samples that RL generated, with their rewards."""
    rows = [
        (line["step"], said(line.get("prompt")), said(line.get("completion")), rewards_of(line.get("rewards")))
        for line in lines
    ]
    return Section("Answers in the course of training", ("step", "prompt", "answer", "reward"), rows)


def said(value: Any) -> str:
    """A text, or the last turn of a conversation."""
    return str(value[-1].get("content") if isinstance(value, list) and value else value)


def rewards_of(found: Mapping[str, Any] | None) -> str:
    """Rewards by name as one text: `length 0.5, rm -1.25`."""
    numbers = {name: value for name, value in (found or {}).items() if isinstance(value, int | float)}
    return ", ".join(f"{name} {value:.3g}" for name, value in numbers.items())


# --- HTML: cards, since three columns of long texts do not fit a phone ---


def html_answers(found: Mapping[str, Any]) -> str:
    """Cards as HTML, one a question with every model's answer; those beyond `SHOWN` are folded away."""
    questions, answers, rewards = found["questions"], found.get("answers") or {}, found.get("rewards") or {}
    names = dict(zip(answers, labels(list(answers)), strict=True))
    cards = [
        _card(question, [(names[model], _reward(rewards, model, number), answers[model][number]) for model in answers])
        for number, question in enumerate(questions)
    ]
    more = "".join(cards[SHOWN:])
    folded = f"<details><summary>{len(cards) - SHOWN} more questions</summary>{more}</details>" if more else ""
    limit = found.get("max_new_tokens")
    note = f"<p>Greedy, at most {html(limit)} tokens.</p>" if limit else ""
    return f"<h3>Answers</h3>{note}{''.join(cards[:SHOWN])}{folded}"


def html_completions(lines: Sequence[Mapping[str, Any]]) -> str:
    """Cards as HTML, one a prompt, with the answers that were sampled for it."""
    by_prompt: dict[str, list[Said]] = {}
    for line in lines:
        entry = (f"step {line['step']}", rewards_of(line.get("rewards")), said(line.get("completion")))
        by_prompt.setdefault(said(line.get("prompt")), []).append(entry)
    cards = "".join(_card(prompt, entries) for prompt, entries in by_prompt.items())
    return f"<h3>Answers in the course of training</h3><p>Samples of the first and of the last logged step.</p>{cards}"


def _reward(rewards: Mapping[str, Sequence[float | None]], model: str, number: int) -> str:
    value: Any = rewards[model][number] if model in rewards else None
    return "" if value is None else f"reward {value:.3g}" if isinstance(value, int | float) else f"reward {value}"


def _card(question: str, entries: Sequence[Said]) -> str:
    rows = "".join(
        f"<dt>{html(who)}{f'<small>{html(note)}</small>' if note else ''}</dt><dd>{html(text)}</dd>"
        for who, note, text in entries
    )
    return f'<div class="asked"><p>{html(question)}</p><dl>{rows}</dl></div>'
