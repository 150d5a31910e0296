"""Secrets of a pipeline: known before anything is told, and on no command line, log, `ps` or name of a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hftune import child_processes, secrets
from hftune.errors import ArgumentError
from hftune.secrets import redact
from hftune.tools.pipeline.checking import _PRINTED, exposures
from hftune.tools.pipeline.command import main
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
    "a number": "stages:\n  sft: {hub_token: 1234567890}\n",
    "env of a stage": f"stages:\n  sft: {{env: {{MYSQL_PWD: '{HUSH}'}}}}\n",
    "a value": f"values: {{x: '{HUSH}'}}\nstages:\n  sft: {{hub_token: '${{x}}'}}\n",
    "a merge": f"stages:\n  sft: {{use_peft: true, merge: {{hf_hub_token: '{HUSH}'}}}}\n",
    "answers in a URL": f"stages:\n  sft: {{}}\nanswers: {{question_file: 's3://me:{HUSH.replace('/', '%2F')}@h/x'}}\n",
    "a launcher": f"launcher: {{srun: {{export: 'ALL,OPENAI_KEY={HUSH}'}}}}\nstages:\n  sft: {{}}\n",
    "deep": f"stages:\n  sft: {{model_init_kwargs: {{a: [{{token: '{HUSH}'}}]}}}}\n",
}


@pytest.mark.parametrize("place", EVERYWHERE)
def test_a_secret_of_any_part_is_known(place: str, tmp_path: Path) -> None:
    steps(tmp_path, TOP + EVERYWHERE[place])
    assert redact(f"a {HUSH} 1234567890") in ("a *** 1234567890", f"a {HUSH} ***")


@pytest.mark.parametrize(
    "text",
    (
        f"stages:\n  sft: {{hub_token: '{HUSH}', launcher: '{HUSH}'}}\n",
        f"values: {{x: '{HUSH}'}}\nstages:\n  sft: {{hub_token: '${{x}}'}}\n  dpo: {{from: '{HUSH}'}}\n",
        f"stages:\n  sft: {{script: '{HUSH}', hub_token: '{HUSH}'}}\n",
        f"env: {{DB_PASS: '{HUSH}'}}\nstages:\n  sft: {{seed: '${{{HUSH}}}'}}\n",
        "stages:\n  sft: {hub_token:hush1}\n",
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
    "DeepSpeed as text": f"deepspeed: '{CONFIG}'",
    "a list in it": f"deepspeed: {{a: [{{passwords: ['{HUSH}', b]}}]}}",
    "another": f"wandb_api_key: '{HUSH}'",
    "a URL": "train_file_dir: s3://me:pw@host/x",
}


@pytest.mark.parametrize(
    ("action", "kind"), [*(("check", kind) for kind in SHOWN), ("plan", "a URL"), ("run --dry_run", "a URL")]
)
def test_what_a_command_line_would_show_is_refused(
    kind: str, action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything starts, be it only the parsers."""
    monkeypatch.setattr(child_processes, "run", lambda *args, **more: pytest.fail("something was started"))
    monkeypatch.setattr(child_processes, "start", lambda *args, **more: pytest.fail("something was started"))
    file = tmp_path / "p.yaml"
    file.write_text(f"model: base\noutput_dir: {tmp_path}/out\nstages:\n  sft:\n    {SHOWN[kind]}\n")
    verb, *flags = action.split()
    with pytest.raises(ArgumentError) as caught:
        main([verb, str(file), *flags])
    told = redact(caught.value.render())
    assert "holds a secret" in told and "in a variable" in told and f"{file}:5" in told
    assert HUSH not in told and "pw@" not in told


@pytest.mark.parametrize(
    "text",
    (
        f"stages:\n  sft: {{hub_token: '{HUSH}', push_to_hub: true}}\n",
        f"env: {{COMET_API_KEY: '{HUSH}'}}\nstages:\n  sft: {{deepspeed: zero2, hub_token: a}}\n",
        f"stages:\n  sft: {{use_peft: true, merge: {{hf_hub_token: '{HUSH}'}}}}\n",
        "launcher: {srun: {export: 'ALL,NCCL_DEBUG=INFO'}}\nstages:\n  sft: {}\n",
    ),
)
def test_what_shows_nothing_is_taken(text: str, tmp_path: Path) -> None:
    assert [problem for step in steps(tmp_path, TOP + text) for problem in exposures(step)] == []


def test_deepspeeds_launcher_prints_what_it_hands_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.launcher.runner import EXPORT_ENVS

    assert {*EXPORT_ENVS, "NCCL"} == {*_PRINTED}
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", HUSH)
    for options, found in ((f"{{hostfile: {tmp_path}/hosts}}", 1), ("{num_gpus: 2}", 0)):
        (step,) = steps(tmp_path, TOP + f"launcher: {{deepspeed: {options}}}\nstages:\n  sft: {{}}\n")
        problems = [*exposures(step)]
        assert ["prints MLFLOW_TRACKING_PASSWORD" in problem.cause for problem in problems] == [True] * found


def test_options_of_a_launcher_and_names_of_folders(tmp_path: Path) -> None:
    (step,) = steps(tmp_path, TOP + EVERYWHERE["a launcher"])
    (problem,) = exposures(step)
    assert "launcher holds a secret" in problem.cause and str(problem.place).endswith(":5")
    swept = "matrix: {t: [hf_abcdefgh12345, b]}\nstages:\n  sft: {hub_token: '${t}'}\n"
    (problem,) = exposures(steps(tmp_path, TOP + swept)[0])
    assert "output_dir holds a secret" in problem.cause
