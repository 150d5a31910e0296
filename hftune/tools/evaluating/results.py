"""What an evaluation found: figures of each model and task, differences, and the files that keep them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hftune.checkpoints.manifest import read_manifest
from hftune.errors import ArgumentError, ManifestError
from hftune.logging import notice
from hftune.opening.files import read_bytes
from hftune.opening.json_file import LARGE, parse_json
from hftune.tools.evaluating.figures import difference, figure
from hftune.tools.reporting.stages import EVALUATED

RECORDS = "records.jsonl"
"""The file of a folder of `hftune evaluate` with its records."""

Line = Mapping[str, Any]
"""Of one record: `model`, `record`, `digest`, `source`, `weight` (1 where it is missing) and `scores` by task."""
Scores = dict[str, tuple[float, float]]
"""Of one task: a record's digest, numbered where several records are alike, to score and weight."""


def is_evaluation(folder: str) -> bool:
    """Whether a folder is an output of `hftune evaluate`."""
    return (read_manifest(folder) or {}).get("stage") == EVALUATED


def lines_of(folder: str) -> list[Line]:
    """The records of an earlier evaluation of one model.

    Raises:
        ArgumentError: It is of several.
        ManifestError: It holds something else.
    """
    file = Path(folder) / RECORDS
    found: list[Line] = [
        parse_json(line, str(file), finite=False) for line in read_bytes(file, limit=LARGE).splitlines()
    ]
    if not all(map(_is_line, found)):
        cause = f"{file} holds other lines than those that hftune evaluate writes"
        raise ManifestError(cause, place="--against", fix="evaluate that model again")
    if len({line["model"] for line in found}) > 1:
        fix = "name the model itself, or an evaluation of one model"
        raise ArgumentError(f"{folder} is an evaluation of several models", place="--against", fix=fix)
    return found


def _is_line(line: Line) -> bool:
    """Whether a line has the form of a record's: the folder may have come from anywhere."""
    scores, texts = line.get("scores"), [line.get(name) for name in ("model", "record", "source")]
    texts.append(line.get("digest", ""))
    if not isinstance(scores, dict) or not all(isinstance(text, str) for text in texts):
        return False
    weight = line.get("weight", 1)
    numbers = all(isinstance(one, int | float) for one in (weight, *scores.values()))
    return numbers and 0 < weight < math.inf


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
        found[task] = figure(values, weights).to_dict()
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
            if own is not None and math.isclose(own.value, told["value"], rel_tol=1e-6, abs_tol=1e-9):
                found[name] = {**told, "low": own.low, "high": own.high}
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
        mine, other = ([one[side][0] for one in pairs] for side in (0, 1))
        found[task] = difference(mine, other, [one[0][1] for one in pairs]).to_dict()
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


def results_text(found: Mapping[str, Any]) -> str:
    """`evaluation.json` as it is written."""
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
