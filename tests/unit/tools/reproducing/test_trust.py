"""A folder of a stranger: running its manifest again runs nothing of its author's, and sends nothing anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hftune.errors import ManifestError, UserError
from hftune.tools.reproducing import run
from hftune.tools.reproducing.entry import reproduce

LOG = json.dumps({"step": 1, "max_steps": 1, "time": 1.0, "loss": 1.0}) + "\n"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that were started: none, wherever something is refused."""
    found: list[list[str]] = []
    monkeypatch.setattr(run, "start", lambda stage, manifest, words: found.append(words))
    monkeypatch.setattr(run, "verdict", lambda *given: (True, ["the same"]))
    return found


def made(folder: Path, *words: str, stage: Any = "sft", log: str = LOG, **more: Any) -> str:
    folder.mkdir()
    command = ["run_x.py", "--model_name_or_path", "m", "--train_file_dir", "d", "--use_cpu", *words]
    about = {"stage": stage, "status": "complete", "command": command, **more}
    (folder / "hftune.json").write_text(json.dumps(about))
    (folder / "progress.jsonl").write_text(log)
    return str(folder)


CASES: dict[str, tuple[str, list[str], str]] = {
    "its models' code": ("sft", ["--trust_remote_code", "True"], "--trust_remote_code"),
    "the same with dashes": ("sft", ["--trust-remote-code"], "--trust_remote_code"),
    "a callback of a file": ("sft", ["--callbacks", "evil.py:Evil"], "--callbacks"),
    "a callback of a module": ("sft", ['--callbacks=os:system{"command": "id"}'], "--callbacks"),
    "a reward of a file": ("rl", ["--reward_funcs", "length", "evil.py:reward"], "--reward_funcs"),
    "a tool": ("rl", ["--reward_funcs", "length", "--tools", "os:system"], "--tools"),
    "an upload": ("sft", ["--push_to_hub", "True", "--hub_model_id", "evil/copy"], "--push_to_hub"),
    "a tracker": ("sft", ["--report_to", "wandb"], "--report_to"),
    "a server for one's data": ("distill", ["--teacher_server_url", "http://evil:1"], "--teacher_server_url"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("by_file", [False, True])
def test_what_a_manifest_may_not_decide(case: str, by_file: bool, tmp_path: Path, started: list[list[str]]) -> None:
    """Also where it stands in a file that the manifest names, and though its arguments say nothing of it."""
    stage, words, flag = CASES[case]
    if by_file:
        named, _, value = words[0].removeprefix("--").replace("-", "_").partition("=")
        values = [value] if value else words[1:2] if stage != "rl" else words[1:3]
        content = {named: values if named in ("callbacks", "reward_funcs", "report_to") else (values or ["true"])[0]}
        if case == "a tool":
            content = {"reward_funcs": ["length"], "tools": ["os:system"]}
        (tmp_path / "evil.yaml").write_text(json.dumps(content))
        words = ["--config", str(tmp_path / "evil.yaml")]
    folder = made(tmp_path / "run", *words, stage=stage)
    with pytest.raises(UserError) as error:
        reproduce([folder])
    said = str(error.value)
    assert flag in said and "the manifest has the run" in said and f"hftune reproduce FOLDER {flag}" in said
    assert started == []


def test_what_the_user_says_is_done(tmp_path: Path, started: list[list[str]]) -> None:
    folder = made(tmp_path / "run", "--callbacks", "mine.py:Mine", "--trust_remote_code", "True")
    reproduce([folder, "--callbacks", "mine.py:Mine", "--trust-remote-code=True"])
    reproduce([made(tmp_path / "plain", "--callbacks", 'hftune.trainers.callbacks:StopAt{"step": 1}')])
    assert len(started) == 2 and "--callbacks=mine.py:Mine" in started[0]


@pytest.mark.parametrize(
    "more",
    [
        *({"stage": stage} for stage in ([], {}, 5, None, "teach")),
        *({"command": command} for command in ("rm -rf", {}, None, 5)),
        *({"arguments": value} for value in (5, [], "x", {"training": 5}, {"training": {"callbacks": 5}})),
        *({"world_size": value} for value in ("many", [], -1, 10**6, 1e300)),
        *({"inputs": value} for value in (5, ["d"], {"d": 5}, {"d": {"files": 5}})),
        *({"versions": 5}, {"machine": [1]}, {"data": 5}, {"base": 5}, {"tokenizer": "x"}),
        *({"log": log} for log in ("", "[]\n", "5\n" * 3, '{"loss": 1}\n', '{"loss": 1, "step": "x"}\n', "\x00" * 9)),
    ],
)
def test_manifests_of_another_shape(
    more: dict[str, Any], tmp_path: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message, or a run that needs nothing of what is wrong."""
    monkeypatch.chdir(tmp_path)
    Path("d").mkdir()
    command = more.pop("command", ...)
    folder = made(tmp_path / "run", **more)
    if command is not ...:
        file = tmp_path / "run" / "hftune.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"command": command}))
    try:
        reproduce([folder])
    except (ManifestError, UserError) as error:
        assert started == [] and error.fix
    except SystemExit:
        raise AssertionError("nothing was compared") from None


def test_a_run_of_several_processes_is_read_in_one(tmp_path: Path, started: list[list[str]]) -> None:
    for number, words in enumerate(
        (
            ["--tensor_parallel_size", "2", "--deepspeed", "zero1"],
            ["--sequence_parallel_size", "2", "--trust_remote_code", "False", "--report_to", "none"],
            ["--deepspeed", '{"train_batch_size": 16, "zero_optimization": {"stage": 2}}', "--push_to_hub", "no"],
        )
    ):
        reproduce([made(tmp_path / str(number), *words, world_size=2)])
    assert len(started) == 3
