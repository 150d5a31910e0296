"""The `hftune` command: which subcommands there are, and what is imported for one."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import hftune
from hftune.arguments.entry import parse_arguments
from hftune.arguments.stage_table import STAGES
from hftune.cli import COMMANDS, MEANT, WITHOUT_PAGE, dispatch, main
from hftune.errors import ArgumentError
from hftune.tools.explaining.explain import explain
from hftune.visible import TYPED, as_typed


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ["previev"],
            r"there is no `hftune previev`\n  to do: did you mean `hftune preview`\? one of: pt, .*preview, ",
        ),
        (["quux"], r"there is no `hftune quux`\n  to do: one of: pt, sft, .*merge, "),
        (["reproduce", "outputs/sft"], r"`hftune reproduce` was removed\n  to do: `hftune lineage FOLDER` says "),
        (
            ["export", "lora", "--output_dir", "x"],
            r"`hftune export lora` was removed\n  to do: .*mergekit-extract-lora ",
        ),
        (["export", "quantized"], r"`hftune export quantized` was removed\n  to do: .*BitsAndBytesConfig"),
        (["train"], r"there is no `hftune train`\n  to do: `hftune sft` does that; one of: pt, "),
        (["grpo"], r"`hftune rl` does that"),
        (["--hub_token=x"], r"there is no `hftune --hub_token`\n"),
    ],
)
def test_a_subcommand_that_is_not_there(argv: list[str], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        dispatch(argv)


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"], ["help"]])
def test_help_names_every_subcommand(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(argv)
    page = capsys.readouterr().out
    assert f"hftune {'|'.join(STAGES)}|merge ..." in page
    assert [name for name in COMMANDS if f"hftune {name}" not in page and name != "merge"] == []


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_the_version(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    dispatch([word])
    assert capsys.readouterr().out.strip() == f"hftune {hftune.__version__}"


def test_the_words_behind_the_name_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr("hftune.tools.reporting.page.main", seen.append)
    dispatch(["report", "outputs/lora", "--x"])
    assert seen == [["outputs/lora", "--x"]]


def test_no_tool_is_imported_before_it_is_asked_for() -> None:
    code = "import sys, hftune.cli; print(*(name for name in sys.modules if name.startswith('hftune.tools.')), 'end')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "end"


@pytest.mark.slow
def test_a_refusal_of_a_tool_that_imports_much_is_all_that_is_said() -> None:
    # torchao's log of kernels it cannot load, and torch's of its enums, stood before it.
    asked = [sys.executable, "-c", "from hftune.cli import main; main()", "export", "ggfu"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line]
    assert [line.strip().partition(":")[0] for line in lines] == ["error", "to do"]


@pytest.mark.parametrize("name", WITHOUT_PAGE)
def test_help_of_a_subcommand_without_a_page_is_its_lines(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--help", "-h"):
        dispatch([name, flag])
        lines = capsys.readouterr().out.splitlines()
        assert lines and all(line.startswith(f"hftune {name} ") for line in lines)


def test_words_of_other_tools_lead_to_subcommands() -> None:
    assert {*MEANT.values()} <= {*STAGES, *COMMANDS} and MEANT.keys().isdisjoint({*STAGES, *COMMANDS})


def test_python_runs_the_package() -> None:
    command = [sys.executable, "-m", "hftune", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == f"hftune {hftune.__version__}"


@pytest.mark.parametrize(("typed", "named"), [(True, "hftune dpo"), (False, "run_dpo.py")])
def test_messages_name_what_was_typed(typed: bool, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TYPED, raising=False)
    if typed:
        monkeypatch.setenv(TYPED, "1")
    with pytest.raises(ArgumentError, match=re.escape(f"it belongs to {named}")):
        parse_arguments("sft", ["--simpo_gamma", "1"])
    merged = ArgumentError("x", fix="python merge_peft_adapter.py --output_dir X; see /a/run_sft.py").render()
    assert ("hftune merge --output_dir" in merged) == typed and "/a/run_sft.py" in merged
    launched = "hftune launch deepspeed run_sft.py ..."
    assert as_typed(launched) == launched


def test_the_command_tells_its_stages_that_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet: list[bool] = []
    monkeypatch.setattr("hftune.cli.run_tool", lambda run: quiet or pytest.fail("libraries speak"))
    monkeypatch.setattr("hftune.cli.quiet_libraries", lambda: quiet.append(True))
    for words, told in ((["sft"], True), (["launch", "python", "run_sft.py"], False)):
        monkeypatch.setenv(TYPED, "")
        monkeypatch.delenv(TYPED)
        monkeypatch.setattr(sys, "argv", ["hftune", *words])
        main()
        assert (TYPED in os.environ) == told


def test_a_file_without_config_is_told_where_it_belongs() -> None:
    with pytest.raises(ArgumentError, match=r"write --config mine\.yaml"):
        parse_arguments("sft", ["mine.yaml"])


@pytest.mark.parametrize(
    ("name", "proposed"),
    [
        ("per_device_batch_size", "--per_device_train_batch_size"),
        ("per_device_eval_batchsize", "--per_device_eval_batch_size"),
    ],
)
def test_of_a_pair_of_names_that_of_training_is_proposed(name: str, proposed: str) -> None:
    with pytest.raises(ArgumentError, match=f"did you mean {proposed}"):
        parse_arguments("sft", [f"--{name}", "3"])
    with pytest.raises(ArgumentError, match=f"did you mean {proposed}"):
        dispatch(["explain", name])


@pytest.mark.parametrize("name", ["assistant_only_loss", "dataset_kwargs", "truncation_mode"])
def test_what_a_run_refuses_explain_says(name: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        parse_arguments("sft", [f"--{name}", '{"a": 1}' if name == "dataset_kwargs" else "True"])
    because = refused.value.cause.partition(": ")[2] or str(refused.value)
    assert "refused" in explain(name) and because in explain(name)
