"""Gates: the rule on made-up figures, the steps that evaluate, and a pipeline that stops."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hftune.constants import GATE_EXIT_CODE, USER_ERROR_EXIT_CODE
from hftune.errors import ArgumentError
from hftune.tools.pipeline.command import in_small
from hftune.tools.pipeline.gates import Gate, GateFailed, check_gates, failures
from hftune.tools.pipeline.runner import Runner
from hftune.tools.pipeline.steps import Step
from tests.unit.tools.pipeline.files import by_name, finish, model, steps
from tests.unit.tools.pipeline.test_runner import Ended


def interval(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


@pytest.mark.parametrize(
    ("gate", "now", "less", "why"),
    [
        (Gate("math", least=0.3), interval(0.25, 0.2, 0.29), None, ["below 0.3000"]),
        (Gate("loss", most=2), interval(2.2, 2.1, 2.3), None, ["above 2"]),
        (Gate("math", drop=0), interval(0.2, 0.1, 0.3), interval(-0.1, -0.2, 0.0), []),  # may be noise
        (Gate("math", drop=0), interval(0.2, 0.1, 0.3), interval(-0.1, -0.2, -0.01), ["worse by more than 0"]),
        (Gate("math", drop=0.05), interval(0.2, 0.1, 0.3), interval(-0.1, -0.2, -0.01), []),  # allowed
        (Gate("loss", drop=0.05), interval(2, 1.9, 2.1), interval(0.1, 0.06, 0.2), ["worse by more than 0.0500"]),
        (Gate("loss", drop=0), interval(2, 1.9, 2.1), interval(2e-5, 1e-5, 3e-5), []),  # rounding
        (Gate("loss", drop=0.05), interval(2, 1.9, 2.1), None, ["does not compare with before"]),
        (Gate("math", 0.3, None, 0), interval(0.1, 0, 0.2), interval(-1, -1, -1), ["below 0.3000", "worse by"]),
    ],
)
def test_the_rule(gate: Gate, now: dict[str, float], less: dict[str, float] | None, why: list[str]) -> None:
    found = list(failures(gate, now | {"less_is_better": gate.task.startswith("loss")}, less))
    assert len(found) == len(why) and all(told.startswith(said) for told, said in zip(found, why, strict=True))


EVALUATED = """
model: base
output_dir: out
shared: {use_peft: true}
evaluate: {validation_file_dir: held_out, eval_tasks: [loss, math], max_new_tokens: 9}
stages:
  pt: {train_file_dir: data, merge: false}
  sft: {train_file_dir: data, gate: {math: {min: 0.1, drop: 0.02}, loss/a.jsonl: {drop: 0}}}
  rm: {train_file_dir: data}
  dpo: {from: pt, train_file_dir: data}
"""


def test_every_model_is_evaluated_once(tmp_path: Path) -> None:
    found = steps(tmp_path, EVALUATED)
    assert [step.name for step in found] == [
        *("evaluate base", "pt", "evaluate pt", "sft", "merge sft", "evaluate sft", "rm", "merge rm"),
        *("dpo", "merge dpo", "evaluate dpo"),
    ]
    named = by_name(found)
    assert named["evaluate base"].command() == [
        *("hftune", "evaluate", "--models", "base", "--validation_file_dir", "held_out"),
        *("--eval_tasks", "loss", "math", "--max_new_tokens", "9", "--output_dir", "out/base-evaluated"),
    ]
    told = {name: step.arguments for name, step in named.items() if name.startswith("evaluate")}
    assert told["evaluate pt"]["models"] == ["out/pt"], "an adapter that is not merged"
    assert told["evaluate sft"]["models"] == ["out/sft-merged"]
    against = {name: given.get("against") for name, given in told.items()}
    assert against == {
        "evaluate base": None,
        "evaluate pt": ["out/base-evaluated"],
        "evaluate sft": ["out/pt-evaluated"],
        "evaluate dpo": ["out/pt-evaluated"],
    }
    assert named["evaluate sft"].needs == ("sft", "merge sft", "evaluate pt")
    assert named["evaluate sft"].gates == (Gate("math", 0.1, None, 0.02), Gate("loss/a.jsonl", drop=0.0))
    assert [step.name for step in found if step.gates] == ["evaluate sft"]


def test_what_a_dry_run_evaluates_opens_no_gate(tmp_path: Path) -> None:
    found = steps(tmp_path, EVALUATED)
    small = in_small(by_name(found)["evaluate sft"])
    assert small.gates == () and small.arguments["max_eval_samples"] == ["8"]
    assert small.arguments["max_new_tokens"] == ["2"]
    # Held-out records are limited where there are some.
    trained = [in_small(step) for step in found if step.trains]
    held_out = {step.name: "validation_file_dir" in step.arguments for step in trained}
    assert {step.name: "max_eval_samples" in step.arguments for step in trained} == held_out and trained


def test_an_evaluation_has_a_launcher_of_its_own(tmp_path: Path) -> None:
    """That of the stages starts none: left out, it is one process."""
    stages = EVALUATED.replace("evaluate:", "launcher: {torchrun: {nproc_per_node: 4}}\nevaluate:")
    found = by_name(steps(tmp_path, stages))
    assert found["sft"].command()[0] == "torchrun" and found["evaluate sft"].command()[:2] == ["hftune", "evaluate"]
    text = stages.replace("max_new_tokens: 9", "launcher: {deepspeed: {num_gpus: 2}}")
    for name in ("evaluate base", "evaluate sft"):
        command = by_name(steps(tmp_path, text))[name].command()
        assert command[:6] == ["deepspeed", "--num_gpus", "2", "--no_local_rank", "--module", "hftune.cli"]
        assert command[6:8] == ["evaluate", "--models"] and "--launcher" not in command
    with pytest.raises(ArgumentError, match="there is no launcher mpirun"):
        steps(tmp_path, text.replace("{deepspeed: {num_gpus: 2}}", "mpirun"))


def test_a_sweep_evaluates_what_it_begins_with_once(tmp_path: Path) -> None:
    text = EVALUATED.replace("evaluate:", "matrix: {rank: [4, 8]}\nevaluate:").replace(
        "sft: {", "sft: {lora_rank: '${rank}', "
    )
    names = [step.name for step in steps(tmp_path, text) if step.name.startswith("evaluate")]
    assert names.count("evaluate base") == names.count("evaluate pt") == 1
    assert {"evaluate rank=4/sft", "evaluate rank=8/sft"} <= {*names}


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        ("math: {min", "maths: {min", 8, "maths is not evaluated"),
        ("min: 0.1", "least: 0.1", 8, "no such limit"),
        ("min: 0.1, drop: 0.02", "", 8, "no such limit"),
        ("drop: 0.02", "drop: -0.02", 8, "no such limit"),
        ("min: 0.1", "min: true", 8, "no such limit"),
        ("rm: {", "rm: {gate: {loss: {drop: 0}}, ", 9, "language models are evaluated"),
        ("max_new_tokens: 9", "models: [a]", 5, "cannot set models"),
        ("evaluate: {validation_file_dir: held_out, eval_tasks: [loss, math], max_new_tokens: 9}\n", "", 7, "gate"),
    ],
)
def test_what_is_wrong_has_a_line(before: str, after: str, line: int, words: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError) as refused:
        steps(tmp_path, EVALUATED.replace(before, after))
    assert words in str(refused.value) and f"pipeline.yaml:{line}" in str(refused.value)


def evaluation(step: Step, value: float, less: float) -> None:
    """What an evaluation would have left."""
    figures = {task: interval(value, value - 0.01, value + 0.01) for task in ("math", "loss/a.jsonl", "loss")}
    differences = {"m": {"math": interval(less, less - 0.01, less + 0.01), "loss/a.jsonl": interval(0, 0, 0)}}
    found: dict[str, Any] = {"models": {"m": figures}, "differences": differences}
    step.folder.mkdir(parents=True)
    (step.folder / "evaluation.json").write_text(json.dumps(found))
    finish(step)


def test_a_stage_that_hurts_stops_the_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model(tmp_path / "base")
    text = EVALUATED.replace("model: base", f"model: {tmp_path}/base").replace(
        "output_dir: out", f"output_dir: {tmp_path}/out"
    )
    less, started = 0.0, []

    def start(command: Sequence[str], env: Mapping[str, str], log: Path) -> Ended:
        step = next(step for step in found if f"--output_dir {step.folder} " in f"{' '.join(command)} ")
        started.append(step.name)
        (evaluation(step, 0.5, less) if step.name.startswith("evaluate") else finish(step))
        return Ended(0)

    def run(**options: bool) -> list[str]:
        started.clear()
        Runner(tmp_path / "out", start=start, **options).run(found)
        return started

    found, less = steps(tmp_path, text), -0.1
    with pytest.raises(GateFailed) as stopped:
        run()
    assert started[-1] == "evaluate sft" and stopped.value.exit_code == GATE_EXIT_CODE == 3 != USER_ERROR_EXIT_CODE
    said = stopped.value.render()
    assert "sft hurt math more than its gate allows" in said and "--ignore_gates" in said
    assert "-0.1000 [-0.1100, -0.0900]" in said and "worse by more than 0.0200" in said and "passed" in said
    # It is not forgotten when nothing is left to run.
    with pytest.raises(GateFailed):
        run()
    assert started == []
    assert run(ignore_gates=True) == ["rm", "merge rm", "dpo", "merge dpo", "evaluate dpo"]
    # A gate that asks for less needs no evaluation again.
    found = steps(tmp_path, text.replace("drop: 0.02", "drop: 0.1"))
    assert run() == []


def test_a_gate_of_something_that_was_not_measured(tmp_path: Path) -> None:
    evaluation(steps(tmp_path, EVALUATED.replace("output_dir: out", f"output_dir: {tmp_path}/out"))[0], 0.5, 0)
    with pytest.raises(ArgumentError, match=r"one of: math, loss/a\.jsonl, loss"):
        check_gates([Gate("loss/b.jsonl", drop=0)], "sft", tmp_path / "out/base-evaluated")
    assert check_gates([], "sft", tmp_path / "nothing") == ""
