"""Links that lead out of a folder are not followed; those of the Hub's cache are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hftune.errors import ManifestError
from hftune.opening.files import copy_file, copy_folder, unsafe_entries
from tests.spokes import spokes


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("secret")
    return tmp_path / "secret"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "notes.md").write_text("")
    return tmp_path / "model"


NAMES = ["vocab.txt", "tokenizer.json", "model.safetensors", "chat_template.jinja", "tokenizer.model", "modeling_x.py"]
NAMES += ["pytorch_model.bin", "optimizer.pt", "rng_state.pth", "additional_chat_templates", "critic", "x.gguf"]


@pytest.mark.parametrize(("name", "form"), spokes(NAMES, ["absolute", "relative", "chain", "through a folder"]))
def test_links_out_of_a_folder(folder: Path, secret: Path, name: str, form: str) -> None:
    link = folder / name
    if form == "absolute":
        link.symlink_to(secret)
    elif form == "relative":
        link.symlink_to("../secret")
    elif form == "chain":
        (folder / "inner").symlink_to(secret)
        link.symlink_to("inner")
    else:
        (folder / "up").symlink_to("..")
        link.symlink_to("up/secret")
    (problem,) = unsafe_entries(folder)
    assert str(problem).startswith(f"{link} is a link that leads out of {folder}")
    assert problem.place == str(link) and "cp -L" in str(problem.fix)
    with pytest.raises(ManifestError, match="leads out of"):
        copy_file(link, secret.with_name("copy"), within=folder)
    assert not secret.with_name("copy").exists()


def test_links_within_a_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-1" / "w.safetensors").write_text("w")
    (folder / "model.safetensors").symlink_to("checkpoint-1/w.safetensors")
    (folder / "logs").symlink_to("/tmp")  # nothing is read from it
    alias = tmp_path / "alias"
    alias.symlink_to(folder)
    for place in (folder, alias):
        assert list(unsafe_entries(place)) == []
    copy_file(alias / "model.safetensors", tmp_path / "copy", within=alias)
    assert (tmp_path / "copy").read_text() == "w" and not (tmp_path / "copy").is_symlink()


@pytest.mark.parametrize(
    ("target", "known"),
    [
        *((f"models--o--n/blobs/{digest}", True) for digest in ("a" * 40, "0" * 64)),
        *((f"models--o--n/blobs/{name}", False) for name in ("passwd", "x/" + "a" * 40, "a" * 41, "A" * 40)),
        *(("blobs/" + "a" * 40, False), ("models--o--n/other/" + "a" * 40, False)),
    ],
)
def test_the_hubs_cache(tmp_path: Path, folder: Path, target: str, known: bool) -> None:
    file = tmp_path / target
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    (folder / "vocab.txt").symlink_to(file)
    assert len(list(unsafe_entries(folder))) == (not known)
    if known:
        copy_file(folder / "vocab.txt", tmp_path / "copy", within=folder)
        assert (tmp_path / "copy").read_text() == "{}"


def test_what_is_no_file(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(folder / "tokenizer.json")
    (folder / "vocab.json").symlink_to("gone")
    (folder / "merges.txt").symlink_to("merges.txt")
    causes = {Path(str(problem.place)).name: problem.cause.split(" is ")[-1] for problem in unsafe_entries(folder)}
    assert causes == {
        "tokenizer.json": "a pipe, a socket or a device, no file",
        "vocab.json": "a broken link",
        "merges.txt": "a broken link",
    }
    with pytest.raises(ManifestError, match="is a pipe"):
        copy_file(folder / "tokenizer.json", tmp_path / "copy", within=folder)
    assert not list(unsafe_entries(tmp_path / "nowhere"))


def test_nested_folders(folder: Path, secret: Path, tmp_path: Path) -> None:
    nested = folder / "additional_chat_templates"
    nested.mkdir()
    (nested / "a.jinja").write_text("a")
    (nested / "deeper").mkdir()
    copy_folder(nested, tmp_path / "copy", within=folder)
    assert [file.name for file in (tmp_path / "copy").iterdir()] == ["a.jinja"]
    (nested / "b.jinja").symlink_to(secret)
    assert [problem.place for problem in unsafe_entries(folder)] == [str(nested / "b.jinja")]
    with pytest.raises(ManifestError, match=r"b\.jinja is a link"):
        copy_folder(nested, tmp_path / "again", within=folder)
    shutil.rmtree(nested)
    (tmp_path / "elsewhere").mkdir()
    nested.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ManifestError, match="additional_chat_templates is a link"):
        copy_folder(nested, tmp_path / "third", within=folder)
