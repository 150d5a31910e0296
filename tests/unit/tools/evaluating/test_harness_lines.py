"""lm-eval's results as lines, and the figures that become of them, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.tools.evaluating.results import lines_of_results, results


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


def test_a_figure_that_is_no_mean_has_its_standard_error() -> None:
    told = found(3)
    told["results"]["choices"] |= {"f1,none": 0.5, "f1_stderr,none": 0.1}
    lines = [{"model": "a", **line} for line in lines_of_results(told)]
    f1 = results(lines, None, [])["models"]["a"]["choices/f1"]
    assert (f1["value"], f1["low"], f1["high"]) == pytest.approx((0.5, 0.304, 0.696))
