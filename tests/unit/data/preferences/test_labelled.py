"""Answers with a label, and answers to other prompts, for KTO."""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from hftune.data.encode_pairs import LabelledEncoder, MismatchedPairEncoder
from tests.unit.data.helpers import row, tokenise_rows


def test_labels_and_other_answers(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(prompt=text, completion=f"answer {text}", label=text < "c") for text in "abcd"]
    dataset, counts = tokenise_rows(rows, LabelledEncoder(chatml, max_length=99))
    assert dataset["label"][:] == [True, True, False, False]
    assert counts.used == 4 and counts.trained_tokens == sum(map(len, dataset["completion_ids"][:]))
    texts = [chatml.decode(ids) for ids in dataset["completion_ids"][:]]
    assert texts[0] == "answer a<|im_end|>"
    # half the data set away: another prompt's
    assert [chatml.decode(ids) for ids in dataset["kl_ids"][:]] == [*texts[2:], *texts[:2]]


def test_other_answers_fit_behind_the_prompt(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(prompt="a", completion="x" * 40, label=True), row(prompt="b" * 30, completion="y", label=False)]
    dataset, counts = tokenise_rows(rows, LabelledEncoder(chatml, max_length=30))
    assert counts.truncated == 2
    for record in dataset:
        assert len(record["prompt_ids"]) + len(record["completion_ids"]) <= 30
        assert 1 <= len(record["kl_ids"]) <= max(1, 30 - len(record["prompt_ids"]))


def test_pairs_get_good_and_bad_answers_in_turn(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(prompt=text, chosen=f"good {text}", rejected=f"bad {text}") for text in "abcd"]
    dataset, _ = tokenise_rows(rows, MismatchedPairEncoder(chatml, max_length=99))
    shown = [chatml.decode(ids).removesuffix("<|im_end|>") for ids in dataset["kl_ids"][:]]
    assert shown == ["good c", "bad d", "good a", "bad b"]
