"""Folders of models and adapters from strangers: hostile JSON and headers, links, exchanged and damaged files.

Every command that begins with a folder asks one gate before it loads or writes anything: `test_recorded_folders.py`
holds that each does; here is what the gate refuses.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hftune.checkpoints.file_records import record_result
from hftune.checkpoints.folder_checks import check_recorded
from hftune.checkpoints.integrity import record_contents, write_record
from hftune.checkpoints.manifest import read_manifest, write_manifest
from hftune.checkpoints.reward_scale import read_scale
from hftune.errors import UserError, raise_together
from hftune.models.vocabulary import new_tokens, recorded_growth
from hftune.weight_files import stored_tensors
from tests.spokes import spokes
from tests.unit.merging.models import make_adapter, merge

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def sound(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `base` and `adapter`, both with manifests as hftune writes them."""
    folder = tmp_path_factory.mktemp("sound")
    shutil.copytree(tiny_model, folder / "base")
    make_adapter(folder / "base", folder / "adapter", target_modules=["q_proj", "v_proj"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / name, folder / "adapter" / name)
    for name in ("base", "adapter"):
        write_manifest(folder / name, {"stage": "sft", "status": "complete", "files": record_result(folder / name)})
    return folder


@pytest.fixture
def folders(sound: Path, tmp_path: Path) -> Path:
    """A copy of them to be spoilt, with their times."""
    return Path(shutil.copytree(sound, tmp_path / "given"))


def forget(folder: Path, name: str) -> None:
    """Set a file's record to null, which is the way out that the message names."""
    manifest = read_manifest(folder) or {}
    manifest["files"][name] = None
    write_manifest(folder, manifest)


def refused(folder: Path, *words: str) -> None:
    """The gate says why, in words that fit into a message."""
    with pytest.raises(UserError) as problem:
        raise_together(check_recorded(folder, "--model_name_or_path"))
    said = str(problem.value)
    assert all(word in said for word in words), said
    assert "to do:" in said and len(said) < 3000 and "\x1b" not in said


# --- JSON: what else is none, tests/unit/opening has ------------------------------------------------------------------

VALUES: list[tuple[str, dict[str, Any]]] = [
    ("adapter_config.json", {"r": 10**50}),
    *(("hftune.json", {"files": value}) for value in ([], {"a": 3}, {"a": ["1", 2, "x"]})),
    *(("hftune.json", {"files": {name: [1, 1, "0"]}}) for name in ("/etc/passwd", "../adapter/x", "a/../../b")),
    ("tokenizer_config.json", {"chat_template": 3}),
]


@pytest.mark.parametrize(("name", "content"), VALUES)
def test_values_of_other_kinds(tmp_path: Path, name: str, content: dict[str, Any]) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    refused(tmp_path)


# --- headers: tests/unit/opening/test_safetensors_file.py ------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", struct.pack("<Q", (1 << 64) - 1) + b"{}"], ids=["empty", "a huge length"])
def test_headers(folders: Path, content: bytes) -> None:
    (folders / "adapter" / "hftune.json").unlink()
    (folders / "adapter" / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"adapter_model\.safetensors"):
        merge(folders / "adapter", folders / "out", base_model_name_or_path=str(folders / "base"))


@pytest.mark.parametrize("named", ["../secret.safetensors", "/etc/passwd", "gone.safetensors", "..", "", "a/b"])
def test_indexes_that_name_other_files(folders: Path, named: str) -> None:
    save_file({"secret": torch.ones(2)}, folders / "secret.safetensors")
    (folders / "base" / INDEX).write_text(json.dumps({"weight_map": {"a": "model.safetensors", "secret": named}}))
    with pytest.raises(UserError, match=INDEX):
        stored_tensors(folders / "base")


# --- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "form"), [("vocab.txt", "link"), ("model.safetensors", "pipe"), ("x.jinja", "broken")]
)
def test_strays(folders: Path, name: str, form: str) -> None:
    plant(folders / "base" / name, form)
    refused(folders / "base", name)


def plant(place: Path, form: str) -> None:
    secret = place.parent.parent / "secret"
    secret.write_text("secret")
    place.unlink(missing_ok=True)
    if form == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(secret if form == "link" else "nowhere")


def test_strays_in_a_tokenizers_folder(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "adapter", folders / "tokenizer")
    plant(folders / "tokenizer" / "vocab.txt", "link")
    with pytest.raises(UserError, match=r"vocab\.txt is a link"):
        named = {"base_model_name_or_path": str(folders / "base"), "tokenizer_path": str(folders / "tokenizer")}
        merge(folders / "adapter", tmp_path / "out", **named)


def test_a_snapshot_of_the_hub_is_merged(folders: Path, tmp_path: Path) -> None:
    """All of its files are links into `blobs`."""
    (folders / "base" / "hftune.json").unlink()
    blobs, snapshot = tmp_path / "models--o--n" / "blobs", tmp_path / "models--o--n" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted((folders / "base").iterdir())):
        blob = blobs / f"{number:064x}"
        file.rename(blob)
        (snapshot / file.name).symlink_to(f"../../blobs/{blob.name}")
    shutil.rmtree(folders / "base")
    (folders / "base").symlink_to(snapshot)
    merge(folders / "adapter", tmp_path / "merged", base_model_name_or_path=str(folders / "base"))
    assert not any(file.is_symlink() for file in (tmp_path / "merged").iterdir())
    AutoModelForCausalLM.from_pretrained(tmp_path / "merged")


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "keep_time"), spokes(["model.safetensors", "tokenizer.json"], [True, False]))
def test_a_flipped_bit(folders: Path, name: str, keep_time: bool) -> None:
    file = folders / "base" / name
    times, content = os.stat(file), bytearray(file.read_bytes())
    content[content.index(b"pad|>") if name == "tokenizer.json" else -1] ^= 1
    file.write_bytes(content)
    if keep_time:
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    refused(folders / "base", "is not as hftune wrote it", str(file), "other contents", 'in "files" of')


def test_lost_touched_and_edited_files_and_the_way_out(folders: Path) -> None:
    base = folders / "base"
    for file in base.iterdir():
        os.utime(file)  # a copy without its times is no other file
    assert not list(check_recorded(base, "--flag"))
    (base / "tokenizer_config.json").write_text('{"model_max_length": 77}')
    refused(base, "tokenizer_config.json has")
    forget(base, "tokenizer_config.json")
    assert not list(check_recorded(base, "--flag"))
    (base / "generation_config.json").unlink()
    refused(base, "generation_config.json is gone")


def test_a_checkpoints_own_record_counts(folders: Path) -> None:
    """An adapter that is merged from a checkpoint has its digests in the checkpoint's record."""
    adapter = folders / "adapter"
    write_manifest(adapter, {"stage": "sft", "status": "checkpoint"})
    write_record(adapter, {"step": 1})
    record_contents(adapter)
    assert not list(check_recorded(adapter, "--flag"))
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, adapter / "adapter_model.safetensors")
    refused(adapter, "adapter_model.safetensors has other contents")


@pytest.mark.parametrize(
    "vocabulary",
    [
        *({"new_tokens": [[0, 10**12]]}, {"new_tokens": [[0, 9_000_000]] * 3}, {"new_tokens": [[5]]}),
        *({"new_tokens": [["a", "b"]]}, {"new_tokens": [[9, 1]]}, {"growth": {"ids": [[0, 10**12]], "pieces": []}}),
        *({"growth": {"ids": 3}}, {"growth": {"ids": [], "pieces": [3], "more": 1}}),
    ],
)
def test_vocabularies_of_manifests(vocabulary: dict[str, Any]) -> None:
    manifest = {"kind": "adapter", "vocabulary": vocabulary}
    with pytest.raises(UserError, match="not as hftune writes it"):
        new_tokens(manifest)
        recorded_growth(manifest)


@pytest.mark.parametrize(
    "stored", [{"mean": 1.0}, {"mean": 1.0, "std": 1.0, "scores": 3, "measured_on": "x", "more": 1}]
)
def test_scales_of_rewards(tmp_path: Path, stored: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"reward_scale": stored}))
    with pytest.raises(UserError, match="reward scale"):
        read_scale(tmp_path)
