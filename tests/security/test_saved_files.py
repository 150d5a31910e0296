"""Real runs that know secrets: no byte of what they leave, on disk or in the terminal, is one."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi

from hftune import child_processes, secrets
from hftune.checkpoints.manifest import is_complete
from hftune.digests import changed_files
from hftune.errors import ArgumentError
from tests.conftest import Finished
from tests.parity.stages import run_stage

TOKEN, KEY, PASSWORD, COMET = "hush/T0ken+1=abc", "hush/K3y+2=abcd", "hush-Passw0rd-3", "hush/C0met+4=abcd"
LISTED, MYSQL = "hush-L1sted-5", "hush/MySQL+6=abc"
SECRETS = (TOKEN, KEY, PASSWORD, COMET, LISTED, MYSQL)
URL = f"postgres://me:{PASSWORD}@db/x"


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    secrets.forget()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setenv("DATABASE_URL", URL)
    monkeypatch.setenv("MYSQL_PWD", MYSQL)
    monkeypatch.setenv("COMET_API_KEY", "not set here")
    yield
    secrets.forget()


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below a folder, and every file in those that are archives, as torch's are."""
    for file in (entry for entry in folder.rglob("*") if entry.is_file()):
        whole = file.read_bytes()
        yield str(file.relative_to(folder)), whole
        if zipfile.is_zipfile(io.BytesIO(whole)):
            with zipfile.ZipFile(io.BytesIO(whole)) as archive:
                yield from ((f"{file.name}:{name}", archive.read(name)) for name in archive.namelist())


def told(files: Iterator[tuple[str, bytes]]) -> list[tuple[str, str]]:
    """What holds which secret, in any spelling."""
    forms = [(secret, form.encode()) for secret in SECRETS for form in secrets.spellings(secret) if len(form) >= 8]
    return [(name, secret) for name, whole in files for secret, form in forms if form in whole]


STAGES = {
    "sft lora": ("sft", "--use_peft", "--lora_rank", "4"),
    "rm": ("rm",),
    "ppo": ("rl", "--rl_algorithm", "ppo"),
    "async": ("sft", "--async_save", "True"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", STAGES)
def test_a_run_leaves_no_secret(
    name: str,
    tiny_model: Path,
    tiny_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    stage, *flags = STAGES[name]
    out = tmp_path / "out"
    trainer = run_stage(
        stage,
        tiny_model,
        tiny_data,
        out,
        *flags,
        *(
            "--hub-token",
            TOKEN,
            "--hub_token",
            TOKEN,
            "--run_name",
            f"run of {URL} {MYSQL}",
            "--report_to",
            "tensorboard",
        ),
        *("--save_strategy", "steps", "--save_steps", "1", "--use_cpu", "True"),
        monkeypatch=monkeypatch,
        steps=1,
    )
    assert trainer.args.hub_token == TOKEN  # for pushing
    files = [*contents(out)]
    names = {name for name, _ in files}
    assert {"hftune.json", "checkpoint-1/trainer_state.json"} <= names and not told(iter(files))
    assert any("tfevents" in name for name in [*names, *map(str, tmp_path.rglob("*"))])
    assert not told(contents(tmp_path))
    assert not [name for name in names if name.endswith("training_args.bin")]
    said = capfd.readouterr()
    assert not told(iter([("stdout", said.out.encode()), ("stderr", said.err.encode())]))
    for spelt in (
        repr(trainer.args),
        str(trainer.args),
        trainer.args.to_json_string(),
        str(trainer.args.to_sanitized_dict()),
    ):
        assert not told(iter([("args", spelt.encode())]))
    manifest = json.loads((out / "hftune.json").read_text())
    assert manifest["command"].count("***") == 2 and manifest["arguments"]["training"]["hub_token"] is None


@pytest.mark.slow
def test_a_real_run_under_deepspeed(
    run: Callable[..., Finished], tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    """The engine writes its config into every checkpoint and into its log."""
    config = {
        "comet": {"enabled": False, "api_key": COMET},
        "wandb": {
            "enabled": False,
            "api_keys": [f"{LISTED}-1", {"more": LISTED}],
            "group": f"of https://me:{LISTED}@host",
        },
        "csv_monitor": {"enabled": False, "output_path": f"https://me:{LISTED}@host/x"},
        "zero_optimization": {"stage": 1},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
    (tmp_path / "ds.json").write_text(json.dumps(config))
    finished = run(
        "run_sft.py",
        *("--model_name_or_path", str(tiny_model), "--train_file_dir", str(tiny_data / "sft")),
        *("--output_dir", str(tmp_path / "out"), "--deepspeed", str(tmp_path / "ds.json"), "--max_steps", "1"),
        *("--push_to_hub_token", TOKEN, "--save_strategy", "steps", "--save_steps", "1", "--use_cpu", "True"),
        *("--report_to", "tensorboard", "--run_name", f"run of {URL} {MYSQL}"),
    ).check()
    files = [*contents(tmp_path / "out")]
    assert any("model_states" in name for name, _ in files) and not told(iter(files))
    assert not told(iter([("said", finished.output.encode())])), finished.output
    assert "the DeepSpeed config holds secrets" in finished.output


@pytest.mark.slow
def test_a_real_pipeline(tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    """Under DeepSpeed's launcher, which prints what it starts: its log, each result and the terminal."""
    config = {"comet": {"enabled": False, "api_key": COMET}, "zero_optimization": {"stage": 1}}
    batch = {name: "auto" for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")}
    (tmp_path / "ds.json").write_text(json.dumps(config | batch))
    file, out = tmp_path / "p.yaml", tmp_path / "out"
    file.write_text(f"""
model: {tiny_model}
output_dir: {out}
values: {{mine: "{TOKEN}"}}
env: {{DB_PASS: "{LISTED}"}}
launcher: {{deepspeed: {{num_gpus: 1}}}}
shared: {{use_cpu: true, report_to: none, max_steps: 1, run_name: "of {URL}", deepspeed: {tmp_path}/ds.json}}
stages:
  sft: {{train_file_dir: {tiny_data}/sft, use_peft: true, hub_token: "${{mine}}", merge: {{hf_hub_token: "{TOKEN}"}}}}
""")
    words = child_processes.python("-m", "hftune.cli", "pipeline", "run", str(file))
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(child_processes.ROOT)}
    refused = child_processes.run(words, env=environment, capture_output=True)
    assert refused.returncode == 2 and "run_name holds a secret" in refused.stderr and not (out / "logs").exists()
    file.write_text(file.read_text().replace(f"of {URL}", "mine"))
    finished = child_processes.run(words, env=environment, capture_output=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "HF_TOKEN=***" in finished.stdout and "DB_PASS=***" in finished.stdout
    files = [*contents(out)]
    assert is_complete(out / "sft-merged") and "run_sft.py" in (out / "logs" / "sft.log").read_text()
    for run in (refused, finished):
        files += [("stdout", run.stdout.encode()), ("stderr", run.stderr.encode())]
    assert not told(iter(files))


@pytest.mark.long
def test_a_finished_result_is_pushed(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, after it is complete, and without being written once more; a checkpoint is never pushed."""
    out, sent = tmp_path / "out", dict[str, bytes]()

    def commit(self: HfApi, repo: str, operations: Any, **more: Any) -> str:
        assert not sent and is_complete(out) and repo == "me/mine" and self.token == TOKEN
        for added in operations:
            with added.as_file() as stream:
                sent[added.path_in_repo] = stream.read()
        return "done"

    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo, **more: SimpleNamespace(repo_id="me/mine"))
    monkeypatch.setattr(HfApi, "create_commit", commit)
    monkeypatch.setattr(HfApi, "upload_folder", lambda *args, **more: pytest.fail("uploads go by the list"))
    run_stage(
        "sft",
        tiny_model,
        tiny_data,
        out,
        *("--push_to_hub", "True", "--hub_model_id", "me/mine", "--hub_token", TOKEN, "--use_cpu", "True"),
        *("--save_strategy", "steps", "--save_steps", "1"),
        monkeypatch=monkeypatch,
    )
    names = {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {*sent} == {*names, "chat_template.jinja", "README.md"} and not told(iter(sent.items()))
    assert not [*changed_files(out, json.loads((out / "hftune.json").read_text())["files"], whole=True)]
    assert all((out / name).read_bytes() == content for name, content in sent.items())


@pytest.mark.long
def test_a_refused_push_leaves_the_finished_result(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **more: Any) -> None:
        raise OSError("no route")

    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo, **more: SimpleNamespace(repo_id="me/mine"))
    monkeypatch.setattr(HfApi, "create_commit", refuse)
    out = tmp_path / "out"
    flags = ("--push_to_hub", "True", "--hub_model_id", "me/mine", "--use_cpu", "True")
    with pytest.raises(ArgumentError, match="no route"):
        run_stage("sft", tiny_model, tiny_data, out, *flags, monkeypatch=monkeypatch)
    assert is_complete(out)
    monkeypatch.setattr(HfApi, "create_repo", refuse)
    with pytest.raises(ArgumentError, match="no route"):
        run_stage("sft", tiny_model, tiny_data, tmp_path / "other", *flags, monkeypatch=monkeypatch)
    assert not is_complete(tmp_path / "other")  # refused before training
