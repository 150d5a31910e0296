"""What goes to the Hub: a fake one writes down what it is sent."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi

from hftune import secrets
from hftune.arguments.entry import parse_arguments
from hftune.arguments.merging import MergeArguments
from hftune.errors import ArgumentError
from hftune.logging import notices
from hftune.merging import merge
from hftune.publishing.uploads import files_to_upload
from hftune.tools.export import run
from hftune.tools.export.arguments import HubArguments
from hftune.trainers.stage_trainer import StageTrainer

SECRET = "Zq7/hush+v3ry=quiet"
BELONGS = (
    *(
        "model.safetensors",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "adapter_model.safetensors",
    ),
    *("adapter_config.json", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates/tools.jinja", "processor_config.json"),
    *(
        "README.md",
        "LICENSE",
        "LICENSE.txt",
        "NOTICE",
        "modeling_own.py",
        "configuration_own.py",
        "tokenization_own.py",
    ),
    *("q8.gguf", "Modelfile"),
)
DOES_NOT = (
    *("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "pytorch_model.bin", "adapter_model.bin"),
    *("trainer_state.json", "samples.json", "answers.json", "completions.jsonl", "progress.jsonl", "hftune.json"),
    *("run.log", "run-rank1.log", "run_state_0.pt"),
    *(
        ".hidden.gguf",
        ".env",
        ".hftune.lock",
        ".gitattributes",
        "prod.env",
        "id_rsa",
        "notes.txt",
        "other.gguf",
        "secret.py",
    ),
    *("model.safetensors.bak", "optimizer.safetensors", "my model.safetensors", "hftune_checkpoint.json", "x.log"),
    *("runs/events.out.tfevents.1", "logs/a.log", "checkpoint-3/model.safetensors", "critic/critic.safetensors"),
    *(".partial/checkpoint-4/optimizer.pt", ".result.partial/result/model.safetensors", "wandb/run/config.yaml"),
    *("global_step3/mp_rank_00_model_states.pt", "additional_chat_templates/.env.jinja", "report.html", "report.md"),
    *("additional_chat_templates/x.py", ".cache/token", "src/modeling_own.py", "README.md.bak", "config.json~"),
)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("sys.argv", ["hftune"])
    secrets.forget()
    yield
    secrets.forget()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """File names of the one commit to their contents."""
    found: dict[str, bytes] = {}

    def commit(self: HfApi, repo: str, operations: Any, **more: Any) -> str:
        assert not found, "one commit"
        for added in operations:
            with added.as_file() as stream:
                found[added.path_in_repo] = stream.read()
        found["*"] = json.dumps(more).encode()
        return "done"

    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo, **more: SimpleNamespace(repo_id=repo))
    monkeypatch.setattr(HfApi, "create_commit", commit)
    for name in ("upload_folder", "upload_file"):
        monkeypatch.setattr(HfApi, name, lambda *args, **more: pytest.fail("uploads go by the list"))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A result, and everything that may lie around it."""
    made = tmp_path / "out"
    for name in (*BELONGS, *DOES_NOT):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(name.encode())
    recorded = ("q8.gguf", "Modelfile", ".hidden.gguf", *(name for name in BELONGS if name.endswith(".py")))
    manifest = {"stage": "sft", "status": "complete", "files": {name: [1, 2, "a"] for name in recorded}}
    (made / "hftune.json").write_text(json.dumps(manifest))
    return made


@pytest.mark.parametrize("name", DOES_NOT)
def test_it_does_not_belong(name: str, folder: Path) -> None:
    chosen = files_to_upload(folder)
    assert name not in chosen.files
    assert any(name == left or (name.startswith(left) and left.endswith("/")) for left in chosen.left_out)


@pytest.mark.parametrize("name", BELONGS)
def test_a_link_does_not_belong(name: str, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "victim"
    target.write_text("root:x:0:0")
    (folder / name).unlink()
    (folder / name).symlink_to(target)
    chosen = files_to_upload(folder)
    assert name not in chosen.files and name in chosen.left_out


@pytest.mark.parametrize("kind", ("folder", "pipe", "broken link", "linked folder"))
def test_special_files_do_not_belong(kind: str, folder: Path, tmp_path: Path) -> None:
    file = folder / "LICENSE"
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "broken link":
        file.symlink_to(tmp_path / "nowhere")
    else:
        (tmp_path / "additional").mkdir()
        (tmp_path / "additional" / "victim.jinja").write_text("x")
        for entry in (folder / "additional_chat_templates").iterdir():
            entry.unlink()
        (folder / "additional_chat_templates").rmdir()
        (folder / "additional_chat_templates").symlink_to(tmp_path / "additional")
    chosen = files_to_upload(folder)
    assert "LICENSE" not in chosen.files and not any("victim" in name for name in chosen.files)


def _by_export(folder: Path) -> None:
    run.upload(folder, HubArguments(hub_model_id="me/mine", hub_token=SECRET))


def _by_merge(folder: Path) -> None:
    merge.push(MergeArguments(hf_hub_model_id="me/mine", hf_hub_token=SECRET), folder)


def _by_trainer(folder: Path) -> None:
    trainer: Any = StageTrainer.__new__(StageTrainer)
    trainer.args = SimpleNamespace(
        output_dir=str(folder),
        hub=None,
        hub_model_id="me/mine",
        hub_token=SECRET,
        hub_private_repo=None,
        hub_revision=None,
    )
    trainer.hub_model_id = "me/mine"
    trainer.is_world_process_zero = lambda: True
    trainer.push_to_hub(commit_message="Model save")
    trainer._push_from_checkpoint(str(folder / "checkpoint-3"))


ROADS = {"export": _by_export, "merge": _by_merge, "trainer": _by_trainer}


@pytest.mark.parametrize("road", ROADS)
def test_every_road_sends_the_list_and_nothing_else(road: str, folder: Path, sent: dict[str, bytes]) -> None:
    ROADS[road](folder)
    assert {*sent} - {"*"} == {*BELONGS}
    said = next(one for one in reversed(notices()) if str(folder) in one)
    count = len(files_to_upload(folder).left_out)
    assert f"{len(BELONGS)} files of {folder} go to me/mine; {count} other(s) do not belong there" in said


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", ["config.json", "README.md"])
def test_a_secret_stops_the_upload(road: str, name: str, folder: Path, sent: dict[str, bytes]) -> None:
    secrets.learn(SECRET)
    (folder / name).write_text(json.dumps({"use_auth_token": SECRET}))
    with pytest.raises(ArgumentError, match="holds a secret") as caught:
        ROADS[road](folder)
    assert not sent and caught.value.place == str(folder / name)


@pytest.mark.parametrize("road", ROADS)
def test_the_hub_refuses_in_one_message(road: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **more: Any) -> None:
        raise OSError("no route")

    monkeypatch.setattr(HfApi, "create_repo", refuse)
    with pytest.raises(ArgumentError, match="no route") as caught:
        ROADS[road](folder)
    assert "hftune export hub" in str(caught.value) and SECRET not in str(caught.value)


@pytest.mark.parametrize("strategy", ("every_save", "checkpoint", "all_checkpoints"))
def test_checkpoints_are_not_uploaded(strategy: str) -> None:
    with pytest.raises(ArgumentError, match=f"--hub_strategy cannot be '{strategy}'"):
        parse_arguments("sft", ["--output_dir", "o", "--hub_strategy", strategy])
