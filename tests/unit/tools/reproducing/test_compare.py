"""Two logs and two manifests next to each other."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.tools.reproducing.compare import Difference, differences, environment, steps_of, verdict

LINES: list[dict[str, Any]] = [
    {"began": True, "step": 0},
    {"step": 1, "loss": 3.0, "grad_norm": 2.0, "learning_rate": 1e-3, "batch": 11, "time": 1.0},
    {"step": 2, "loss": 9.0, "grad_norm": 9.0, "batch": 99},
    {"step": 2, "eval_loss": 4.0},
    {"began": True, "step": 1},
    {"step": 2, "loss": 2.0, "grad_norm": 1.0, "learning_rate": 5e-4, "batch": 12},
]


def changed(step: int, **values: float) -> dict[int, dict[str, float]]:
    found = steps_of(LINES)
    found[step] = found[step] | values
    return found


def test_of_a_step_that_was_made_again_the_last_log_counts() -> None:
    assert steps_of(LINES) == {
        1: {"batch": 11, "loss": 3.0, "grad_norm": 2.0, "learning_rate": 1e-3},
        2: {"batch": 12, "loss": 2.0, "grad_norm": 1.0, "learning_rate": 5e-4},
    }


def test_the_same_logs() -> None:
    same, said = verdict(steps_of(LINES), steps_of(LINES), 0.0)
    assert same and said[0] == "2 logs compared, of steps 1 to 2"
    assert "  loss: the same to the last bit" in said and "  data order: the same to the last bit" in said
    assert not any("reward" in line for line in said)


def test_the_first_step_and_in_it_the_cause_comes_first() -> None:
    now = changed(1, batch=13, loss=3.5)
    assert [(one.step, one.name) for one in differences(steps_of(LINES), now, 0.0)] == [(1, "batch"), (1, "loss")]
    same, said = verdict(steps_of(LINES), now, 0.0)
    assert not same and said[1] == "first difference: step 1: other records, or in another order"
    assert "  data order: 1 of 2 differ" in said
    assert "  loss: 1 of 2 differ, by 1.4e-01 at most" in said  # 0.5 of 3.5
    assert "  gradient norm: the same to the last bit" in said


@pytest.mark.parametrize(("tolerance", "same"), [(0.0, False), (0.49e-3, False), (0.51e-3, True)])
def test_a_tolerance_is_relative(tolerance: float, same: bool) -> None:
    now = changed(2, loss=2.001)  # 0.001 of 2.001
    assert verdict(steps_of(LINES), now, tolerance)[0] is same


def test_data_order_has_no_tolerance() -> None:
    assert not verdict(steps_of(LINES), changed(2, batch=13), 0.5)[0]


def test_one_bit_is_a_difference_and_no_number_equals_itself() -> None:
    assert len(list(differences(steps_of(LINES), changed(2, loss=2.0000000000000004), 0.0))) == 1
    nan = changed(2, loss=float("nan"))
    assert list(differences(nan, nan, 0.0)) == []
    assert "was 2.0, is nan" in str(next(differences(steps_of(LINES), nan, 0.9)))


def test_steps_of_one_run_alone_are_not_compared() -> None:
    short = {1: steps_of(LINES)[1]}
    assert verdict(steps_of(LINES), short, 0.0) == (True, verdict(short, short, 0.0)[1])
    same, said = verdict(steps_of(LINES), {}, 0.0)
    assert not same and "no step was logged by both" in said[0]


def test_a_log_without_digests() -> None:
    old = {1: {"loss": 3.0}}
    same, said = verdict(old, {1: {"loss": 3.0, "batch": 7}}, 0.0)
    assert same and "  data order: not logged by the version of hftune that made the run" in said


def test_sizes_are_of_the_larger_number() -> None:
    assert Difference(1, "loss", -4.0, 1.0).size == Difference(1, "loss", 1.0, -4.0).size == 1.25
    assert Difference(1, "batch", 4.0, 5.0).size == float("inf")
    assert str(Difference(3, "loss", 4.0, 1.0)) == "step 3: loss was 4.0, is 1.0 (7.5e-01 relative)"


MANIFEST: dict[str, Any] = {
    "versions": {"torch": "2.13.0", "trl": "1.7.0"},
    "machine": {"processor": "A", "threads": 2},
    "world_size": 2,
    "arguments": {"data": {"max_length": 9}, "training": {"output_dir": "out", "seed": 42, "logging_dir": "out/runs"}},
    "data": {"train": {"fingerprint": "aa", "used": 20, "files": ["x"]}},
    "base": {"name": "m", "fingerprint": "bb"},
    "tokenizer": {"fingerprint": "cc"},
}


def other(**changes: Any) -> dict[str, Any]:
    found = {name: dict(value) if isinstance(value, dict) else value for name, value in MANIFEST.items()}
    for name, change in changes.items():
        found[name] = {**found[name], **change} if isinstance(change, dict) else change
    return found


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"versions": {"trl": "1.6.0"}}, "versions trl: was 1.7.0, is 1.6.0"),
        ({"machine": {"threads": 1}}, "machine threads: was 2, is 1"),
        ({"world_size": 1}, "processes: was 2, is 1"),
        ({"data": {"train": {"fingerprint": "ab", "used": 20}}}, "data train fingerprint: was aa, is ab"),
        ({"base": {"fingerprint": "bc"}}, "model fingerprint: was bb, is bc"),
        ({"tokenizer": {"fingerprint": "cd"}}, "tokenizer fingerprint: was cc, is cd"),
    ],
)
def test_what_was_different_is_named(changes: dict[str, Any], line: str) -> None:
    assert list(environment(MANIFEST, other(**changes))) == [line]


def test_arguments_are_compared_without_what_follows_the_folder() -> None:
    now = other(arguments={"training": {"output_dir": "again", "seed": 7, "new": 1, "cache": "again/c"}})
    then = other(arguments={"training": {"output_dir": "out", "seed": 42, "old": 1, "cache": "out/c"}})
    assert list(environment(then, now)) == ["arguments seed: was 42, is 7"]
    assert list(environment(MANIFEST, other())) == []


def test_a_library_that_is_gone_and_a_manifest_without_a_machine() -> None:
    now = other()
    del now["versions"]["trl"]
    then = other()
    del then["machine"]
    assert list(environment(MANIFEST, now)) == ["versions trl: was 1.7.0, is missing"]
    assert list(environment(then, now))[-1] == "machine: not recorded by the version of hftune that made the run"
