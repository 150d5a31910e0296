"""The records of an earlier evaluation, which may have come from anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hftune.errors import UserError
from hftune.logging import notices
from hftune.tools.evaluating.results import RECORDS, lines_of, results

LINE = {"model": "m", "record": "d:1", "source": "d", "weight": 3, "scores": {"loss": 0.5}}


def write(folder: Path, *lines: object) -> str:
    (folder / RECORDS).write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(folder)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    without = {name: value for name, value in LINE.items() if name != "weight"}
    folder = write(tmp_path, LINE, without | {"scores": {"exact_match": 1, "loss": float("nan")}})
    assert len(lines_of(folder)) == 2
    assert results(lines_of(folder), None, [])["models"]["m"]["exact_match"]["value"] == 1


@pytest.mark.parametrize(
    "line",
    [
        *("[]", "5", "null", "{}", "no JSON", "[" * 5000, "\x00"),
        *(LINE | {name: value} for name in ("model", "record", "source") for value in (None, 5, [], {"a": 1})),
        *(LINE | {"scores": value} for value in (None, [], 5, {"loss": "x"}, {"loss": None}, {"loss": [1]})),
        *(LINE | {"weight": value} for value in (0, -1, "x", None, [], float("nan"), float("inf"))),
    ],
)
def test_what_is_no_record_is_refused(line: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        lines_of(write(tmp_path, LINE, line))


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
