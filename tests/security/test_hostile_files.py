"""Folders of models and adapters from strangers: hostile JSON and headers, links, exchanged and damaged files.

Every command that begins with a folder looks at all of it before it loads or writes anything.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hftune.checkpoints.file_records import record_result
from hftune.checkpoints.folder_checks import check_recorded
from hftune.checkpoints.manifest import read_manifest, write_manifest
from hftune.checkpoints.reward_scale import read_scale
from hftune.errors import UserError, raise_together
from hftune.models.vocabulary import new_tokens, recorded_growth
from hftune.opening.model_files import KINDS, REQUIRED, json_problems, read_checked
from hftune.preflight.rules.folders import check_contents
from hftune.tools.export.arguments import GgufArguments, ServingArguments
from hftune.tools.export.run import export
from tests.spokes import spokes
from tests.unit.merging.models import make_adapter, merge

MODEL_FILES = [name for name in KINDS if name not in REQUIRED]
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
    shutil.copytree(sound, tmp_path / "given")
    place = tmp_path / "given" / "adapter" / "adapter_config.json"
    content = json.loads(place.read_text()) | {"base_model_name_or_path": str(tmp_path / "given" / "base")}
    place.write_text(json.dumps(content))
    forget(tmp_path / "given" / "adapter", "adapter_config.json")
    return tmp_path / "given"


def forget(folder: Path, name: str) -> None:
    """Set a file's record to null, which is the way out that the message names."""
    manifest = read_manifest(folder) or {}
    manifest["files"][name] = None
    write_manifest(folder, manifest)


def merges(folders: Path, output: Path) -> None:
    merge(folders / "adapter", output, base_model_name_or_path=str(folders / "base"))


def serves(folders: Path, output: Path) -> None:
    export(ServingArguments(model_name_or_path=str(folders / "base"), output_dir=str(output), verify=False))


def writes_gguf(folders: Path, output: Path) -> None:
    export(GgufArguments(model_name_or_path=str(folders / "base"), output_dir=str(output), verify=False))


def trains(folders: Path, output: Path) -> None:
    model = SimpleNamespace(model_name_or_path=str(folders / "base"), tokenizer_name_or_path=None)
    adapter = SimpleNamespace(adapter_chain=[str(folders / "adapter")])
    facts: Any = SimpleNamespace(model_args=model, adapter_args=adapter, training_args=SimpleNamespace())
    raise_together(check_contents(facts))


def compares(folders: Path, output: Path) -> None:
    """Preference optimisation and RL, which read more models."""
    model = SimpleNamespace(model_name_or_path="owner/name", tokenizer_name_or_path=None)
    others = SimpleNamespace(ref_model=str(folders / "base"), reward_model_path=[str(folders / "adapter")])
    adapter = SimpleNamespace(adapter_chain=[])
    facts: Any = SimpleNamespace(model_args=model, adapter_args=adapter, training_args=others)
    raise_together(check_contents(facts))


ACTS: dict[str, Callable[[Path, Path], Any]] = {
    "merge": merges,
    "vllm": serves,
    "gguf": writes_gguf,
    "train": trains,
    "compare": compares,
}
OF_BASE = [name for name in ACTS if name != "compare"]
READERS = ["merge", "vllm", "gguf"]
OF_A_BASE = ["config.json", "tokenizer.json", "tokenizer_config.json", "hftune.json", INDEX]
OF_ADAPTER = ["merge", "train"]


def refused(act: str, folders: Path, *words: str) -> str:
    """A command fails with the one message, which holds `words`, and leaves nothing."""
    output = folders.parent / "out"
    with pytest.raises(UserError) as problem:
        ACTS[act](folders, output)
    said = str(problem.value)
    assert all(word in said for word in words), said
    assert "to do:" in said and len(said) < 3000 and "\x1b" not in said
    assert not output.exists() and not output.with_name(".out.partial").exists()
    return said


@pytest.mark.parametrize("act", ["merge", "vllm", "train", "compare"])
def test_sound_folders_are_taken(folders: Path, tmp_path: Path, act: str) -> None:
    ACTS[act](folders, tmp_path / "out")


# --- JSON ------------------------------------------------------------------------------------------------------------

HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "half": b'{"a": [1, 2',
    "no text": b'{"a": "\xff\xfe\x80"}',
    "brackets": b"[" * 100_000,
    "braces": b'{"a":' * 100_000,
    "a list": b'[{"a": 1}]',
    "a text": b'"config"',
    "null": b"null",
    "zeros": bytes(64),
}


@pytest.mark.parametrize(("name", "content"), spokes([*MODEL_FILES, INDEX], HOSTILE))
def test_json_that_is_none(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_bytes(HOSTILE[content])
    with pytest.raises(UserError) as problem:
        raise_together(check_recorded(tmp_path, "--model_name_or_path"))
    assert str(tmp_path / name) in str(problem.value) and "to do:" in str(problem.value)
    assert len(str(problem.value)) < 2000


@pytest.mark.parametrize(("act", "name", "content"), spokes(OF_BASE, OF_A_BASE, ["half", "brackets", "a list"]))
def test_every_command_looks_at_the_base(folders: Path, act: str, name: str, content: str) -> None:
    (folders / "base" / name).write_bytes(HOSTILE[content])
    refused(act, folders, name)


@pytest.mark.parametrize(
    ("act", "name", "content"),
    spokes(OF_ADAPTER, ["adapter_config.json", "tokenizer_config.json", "hftune.json"], ["half", "a list"]),
)
def test_every_command_looks_at_the_adapter(folders: Path, act: str, name: str, content: str) -> None:
    (folders / "adapter" / name).write_bytes(HOSTILE[content])
    refused(act, folders, name)


VALUES: list[tuple[str, str, Any]] = [
    *(("config.json", "num_hidden_layers", value) for value in (10**12 * 2, -1, "2", 2.5, True, [2])),
    *(("config.json", "vocab_size", value) for value in (-1, "a", 10**60)),
    *(("config.json", "architectures", value) for value in ("Llama", [1], {})),
    *(("config.json", "text_config", value) for value in ([], "a", {"num_hidden_layers": "9"})),
    *(("config.json", "quantization_config", value) for value in ([], "gptq")),
    ("config.json", "model_type", ["llama"]),
    *(("adapter_config.json", "r", value) for value in ("8", -8, 10**50, [8])),
    *(("adapter_config.json", "lora_alpha", value) for value in ("8", [8], {})),
    *(("adapter_config.json", "target_modules", value) for value in (3, {"a": 1})),
    *(("adapter_config.json", "rank_pattern", value) for value in ([1], "a")),
    *(("adapter_config.json", "alpha_pattern", value) for value in ([], {"q_proj": "a"})),
    *(("adapter_config.json", "modules_to_save", value) for value in ("lm_head", [1])),
    *(("adapter_config.json", "base_model_name_or_path", value) for value in (3, ["a"])),
    *(("hftune.json", key, []) for key in ("base", "arguments", "files", "tokenizer", "vocabulary", "versions")),
    *(("hftune.json", "parents", value) for value in ({}, "a", ["a"], [1])),
    *(("hftune.json", "files", value) for value in ({"a": 3}, {"a": [1, 2]}, {"a": ["1", 2, "x"]})),
    *(("hftune.json", "files", {name: [1, 1, "0"]}) for name in ("/etc/passwd", "../adapter/x", "a/../../b")),
    *(
        ("hftune.json", "data", value)
        for value in ([], {"train": "a"}, {"train": {"files": "a"}}, {"a": {"used": "1"}})
    ),
    *(("hftune.json", "data", {"train": {"dropped": value}}) for value in (3, [1], {"long": "1"})),
    *(("hftune.json", "inputs", value) for value in ([], {"a": 3})),
    *(("hftune.json", "status", value) for value in ([], 3)),
    *(("hftune.json", "base", value) for value in ({"name": 3}, {"adapters": "a"}, {"adapters": [3]}, {"name": []})),
    *(("hftune.json", "arguments", value) for value in ({"model": 3}, {"training": []})),
    *(("hftune.json", "parents", [{"folder": value}]) for value in (3, [], {})),
    *(("hftune.json", "vocabulary", value) for value in ({"growth": 3}, {"new_tokens": 3}, {"new_tokens": [3]})),
    *(("hftune.json", "reward_scale", value) for value in (3, {"mean": "a"}, {"scores": -1})),
    *(("config.json", "reward_scale", value) for value in ([], {"std": []})),
    *(("tokenizer_config.json", "pad_token", value) for value in (3, ["a"])),
    *(("tokenizer_config.json", "chat_template", value) for value in (3, True)),
    *(("tokenizer_config.json", "added_tokens_decoder", value) for value in ([], "a")),
    *(("tokenizer.json", "model", value) for value in ([], "BPE")),
    *(("tokenizer.json", "added_tokens", value) for value in ({}, ["a"])),
]


@pytest.mark.parametrize(("name", "key", "value"), VALUES, ids=[f"{n}-{k}-{i}" for i, (n, k, _) in enumerate(VALUES)])
def test_values_of_other_kinds(tmp_path: Path, name: str, key: str, value: Any) -> None:
    (tmp_path / name).write_text(json.dumps({key: value}))
    with pytest.raises(UserError) as problem:
        raise_together(check_recorded(tmp_path, "--flag"))
    assert len(str(problem.value)) < 1000


@pytest.mark.parametrize("name", REQUIRED)
def test_states_lack_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=f"{name}: it has no "):
        read_checked(tmp_path / name)
    assert not list(json_problems(tmp_path)), "they are no part of a model"


# --- headers ---------------------------------------------------------------------------------------------------------


def header(text: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text + data


HEADERS: dict[str, bytes] = {
    "empty": b"",
    "short": b"\x01\x02",
    "a huge length": header(b"{}", length=(1 << 64) - 1),
    "brackets": header(b'{"a":' + b"[" * 100_000),
    "overflowing": header(b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'),
    "overlapping": header(
        b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}}',
        bytes(12),
    ),
    "behind the end": header(b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}', bytes(4)),
    "text": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
}


@pytest.mark.parametrize(("act", "content"), spokes(READERS, HEADERS))
def test_headers_of_a_base(folders: Path, act: str, content: str) -> None:
    (folders / "base" / "hftune.json").unlink()
    (folders / "base" / "model.safetensors").write_bytes(HEADERS[content])
    refused(act, folders, "model.safetensors")


@pytest.mark.parametrize(("act", "content"), spokes(["merge"], HEADERS))
def test_headers_of_an_adapter(folders: Path, act: str, content: str) -> None:
    (folders / "adapter" / "hftune.json").unlink()
    (folders / "adapter" / "adapter_model.safetensors").write_bytes(HEADERS[content])
    refused(act, folders, "adapter_model.safetensors")


@pytest.mark.parametrize(
    ("act", "named"), spokes(READERS, ["../secret.safetensors", "/etc/passwd", "gone.safetensors", "..", "", "a/b"])
)
def test_indexes_that_name_other_files(folders: Path, act: str, named: str) -> None:
    save_file({"secret": torch.ones(2)}, folders / "secret.safetensors")
    (folders / "base" / INDEX).write_text(json.dumps({"weight_map": {"a": "model.safetensors", "secret": named}}))
    refused(act, folders, INDEX)


# --- links -----------------------------------------------------------------------------------------------------------

STRAYS = ["link", "pipe", "broken"]
LINKED = ["vocab.txt", "tokenizer.json", "chat_template.jinja", "merges.txt", "generation_config.json"]


@pytest.mark.parametrize(
    ("act", "name", "form"), spokes(OF_BASE, ["vocab.txt", "model.safetensors", "config.json"], STRAYS)
)
def test_strays_in_a_base(folders: Path, act: str, name: str, form: str) -> None:
    plant(folders / "base" / name, form)
    refused(act, folders, name)


@pytest.mark.parametrize(("act", "name", "form"), spokes(OF_ADAPTER, LINKED, STRAYS))
def test_strays_in_an_adapter(folders: Path, act: str, name: str, form: str) -> None:
    plant(folders / "adapter" / name, form)
    refused(act, folders, name)


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


def test_a_snapshot_of_the_hub_is_merged_and_exported(folders: Path, tmp_path: Path) -> None:
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
    merges(folders, tmp_path / "merged")
    serves(folders, tmp_path / "served")
    for name in ("merged", "served"):
        assert not any(file.is_symlink() for file in (tmp_path / name).iterdir())
        AutoModelForCausalLM.from_pretrained(tmp_path / name)


# --- damage ----------------------------------------------------------------------------------------------------------


def flip(file: Path, where: int, *, keep_time: bool) -> None:
    times = os.stat(file)
    content = bytearray(file.read_bytes())
    content[where] ^= 1
    file.write_bytes(content)
    if keep_time:
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(("act", "where", "keep_time"), spokes(OF_ADAPTER, [0.3, 0.7, 1.0], [True, False]))
def test_a_flipped_bit_in_an_adapter(folders: Path, act: str, where: float, keep_time: bool) -> None:
    file = folders / "adapter" / "adapter_model.safetensors"
    flip(file, int(where * file.stat().st_size) - 1, keep_time=keep_time)
    refused(act, folders, "is not as hftune wrote it", str(file), "other contents", 'in "files" of')


@pytest.mark.parametrize(
    ("act", "name", "keep_time"), spokes([*READERS, "train"], ["model.safetensors", "tokenizer.json"], [True, False])
)
def test_a_flipped_bit_in_a_base(folders: Path, act: str, name: str, keep_time: bool) -> None:
    file = folders / "base" / name
    place = file.read_bytes().index(b"pad|>") if name == "tokenizer.json" else -1
    flip(file, place, keep_time=keep_time)
    refused(act, folders, "is not as hftune wrote it", str(file))


def test_the_way_out_is_one(folders: Path, tmp_path: Path) -> None:
    file = folders / "adapter" / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": 77}))
    refused("merge", folders, "tokenizer_config.json has")
    forget(folders / "adapter", file.name)
    merges(folders, tmp_path / "merged")


def test_lost_and_touched_files(folders: Path, tmp_path: Path) -> None:
    for file in (folders / "base").iterdir():
        os.utime(file)  # a copy without its times is no other file
    serves(folders, tmp_path / "served")
    (folders / "base" / "generation_config.json").unlink()
    refused("vllm", folders, "generation_config.json is gone")


def test_a_checkpoints_own_record_counts(folders: Path) -> None:
    """An adapter that is merged from a checkpoint has its digests in the checkpoint's record."""
    from hftune.checkpoints.integrity import record_contents, write_record

    adapter = folders / "adapter"
    write_manifest(adapter, {"stage": "sft", "status": "checkpoint"})
    write_record(adapter, {"step": 1})
    record_contents(adapter)
    folder_fault = list(check_recorded(adapter, "--flag"))
    assert not folder_fault
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, adapter / "adapter_model.safetensors")
    refused("merge", folders, "adapter_model.safetensors has other contents")


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
