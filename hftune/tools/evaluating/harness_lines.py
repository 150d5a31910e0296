"""What lm-eval returns, as lines of `records.jsonl`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

Line = dict[str, Any]
# Of a normal distribution: half the width of an interval that holds 95 % of it.
_DEVIATIONS = 1.96


def lines_of_results(found: Mapping[str, Any]) -> Iterator[Line]:
    """Records of lm-eval's samples, and for each task a line of what it makes of them."""
    for task, figures in found["results"].items():
        samples = found["samples"].get(task, ())
        for sample in samples:
            known = {name: sample[name] for name in sample["metrics"] if isinstance(sample[name], int | float)}
            scores = {_name(task, name, sample["filter"]): float(value) for name, value in known.items()}
            record = f"{task}:{sample['doc_id']}:{sample['filter']}"
            yield {
                "record": record,
                "digest": sample.get("doc_hash", record),
                "source": task,
                "scores": scores,
                "responses": sample["filtered_resps"],
            }
        more_is_better = found["higher_is_better"].get(task) or {}
        told = {}
        for key, value in figures.items():
            name, _, kind = key.partition(",")
            if kind and not name.endswith("_stderr") and isinstance(value, int | float):
                error = figures.get(f"{name}_stderr,{kind}")
                less = more_is_better.get(name) is False
                told[_name(task, name, kind)] = _aggregate(value, error, len(samples), less)
        yield {"record": f"{task}:", "source": task, "scores": {}, "aggregates": told}


def _name(task: str, metric: str, kind: str) -> str:
    """`hellaswag/acc`; with the name of the filter where there is one."""
    return f"{task}/{metric}" if kind == "none" else f"{task}/{metric},{kind}"


def _aggregate(value: float, error: Any, records: int, less: bool) -> dict[str, Any]:
    """A figure of lm-eval's, with the interval of its standard error where there is one."""
    half = _DEVIATIONS * error if isinstance(error, int | float) and math.isfinite(error) else 0.0
    return {
        "value": float(value),
        "low": value - half,
        "high": value + half,
        "records": records,
        "less_is_better": less,
    }
