"""What goes to the Hub is what belongs to a model; see also tests/security/test_uploads.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import huggingface_hub
import pytest

from hftune.errors import ArgumentError
from hftune.publishing import uploads
from hftune.publishing.ownership import record_written
from hftune.publishing.uploads import files_to_upload, hub_errors, push_folder


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")


NAMES = (
    *("config.json", "generation_config.json", "adapter_config.json", "quantization_config.json", "tokenizer.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt"),
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json", "chat_template.jinja"),
    *("chat_template.json", "preprocessor_config.json", "processor_config.json", "README.md", "LICENSE", "LICENSE.md"),
    *("LICENSE.txt", "NOTICE", "NOTICE.md", "NOTICE.txt", "model.safetensors", "adapter_model.safetensors"),
    *("adapter_model-00002-of-00003.safetensors", "adapter_model.safetensors.index.json"),
)


def test_every_file_that_a_model_may_need_is_known_by_name(tmp_path: Path) -> None:
    for name in NAMES:
        write(tmp_path, name, f"{name}.orig", f"my_{name}")
    assert files_to_upload(tmp_path).files == sorted(NAMES)


def test_an_export_and_a_models_own_code_are_uploaded_where_the_manifest_records_it(tmp_path: Path) -> None:
    write(tmp_path, "m.gguf", "Modelfile", ".hidden.gguf", "modeling_own.py")
    (tmp_path / "hftune.json").write_text(json.dumps({"status": "complete", "written": record_written(tmp_path)}))
    write(tmp_path, "stray.gguf", "stray.py")
    assert files_to_upload(tmp_path).files == ["Modelfile", "m.gguf", "modeling_own.py"]


class Api:
    made: ClassVar[list[Any]] = []
    commits: ClassVar[list[Any]] = []

    def __init__(self, token: str | None) -> None:
        self.token = token

    def create_repo(self, repo: str, **options: Any) -> None:
        self.made.append((repo, options))

    def create_commit(self, repo: str, operations: list[Any], **options: Any) -> str:
        self.commits.append((self.token, options))
        self.made.append([(one.path_in_repo, one.path_or_fileobj) for one in operations])
        return f"https://hub/{repo}/commit/1"


def test_one_commit_after_all_files_were_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(Api, "made", [])
    token = "hf_" + "a1B2" * 9
    monkeypatch.setenv("HF_TOKEN", token)
    write(tmp_path, "config.json")
    with pytest.raises(ArgumentError, match="holds no weights to upload"):
        push_folder(tmp_path, "me/m", token=None, message="x")
    write(tmp_path, "model.safetensors")
    (tmp_path / "README.md").write_bytes(b"\xff no UTF-8")
    assert push_folder(tmp_path, "me/m", token=None, message="x", private=True) == "https://hub/me/m/commit/1"
    (repo, options), files = Api.made
    assert repo == "me/m" and options == {"private": True, "exist_ok": True}
    assert dict(files) == {name: str(tmp_path / name) for name in ("README.md", "config.json", "model.safetensors")}
    Api.made.clear()
    (tmp_path / "config.json").write_text(json.dumps({"note": token}))
    with pytest.raises(ArgumentError, match="holds a secret") as caught:
        push_folder(tmp_path, "me/m", token=None, message="x")
    assert Api.made == [] and token not in str(caught.value)


def test_errors_of_the_way_there_are_one_message() -> None:
    with pytest.raises(ArgumentError, match="the Hub did not take me/m: no route") as caught, hub_errors("me/m", "--f"):
        raise OSError("no route\nto host")
    assert "hf auth login" in str(caught.value) and "to host" not in str(caught.value)


def test_whose_commit_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(Api, "commits", [])
    secret = "hf_" + "a1B2" * 9
    monkeypatch.setenv("HF_TOKEN", secret)
    with pytest.raises(ArgumentError) as caught:
        push_folder(tmp_path, "me/m", token=None, message="x")
    assert caught.value.place == "--hub_model_id"
    write(tmp_path, "model.safetensors")
    push_folder(tmp_path, "me/m", token="mine", message=f"with {secret}", revision="next")
    ((token, options),) = Api.commits
    assert token == "mine" and options["revision"] == "next"
    assert options["commit_message"].startswith("with ") and secret not in options["commit_message"]


@pytest.mark.parametrize("name", ["vocab.json", "chat_template.jinja", "NOTICE.md", "LICENSE"])
def test_every_kind_of_text_is_searched(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a size; weights are not."""
    write(tmp_path, "model.safetensors")
    secret = "# hf_" + "a1B2" * 9
    monkeypatch.setenv("HF_TOKEN", secret[2:])
    (tmp_path / name).write_text(secret)
    with pytest.raises(ArgumentError, match="holds a secret") as caught:
        uploads.what_to_upload(tmp_path, "me/m", "--flag")
    assert caught.value.place == str(tmp_path / name)
    monkeypatch.setattr(uploads, "_LARGEST_TEXT", len(secret))
    with pytest.raises(ArgumentError, match="holds a secret"):
        uploads.what_to_upload(tmp_path, "me/m", "--flag")
    monkeypatch.setattr(uploads, "_LARGEST_TEXT", len(secret) - 1)
    assert name in uploads.what_to_upload(tmp_path, "me/m", "--flag")
    (tmp_path / name).unlink()
    (tmp_path / "model.safetensors").write_text(secret)
    assert uploads.what_to_upload(tmp_path, "me/m", "--flag") == ["model.safetensors"]


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (0, ""),
        (5, "; 5 other(s) do not belong there: 0.log, 1.log, 2.log, 3.log, 4.log"),
        (7, "; 7 other(s) do not belong there: 0.log, 1.log, 2.log, 3.log, 4.log and 2 more"),
    ],
)
def test_what_stays_is_said(left: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notices: list[str] = []
    monkeypatch.setattr(uploads, "notice", notices.append)
    write(tmp_path, "model.safetensors", *(f"{number}.log" for number in range(left)))
    uploads.what_to_upload(tmp_path, "me/m", "--flag")
    assert notices == [f"1 files of {tmp_path} go to me/m{said}"]
