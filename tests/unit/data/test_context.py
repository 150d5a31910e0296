"""What does not fit into a model's context is said, before a text is divided into tokens where that is sure."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset

from hftune.arguments.asking import AskArguments
from hftune.data.counts import Context
from hftune.data.encode_rewards import ScoringEncoder
from hftune.data.files import Row
from hftune.errors import DataError
from hftune.inference.generate import Answerer
from hftune.inference.loading import Talker, load_talker
from hftune.inference.questions import Question
from hftune.tools.asking import ask
from hftune.tools.evaluating.losses import RecordLosses
from hftune.tools.teaching.teacher import Teacher

LONG, ENDLESS = "a " * 300, "a " * 200_000
"""Behind 512 tokens of context: one that must be divided to see it, one that need not be."""


@pytest.fixture(scope="module")
def talker(tiny_model: Path) -> Talker:
    found = load_talker(str(tiny_model), AskArguments(use_cpu=True))
    found.model.config.max_position_embeddings = 256
    return found


def row(text: str) -> Row:
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}]
    return Row({"messages": messages}, "a.jsonl", 7)


@pytest.mark.parametrize(("text", "size"), [(LONG, "tokens"), (ENDLESS, "characters")])
def test_what_is_asked_and_measured(talker: Talker, text: str, size: str) -> None:
    said = rf"of [\d,]+ {size} does not fit into the model's context of 256 tokens"
    question = Question([{"role": "user", "content": text}], origin="a.jsonl:7")
    with pytest.raises(DataError, match=said) as asked:
        Answerer(talker, "split", 4096)([question], max_new_tokens=2)
    with pytest.raises(DataError, match=said) as measured:
        RecordLosses(talker, None, "split", 4096)([row(text)])
    assert "a.jsonl:7" in str(asked.value) and "a.jsonl:7" in str(measured.value)
    assert ("--max_length" in str(measured.value)) is (size == "tokens"), "which cuts what has been divided"


def test_a_length_that_was_asked_for_cuts(talker: Talker) -> None:
    assert RecordLosses(talker, 64, "split", 4096)([row(LONG)]) == [(0.0, 0)]


def test_a_text_that_cannot_fit_is_not_divided(talker: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    answerer = Answerer(talker, "split", 4096)
    monkeypatch.setattr(answerer.write, "ids", lambda texts: pytest.fail("five gigabytes"))
    with pytest.raises(DataError, match="characters"):
        answerer([Question([{"role": "user", "content": ENDLESS}])], max_new_tokens=2)


def test_where_nobody_says_a_context_everything_fits(talker: Talker) -> None:
    model: Any = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: SimpleNamespace()))
    tokenizer: Any = SimpleNamespace(model_max_length=10**30, get_vocab=talker.tokenizer.get_vocab)
    Context.of(model, tokenizer).check_text(ENDLESS, "a")
    Context.of(model, tokenizer).check(10**9, "a")


def test_ask(tiny_model: Path) -> None:
    with pytest.raises(DataError, match="does not fit into the model's context"):
        ask(AskArguments(models=[str(tiny_model)], questions=[ENDLESS], use_cpu=True), [])


@pytest.mark.parametrize(("text", "size"), [(LONG, "tokens"), (ENDLESS, "characters")])
@pytest.mark.parametrize("steps", [True, False])
def test_what_is_scored(talker: Talker, text: str, size: str, steps: bool) -> None:
    context = Context.of(talker.model, talker.tokenizer)
    make = ScoringEncoder(talker.tokenizer, steps=steps, context=context)
    with pytest.raises(DataError, match=rf"of [\d,]+ {size} does not fit") as refused:
        make(row(text))
    assert "a.jsonl:7" in str(refused.value)
    if size == "tokens":
        (cut,) = ScoringEncoder(talker.tokenizer, steps=steps, max_length=64, context=context)(row(text))
        assert cut.truncated and len(cut.ids) == 64


def test_a_teacher_reads_no_more_than_its_context(talker: Talker) -> None:
    teacher = Teacher([], [], 1.0, 0, contexts=(Context.of(talker.model, talker.tokenizer),))
    dataset = Dataset.from_dict({"input_ids": [[1] * 300], "labels": [[1] * 300]})
    work: Any = SimpleNamespace(bounds=[0, 1], records=[0])
    with pytest.raises(DataError, match="a record of 300 tokens does not fit into the model's context of 256"):
        teacher.fill(None, dataset, work, 0, 1)  # type: ignore[arg-type]
