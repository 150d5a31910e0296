"""Headers hold what the format demands, which is what its own library accepts."""

from __future__ import annotations

import json
import struct
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from hftune.errors import ManifestError
from hftune.opening.safetensors_file import (
    is_plain_name,
    load_tensors,
    open_tensors,
    read_index,
    read_safetensors_header,
)

A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write(file: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return file


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": A | changes}


BAD: dict[str, tuple[Any, bytes]] = {  # what else the format forbids, its own library refuses
    "no json": (b"{nothing}", b""),
    "a list": (b"[]", b""),
    "a name twice": (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},' * 2 + b'"b":{}}', b""),
    "dtype with escapes": (entry(dtype="\x1b]52;c;"), bytes(8)),
    "a hole at the start": (entry(data_offsets=[4, 12]), bytes(12)),
    "cut off": (entry(), bytes(7)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_headers(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / "model.safetensors", *BAD[name])
    for read in (read_safetensors_header, load_tensors):
        with pytest.raises(ManifestError) as problem:
            read(file)
        said = str(problem.value)
        assert str(problem.value.place).startswith(str(file)) and problem.value.fix == "copy or download it again"
        assert len(said) < 700 and "\x1b" not in said


def test_what_the_library_writes(tmp_path: Path) -> None:
    tensors = {
        "b": torch.zeros(3, 2, dtype=torch.bfloat16),
        "a": torch.ones(0, 4),
        "scalar": torch.tensor(2.0),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "truth": torch.tensor([True]),
        "complex": torch.zeros(2, dtype=torch.complex64),
        "eight": torch.zeros(2, dtype=torch.float8_e4m3fn),
    }
    file = tmp_path / "a.safetensors"
    save_file(tensors, file, metadata={"format": "pt"})
    header = read_safetensors_header(file)
    assert header.metadata == {"format": "pt"}
    assert {name: tuple(about["shape"]) for name, about in header.tensors.items()} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }
    starts = [about["data_offsets"][0] for about in header.tensors.values()]
    assert starts == sorted(starts)
    found = load_tensors(file)
    assert found.keys() == tensors.keys() and torch.equal(found["bytes"], tensors["bytes"])
    save_file({}, tmp_path / "none.safetensors")
    assert read_safetensors_header(tmp_path / "none.safetensors").tensors == {}


def test_the_librarys_faults_are_the_one_message(tmp_path: Path) -> None:
    import os

    file = write(tmp_path / "a.safetensors", entry(), bytes(7))
    with pytest.raises(ManifestError, match="cannot be read") as problem, open_tensors(file):
        pass
    assert problem.value.place == str(file)
    save_file({"a": torch.zeros(4)}, file)
    with pytest.raises(ManifestError, match="cannot be read"), open_tensors(file) as stored:
        stored.get_tensor("b")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ManifestError, match="is a pipe"), open_tensors(tmp_path / "pipe"):
        pass


@pytest.mark.parametrize(
    "name",
    [
        *("../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", "a\\b", "a\0b", "a\nb", "\x1b[2J"),
        *("./a", "\u202ea", "a/"),
    ],
)
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    assert not is_plain_name(name)
    file = tmp_path / "model.safetensors.index.json"
    file.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": name}}))
    with pytest.raises(ManifestError, match="which is no file next to it") as problem:
        read_index(file)
    assert "\x1b" not in str(problem.value) and "\n  where" in str(problem.value)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": null}'])
def test_indexes_that_are_none(tmp_path: Path, content: str) -> None:
    file = tmp_path / "model.safetensors.index.json"
    file.write_text(content)
    with pytest.raises(ManifestError, match="has no weight_map of file names"):
        read_index(file)


def test_names_that_are_fine() -> None:
    assert all(map(is_plain_name, ("model-00001-of-00002.safetensors", "a b", "模型.safetensors", "global_step10")))


@pytest.mark.parametrize("fails", [True, False])
def test_a_reader_in_another_thread_hides_no_error(
    fails: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After an error transformers' threads may still hold the file, and safetensors cannot close it then."""

    class Held:
        def __enter__(self) -> str:
            return "tensors"

        def __exit__(self, *about: object) -> None:
            raise RuntimeError("Already borrowed")

    monkeypatch.setattr("safetensors.safe_open", lambda file, framework: Held())
    (tmp_path / "a").touch()
    with pytest.raises(KeyError, match="mine") if fails else nullcontext(), open_tensors(tmp_path / "a") as stored:
        assert stored == "tensors"
        if fails:
            raise KeyError("mine")
