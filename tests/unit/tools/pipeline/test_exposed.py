"""Secrets of a pipeline: known before anything is told, and on no command line, log, `ps` or name of a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hftune import child_processes, secrets
from hftune.errors import ArgumentError
from hftune.logging import notices
from hftune.secrets import redact
from hftune.tools.pipeline import checking
from hftune.tools.pipeline.checking import check_steps, exposures, say_variables_not_passed_on, with_quiet_token
from hftune.tools.pipeline.command import main
from hftune.tools.pipeline.step import PRINTED, Launcher, Step
from tests.unit.tools.pipeline.files import steps

HUSH = "hush/Zq7+v3ry=quiet"
TOP = "model: base\noutput_dir: out\n"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("sys.argv", ["hftune"])
    secrets.forget()
    yield
    secrets.forget()


EVERYWHERE = {
    "a stage": f"stages:\n  sft: {{hub_token: '{HUSH}'}}\n",
    "shared": f"shared: {{hub_token: '{HUSH}'}}\nstages:\n  sft: {{}}\n",
    "a number": "stages:\n  sft: {hub_token: 1234567890}\n",
    "env": f"env: {{DB_PASS: '{HUSH}'}}\nstages:\n  sft: {{}}\n",
    "env of a stage": f"stages:\n  sft: {{env: {{MYSQL_PWD: '{HUSH}'}}}}\n",
    "a value": f"values: {{x: '{HUSH}'}}\nstages:\n  sft: {{hub_token: '${{x}}'}}\n",
    "a merge": f"stages:\n  sft: {{use_peft: true, merge: {{hf_hub_token: '{HUSH}'}}}}\n",
    "merge of all": f"merge: {{hf_hub_token: '{HUSH}'}}\nstages:\n  sft: {{use_peft: true}}\n",
    "answers": f"stages:\n  sft: {{}}\nanswers: {{questions: [a], hub_token: '{HUSH}'}}\n",
    "answers by value": f"values: {{x: '{HUSH}'}}\nstages:\n  sft: {{}}\nanswers: {{hub_token: '${{x}}'}}\n",
    "answers in a URL": f"stages:\n  sft: {{}}\nanswers: {{question_file: 's3://me:{HUSH.replace('/', '%2F')}@h/x'}}\n",
    "a launcher": f"launcher: {{srun: {{export: 'ALL,OPENAI_KEY={HUSH}'}}}}\nstages:\n  sft: {{}}\n",
    "deep": f"stages:\n  sft: {{model_init_kwargs: {{a: [{{token: '{HUSH}'}}]}}}}\n",
    "unused": f"values: {{hub_token: '{HUSH}'}}\nstages:\n  sft: {{}}\n",
}


@pytest.mark.parametrize("place", EVERYWHERE)
def test_a_secret_of_any_part_is_known(place: str, tmp_path: Path) -> None:
    steps(tmp_path, TOP + EVERYWHERE[place])
    assert redact(f"a {HUSH} 1234567890") in ("a *** 1234567890", f"a {HUSH} ***")


@pytest.mark.parametrize(
    "text",
    (
        f"stages:\n  sft: {{hub_token: '{HUSH}', launcher: '{HUSH}'}}\n",
        f"stages:\n  sft: {{hub_token: '{HUSH}'}}\n  dpo: {{from: '{HUSH}'}}\n",
        f"values: {{x: '{HUSH}'}}\nstages:\n  sft: {{hub_token: '${{x}}'}}\n  dpo: {{from: '{HUSH}'}}\n",
        f"stages:\n  sft: {{script: '{HUSH}', hub_token: '{HUSH}'}}\n",
        f"env: {{DB_PASS: '{HUSH}'}}\nstages:\n  sft: {{seed: '${{{HUSH}}}'}}\n",
        "stages:\n  sft: {hub_token:hush1}\n",
        "shared: {hub_token:hush1}\nstages:\n  sft: {}\n",
        "stages:\n  sft: {}\nanswers: {hub_token:hush1}\n",
        "stages:\n  sft:\n    ? [hush1]\n    : 2\n",
    ),
)
def test_what_is_wrong_tells_none(text: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError) as caught:
        steps(tmp_path, TOP + text)
    told = redact(caught.value.render())
    assert "hush" not in told and "pipeline.yaml:" in told


CONFIG = json.dumps({"comet": {"api_key": HUSH}})
SHOWN = {
    "DeepSpeed": (f"deepspeed: {CONFIG}", "COMET_API_KEY"),
    "DeepSpeed as text": (f"deepspeed: '{CONFIG}'", "write the config to a file"),
    "a list in it": (f"deepspeed: {{a: [{{passwords: ['{HUSH}', b]}}]}}", "write the config to a file"),
    "short": ("deepspeed: {comet: {api_key: ab}}", "write the config to a file"),
    "another": (f"wandb_api_key: '{HUSH}'", "in a variable"),
    "arguments": (f"model_init_kwargs: {{token: '{HUSH}'}}", "HF_TOKEN"),
    "a URL": ("train_file_dir: s3://me:pw@host/x", "in a variable"),
}


@pytest.mark.parametrize(
    ("action", "kind"), [*(("check", kind) for kind in SHOWN), *((verb, "short") for verb in ("plan", "run --dry_run"))]
)
def test_what_a_command_line_would_show_is_refused(
    kind: str, action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything starts, be it only the parsers."""
    monkeypatch.setattr(child_processes, "run", lambda *args, **more: pytest.fail("something was started"))
    monkeypatch.setattr(child_processes, "start", lambda *args, **more: pytest.fail("something was started"))
    line, way_out = SHOWN[kind]
    file = tmp_path / "p.yaml"
    file.write_text(f"model: base\noutput_dir: {tmp_path}/out\nstages:\n  sft:\n    {line}\n")
    verb, *flags = action.split()
    with pytest.raises(ArgumentError) as caught:
        main([verb, str(file), *flags])
    told = redact(caught.value.render())
    assert "holds a secret" in told and way_out in told and f"{file}:5" in told
    assert HUSH not in told and "pw@" not in told


@pytest.mark.parametrize(
    "text",
    (
        "stages:\n  sft: {deepspeed: {zero_optimization: {stage: 2}}, pad_token: <pad>, max_steps: 5}\n",
        f"stages:\n  sft: {{hub_token: '{HUSH}', push_to_hub: true}}\n",
        f"env: {{COMET_API_KEY: '{HUSH}'}}\nstages:\n  sft: {{deepspeed: zero2, hub_token: a}}\n",
        f"stages:\n  sft: {{use_peft: true, merge: {{hf_hub_token: '{HUSH}'}}}}\n",
        "stages:\n  sft: {model_init_kwargs: {a: 1}, train_file_dir: 'https://host/x?download=true'}\n",
        "launcher: {srun: {export: 'ALL,NCCL_DEBUG=INFO'}}\nstages:\n  sft: {}\n",
    ),
)
def test_what_shows_nothing_is_taken(text: str, tmp_path: Path) -> None:
    assert [problem for step in steps(tmp_path, TOP + text) for problem in exposures(step)] == []


def test_options_of_a_launcher(tmp_path: Path) -> None:
    (step,) = steps(tmp_path, TOP + EVERYWHERE["a launcher"])
    (problem,) = exposures(step)
    assert "the launcher srun is given a secret" in problem.cause and str(problem.place).endswith(":5")


@pytest.mark.parametrize("matrix", (f"{{hub_token: ['{HUSH}', b]}}", f"{{t: ['{HUSH}', '{HUSH}2']}}"))
def test_no_folder_is_called_by_a_secret(matrix: str, tmp_path: Path) -> None:
    uses = "hub_token: '${t}'" if "{t:" in matrix else "seed: '${hub_token}'"
    with pytest.raises(ArgumentError, match="part of a folder's name") as caught:
        steps(tmp_path, f"{TOP}matrix: {matrix}\nstages:\n  sft: {{{uses}}}\n")
    assert HUSH not in redact(caught.value.render())


def test_combinations_with_names_may_have_some(tmp_path: Path) -> None:
    text = f"{TOP}matrix: {{mine: {{hub_token: '{HUSH}'}}}}\nstages:\n  sft: {{hub_token: '${{hub_token}}'}}\n"
    (step,) = steps(tmp_path, text)
    assert str(step.folder) == "out/mine/sft" and with_quiet_token(step).env == {"HF_TOKEN": HUSH}


# --- other machines ---


def _launched(tmp_path: Path, hosts: str, **options: Any) -> Step:
    (tmp_path / "hosts").write_text(hosts)
    (step,) = steps(tmp_path, f"{TOP}stages:\n  sft: {{env: {{HF_TOKEN: '{HUSH}', MY_FLAG: 1, PYTHONHASHSEED: 2}}}}\n")
    launcher = Launcher("deepspeed", {"hostfile": str(tmp_path / "hosts"), **options})
    return Step(**{**vars(step), "launcher": launcher})


TWO = "a slots=2\n# c\n\nb slots=2\n"


@pytest.mark.parametrize(
    ("hosts", "options", "many"),
    (
        (TWO, {}, True),
        (TWO, {"num_nodes": 2}, True),
        (TWO, {"include": "a@b:0"}, True),
        (TWO, {"num_nodes": 1}, False),
        (TWO, {"include": "a:0,1"}, False),
        (TWO, {"no_ssh": True}, False),
        ("a slots=2\n#b slots=2\n", {}, False),
        ("a slots=2\n", {"force_multi": True}, True),
        ("", {}, False),
        (TWO, {"hostfile": "/nowhere/hosts"}, False),
    ),
)
def test_several_machines(hosts: str, options: dict[str, Any], many: bool, tmp_path: Path) -> None:
    assert _launched(tmp_path, hosts, **options).launcher.other_machines is many


@pytest.mark.parametrize("kind", ("python", "torchrun", "srun"))
def test_other_launchers_start_where_the_variables_are(kind: str) -> None:
    assert not Launcher(kind, {"nnodes": 2, "nodes": 2, "hostfile": __file__}).other_machines


def test_what_other_machines_do_not_get_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hftune.logging._notices", [])
    monkeypatch.setattr(checking, "_asked_separately", lambda steps: [])
    step = _launched(tmp_path, TWO)
    check_steps([step, step])
    (said,) = notices()
    assert "HF_TOKEN, MY_FLAG to other machines" in said and "run `hf auth login` on each machine" in said
    assert HUSH not in said


@pytest.mark.parametrize(
    ("export", "lost"), (("NONE", True), ("NCCL_DEBUG=INFO,A", True), ("ALL,A=1", False), ("HF_TOKEN,A", False))
)
def test_srun_may_be_told_what_to_hand_on(export: str, lost: bool) -> None:
    assert Launcher("srun", {"export": export}).loses("HF_TOKEN") is lost
    assert not Launcher("srun", {}).loses("HF_TOKEN") and not Launcher("torchrun", {"nnodes": 2}).loses("HF_TOKEN")


def test_a_token_by_a_flag_is_no_more_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hftune.logging._notices", [])
    step = Step(**{**vars(_launched(tmp_path, TWO)), "env": {}, "arguments": {"hub_token": [HUSH]}})
    say_variables_not_passed_on([step], {})
    say_variables_not_passed_on([Step(**{**vars(step), "arguments": {}})], {"HF_TOKEN": HUSH})
    assert len(notices()) == 1 and "hf auth login" in notices()[0]


def test_nothing_is_said_of_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hftune.logging._notices", [])
    say_variables_not_passed_on([_launched(tmp_path, "a slots=2\n")], {"HF_TOKEN": HUSH})
    say_variables_not_passed_on([Step(**{**vars(_launched(tmp_path, TWO)), "env": {"PYTHONHASHSEED": "2"}})], {})
    assert notices() == []


def test_deepspeeds_launcher_prints_what_it_hands_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.launcher.runner import EXPORT_ENVS

    assert {*EXPORT_ENVS, "NCCL"} == {*PRINTED}
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", HUSH)
    (problem,) = exposures(_launched(tmp_path, TWO))
    assert "prints MLFLOW_TRACKING_PASSWORD" in problem.cause and "torchrun or srun" in str(problem.fix)
    assert not [*exposures(_launched(tmp_path, "a slots=2\n"))]
