"""Arguments are asked of the scripts' own parsers, each with its line; and every shipped example passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune import child_processes
from hftune.errors import ArgumentError, Preempted
from hftune.tools.pipeline.checking import check_apart, check_steps, missing_files, stage_problems
from hftune.tools.pipeline.spec import read_spec
from hftune.tools.pipeline.steps import steps_of
from tests.unit.tools.pipeline.files import steps

ROOT = Path(__file__).parents[4]
EXAMPLES = sorted((ROOT / "examples" / "pipelines").glob("*.yaml"))

WRONG = """
model: base
output_dir: out
stages:
  sft:
    learnig_rate: 1e-3
    max_steps: many
    lora: true
    use_dora: perhaps
    pipeline_model_parallel_size: 2
    merge: {dtype: int3, verfy: true}
"""


def test_every_problem_has_its_line(tmp_path: Path) -> None:
    sft, merge = steps(tmp_path, WRONG)
    found = [*stage_problems(sft.script, sft.arguments, sft.places, (1, 1))]
    told = {str(problem.place).rsplit(":", 1)[1]: problem.render() for problem in found}
    assert "did you mean --learning_rate?" in told["6"] and "--max_steps cannot be 'many'" in told["7"]
    assert "use_dora" in told["9"] and "pipeline_model_parallel_size" in told["10"]
    merge_told = [problem.render() for problem in stage_problems(merge.script, merge.arguments, merge.places, (1, 1))]
    assert any("int3" in text for text in merge_told) and any("verify" in text for text in merge_told)


def test_arguments_that_do_not_go_together(tmp_path: Path) -> None:
    text = "model: base\noutput_dir: out\nstages:\n  sft:\n    use_peft: true\n    train_new_tokens_only: true\n"
    step = steps(tmp_path, text)[0]
    (problem,) = stage_problems(step.script, step.arguments, step.places, None)
    assert "LoRA trains more than the new rows" in problem.cause and str(problem.place).endswith(":5")


@pytest.mark.parametrize(("code", "ends"), [(2, SystemExit), (130, Preempted), (-2, Preempted)])
def test_what_the_process_says_ends_this_one(code: int, ends: type, monkeypatch: pytest.MonkeyPatch) -> None:
    done = child_processes.CompletedProcess([], code)
    monkeypatch.setattr(child_processes, "run", lambda command, **given: done)
    with pytest.raises(ends):
        check_apart(Path("p.yaml"))
    done.returncode = 0
    check_apart(Path("p.yaml"))


def test_what_is_asked_is_checked_as_well(tmp_path: Path) -> None:
    text = "model: b\noutput_dir: o\nstages:\n  sft: {}\nanswers:\n  qestions: [a]\n  max_new_tokens: few\n"
    text += "  question_file: ./none\n"
    ask = steps(tmp_path, text)[-1]
    found = [*stage_problems(ask.script, ask.arguments, ask.places, None), *missing_files(ask)]
    told = {str(problem.place).rsplit(":", 1)[1]: problem.render() for problem in found}
    assert "did you mean --questions?" in told["6"] and "'few'" in told["7"] and "no ./none" in told["8"]


def test_records_that_are_not_there(tmp_path: Path) -> None:
    text = "model: b\noutput_dir: o\nstages:\n  sft:\n    train_file_dir: ./none#5,org/name\n"
    with pytest.raises(ArgumentError, match=r"there is no \./none\n.*pipeline.yaml:5"):
        check_steps(steps(tmp_path, text))


@pytest.mark.parametrize("more", ["train_file_dir: 's3://bucket/a.jsonl,own'", "dataset_dir: data"])
def test_what_lies_elsewhere_is_not_missing(tmp_path: Path, more: str) -> None:
    # A registry knows its names, a store its files: the stage asks them.
    text = f"model: m\noutput_dir: o\nstages:\n  sft:\n    train_file_dir: identity\n    {more}\n"
    text = text.replace("    train_file_dir: identity\n", "") if "bucket" in more else text
    found = list(missing_files(steps(tmp_path, text)[0]))
    assert [problem.cause for problem in found] == (["there is no own"] if "bucket" in more else [])


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_the_examples_pass(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    check_steps(steps_of(read_spec(file)))
