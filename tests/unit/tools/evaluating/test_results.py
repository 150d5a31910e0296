"""Records of an evaluation, lm-eval's among them, and the figures and intervals that become of them, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hftune.logging import notices
from hftune.tools.evaluating.results import figure, lines_of_results, results


def _lines(model: str, *records: tuple[str, float]) -> list[dict[str, Any]]:
    return [
        {"model": model, "record": f"d:{at}", "digest": text, "source": "d", "scores": {"math": score}}
        for at, (text, score) in enumerate(records)
    ]


def test_records_are_paired_by_what_they_hold() -> None:
    ours = _lines("m", ("a", 1), ("b", 0), ("b", 1), ("c", 1))
    same = _lines("n", ("c", 0), ("b", 0), ("b", 1), ("a", 1))
    found = results(ours, "n", same)
    assert found["models"]["m"]["math"] == pytest.approx(found["models"]["m"]["math"] | {"value": 0.75, "records": 4})
    assert found["differences"]["m"]["math"]["value"] == pytest.approx(0.25) and notices() == []


def test_other_contents_in_the_same_places_are_no_pair() -> None:
    found = results(_lines("m", ("a", 1), ("b", 0)), "n", _lines("n", ("x", 0), ("y", 0), ("z", 0)))
    assert found["differences"]["m"] == {}
    assert notices() == ["math: 0 of 2 records here and of 3 there are the same: there is no difference to take"]
    some = results(_lines("m", ("a", 1), ("b", 0)), "n", _lines("n", ("b", 0), ("y", 1)))
    assert some["differences"]["m"]["math"]["value"] == 0
    assert notices()[-1] == "math: 1 of 2 records here and of 2 there are the same: the difference is over those"


def test_the_mean_is_weighted_by_tokens() -> None:
    found = figure([1.0, 4.0], [3, 1])
    assert found["value"] == pytest.approx(1.75) and found["records"] == 2
    # A sample of two records has one of them twice, or both: the ends of the interval are those of the records.
    assert (found["low"], found["high"]) == (1.0, 4.0)


def test_an_interval_of_many_coins_is_the_normal_one() -> None:
    found = figure([1.0] * 150 + [0.0] * 350)
    assert found["value"] == pytest.approx(0.3)
    half = 1.96 * math.sqrt(0.3 * 0.7 / 500)
    assert [found["low"], found["high"]] == pytest.approx([0.3 - half, 0.3 + half], abs=0.004)


def test_what_is_hard_for_both_does_not_widen_a_difference() -> None:
    random = np.random.default_rng(2)
    theirs = random.normal(0, 10, 200)
    ours = theirs + random.normal(0.5, 0.1, 200)
    found = figure((ours - theirs).tolist())
    assert 0.45 < found["low"] < found["value"] < found["high"] < 0.55
    own = figure(ours.tolist())
    assert own["high"] - own["low"] > 1


def sample(number: int, kind: str = "none", **metrics: Any) -> dict[str, Any]:
    return {"doc_id": number, "filter": kind, "metrics": [*metrics], "filtered_resps": [[-1.5, True]], **metrics}


def found(right: float) -> dict[str, Any]:
    """What `simple_evaluate` returns for two tasks; of the first three records are wrong, and the rest is right."""
    return {
        "results": {
            "choices": {
                **{"alias": "choices", "sample_len": 4, "acc,none": right / 4, "acc_stderr,none": 0.25},
                **{"perplexity,none": 9.0, "perplexity_stderr,none": "N/A"},
            },
            "sums": {"alias": "sums", "exact_match,strict": 0.5, "exact_match_stderr,strict": 0.25},
        },
        "samples": {
            "choices": [sample(n, acc=float(n < right), perplexity=-2.5, word_perplexity=(-9.0, 4)) for n in range(4)],
            "sums": [sample(0, "strict", exact_match=True), sample(1, "strict", exact_match=False)],
        },
        "higher_is_better": {"choices": {"acc": True, "perplexity": False}, "sums": {"exact_match": True}},
    }


def test_each_sample_is_a_line() -> None:
    lines = list(lines_of_results(found(3)))
    assert [line["record"] for line in lines] == [
        *(f"choices:{n}:none" for n in range(4)),
        *("choices:", "sums:0:strict", "sums:1:strict", "sums:"),
    ]
    assert lines[0]["scores"] == {"choices/acc": 1.0, "choices/perplexity": -2.5}
    assert lines[0]["responses"] == [[-1.5, True]]
    assert lines[5]["scores"] == {"sums/exact_match,strict": 1.0}
    assert [*lines[4]["aggregates"]] == ["choices/acc", "choices/perplexity"]


def test_figures_are_lm_evals() -> None:
    models = {"a": found(3), "b": found(1)}
    lines = [{"model": name, **line} for name, told in models.items() for line in lines_of_results(told)]
    told = results(lines, "b", [line for line in lines if line["model"] == "b"])
    acc, perplexity = (told["models"]["a"][f"choices/{name}"] for name in ("acc", "perplexity"))
    assert acc["value"] == 0.75 and acc["records"] == 4 and not acc["less_is_better"]
    # Of four records, by bootstrap, and not by a standard error that reaches beyond 1.
    assert (acc["low"], acc["high"]) == (0.25, 1.0)
    assert (perplexity["value"], perplexity["low"], perplexity["less_is_better"]) == (9.0, 9.0, True)
    strict = told["models"]["a"]["sums/exact_match,strict"]
    assert strict["value"] == 0.5 and (strict["low"], strict["high"]) == (0.0, 1.0)
    (less,) = told["differences"].values()
    # Of perplexity there is none: the means of its samples are no perplexities.
    assert {name: one["value"] for name, one in less.items()} == {"choices/acc": 0.5, "sums/exact_match,strict": 0.0}
