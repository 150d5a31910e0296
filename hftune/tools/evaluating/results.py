"""What an evaluation found: figures of each model and task with intervals, differences, and the files that keep them.

An interval holds 95 % of the figures of 2000 bootstrap samples of the records (Efron 1979); of a difference both models
are given the same samples, so that what is hard in a record for both does not widen it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hftune.checkpoints.manifest import read_manifest
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.opening.files import read_bytes
from hftune.opening.json_file import LARGE, parse_json
from hftune.tools.reporting.stages import EVALUATED

RECORDS = "records.jsonl"
"""The file of a folder of `hftune evaluate` with its records."""

Line = Mapping[str, Any]
"""Of one record: `model`, `record`, `digest`, `source`, `weight` (1 where it is missing) and `scores` by task."""
Scores = dict[str, tuple[float, float]]
"""Of one task: a record's digest, numbered where several records are alike, to score and weight."""
SAMPLES, SHARE = 2000, 0.95
_SEED = 0
# Of the counts of a block of samples.
_BLOCK_BYTES = 1 << 25


def figure(values: Sequence[float], weights: Sequence[float] | None = None) -> dict[str, float]:
    """The mean of values, each with a weight, such as the loss of a record with its trained tokens.

    Args:
        values: One a record, at least one.
        weights: Above 0; None: 1 each.

    Returns:
        value, low and high (the ends of the interval that it lies in), and how many records it is of.
    """
    of = np.asarray(values, dtype=np.float64)
    weight = np.ones(len(of)) if weights is None else np.asarray(weights, dtype=np.float64)
    assert len(of) == len(weight) > 0, "a weight a record"
    # The same for all figures of as many records: two models are given the same samples.
    random = np.random.default_rng(_SEED)
    block = max(1, _BLOCK_BYTES // (8 * len(of)))
    means = []
    for start in range(0, SAMPLES, block):
        chances = np.full(len(of), 1 / len(of))
        counts = random.multinomial(len(of), chances, size=min(block, SAMPLES - start))
        means.append(counts @ (weight * of) / (counts @ weight))
    low, high = np.quantile(np.concatenate(means), [(1 - SHARE) / 2, (1 + SHARE) / 2])
    value = float(weight @ of / weight.sum())
    return {"value": value, "low": float(low), "high": float(high), "records": len(of)}


def is_evaluation(folder: str) -> bool:
    """Whether a folder is an output of `hftune evaluate`."""
    return (read_manifest(folder) or {}).get("stage") == EVALUATED


def lines_of(folder: str) -> list[Line]:
    """The records of an earlier evaluation of one model.

    Raises:
        ArgumentError: It is of several.
    """
    file = Path(folder) / RECORDS
    found: list[Line] = [parse_json(line, str(file)) for line in read_bytes(file, limit=LARGE).splitlines()]
    if len({line["model"] for line in found}) > 1:
        fix = "name the model itself, or an evaluation of one model"
        raise ArgumentError(f"{folder} is an evaluation of several models", place="--against", fix=fix)
    return found


def lines_of_results(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
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
                ends = dict.fromkeys(("value", "low", "high"), float(value))
                less = more_is_better.get(name) is False
                told[_name(task, name, kind)] = {**ends, "records": len(samples), "less_is_better": less}
        yield {"record": f"{task}:", "source": task, "scores": {}, "aggregates": told}


def _name(task: str, metric: str, kind: str) -> str:
    """`hellaswag/acc`; with the name of the filter where there is one."""
    return f"{task}/{metric}" if kind == "none" else f"{task}/{metric},{kind}"


def by_task(lines: Iterable[Line]) -> dict[str, Scores]:
    """The scores of one model by task; where there are several sources, also by `TASK/SOURCE`."""
    lines = list(lines)
    several = len({line["source"] for line in lines if "loss" in line["scores"]}) > 1
    found: dict[str, Scores] = {}
    alike: Counter[tuple[str, str]] = Counter()
    for line in lines:
        # By the digest of its contents: in the other evaluation another record may have its file and line.
        known = line.get("digest", line["record"])
        for task, score in line["scores"].items():
            names = [task, f"{task}/{line['source']}"] if several and task == "loss" else [task]
            for name in names:
                alike[name, known] += 1
                found.setdefault(name, {})[f"{known} {alike[name, known]}"] = float(score), float(line.get("weight", 1))
    return found


def figures_of(scores: Mapping[str, Scores]) -> dict[str, dict[str, float]]:
    """The figure of each task; of losses also the perplexity."""
    found = {}
    for task, records in scores.items():
        values, weights = zip(*records.values(), strict=True)
        found[task] = figure(values, weights)
        if task.partition("/")[0] == "loss":
            found[task]["less_is_better"] = True
            found[task]["perplexity"] = math.exp(min(found[task]["value"], 700.0))
    return found


def aggregates_of(lines: Iterable[Line], scores: dict[str, Scores]) -> dict[str, dict[str, float]]:
    """The figures that lm-eval makes of its records; of those that are means, with the interval of the records.

    Scores of which the figure is no mean are taken out of `scores`: their differences would be of something else.
    """
    found = {}
    for line in lines:
        for name, told in line.get("aggregates", {}).items():
            own = figure([score for score, _ in scores[name].values()]) if name in scores else None
            if own is not None and math.isclose(own["value"], told["value"], rel_tol=1e-6, abs_tol=1e-9):
                found[name] = {**told, "low": own["low"], "high": own["high"]}
            else:
                scores.pop(name, None)
                found[name] = dict(told)
    return found


def differences_of(ours: Mapping[str, Scores], theirs: Mapping[str, Scores]) -> dict[str, dict[str, float]]:
    """The difference of each task that both have of the same records."""
    found = {}
    for task in ours:
        there = theirs.get(task, {})
        shared = [record for record in ours[task] if record in there]
        if there and not len(shared) == len(there) == len(ours[task]):
            told = "the difference is over those" if shared else "there is no difference to take"
            counts = f"{len(shared)} of {len(ours[task])} records here and of {len(there)} there are the same"
            notice(f"{task}: {counts}: {told}")
        if not shared:
            continue
        pairs = [(ours[task][record], there[record]) for record in shared]
        if any(one[0][1] != one[1][1] for one in pairs):
            notice(f"{task}: the models have other tokens, and losses of other tokens do not compare")
            continue
        found[task] = figure([mine[0] - other[0] for mine, other in pairs], [mine[1] for mine, _ in pairs])
    return found


def results(lines: Sequence[Line], against: str | None, other: Sequence[Line]) -> dict[str, Any]:
    """What `evaluation.json` holds.

    Args:
        lines: Of all models.
        against: What they are compared with.
        other: Its lines.
    """
    models = list(dict.fromkeys(line["model"] for line in lines))
    own_lines = {model: [line for line in lines if line["model"] == model] for model in models}
    scores = {model: by_task(own) for model, own in own_lines.items()}
    figures = {model: figures_of(own) | aggregates_of(own_lines[model], own) for model, own in scores.items()}
    found: dict[str, Any] = {"models": figures, "against": against}
    if against is not None:
        theirs = by_task(other)
        found["differences"] = {model: differences_of(own, theirs) for model, own in scores.items() if model != against}
    return found
