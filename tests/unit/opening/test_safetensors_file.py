"""Headers hold what the format demands, which is what its own library accepts."""

from __future__ import annotations

import json
import struct
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from hftune.errors import ManifestError
from hftune.opening.safetensors_file import (
    BITS,
    HEADER_LIMIT,
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


BAD: dict[str, tuple[Any, bytes, str]] = {
    # name: header, data, words of the message
    "no json": (b"{nothing}", b"", "not valid JSON"),
    "spaces first": (b" {}", b"", "does not begin with a brace"),
    "a list": (b"[]", b"", "does not begin with a brace"),
    "brackets": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"", "nested too deeply"),
    "a name twice": (b'{"a":{},"a":{}}', b"", "there twice"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b"", "metadata are not texts"),
    "metadata no object": ({"__metadata__": [1]}, b"", "metadata are not texts"),
    "an entry of text": ({"a": "F32"}, b"", "has not just dtype, shape and data_offsets"),
    "an entry of nothing": ({"a": None}, b"", "has not just dtype"),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8), "has not just"),
    "no offsets": ({"a": {"shape": [2], "dtype": "F32"}}, bytes(8), "has not just"),
    "more than that": (entry(more=1), bytes(8), "has not just"),
    "another dtype": (entry(dtype="F31"), bytes(8), "its dtype is 'F31'"),
    "dtype a list": (entry(dtype=["F32"]), bytes(8), "its dtype is"),
    "dtype with escapes": (entry(dtype="\x1b]52;c;"), bytes(8), r"its dtype is '\\x1b"),
    "shape a number": (entry(shape=2), bytes(8), "its shape is 2"),
    "shape below zero": (entry(shape=[-2]), bytes(8), "its shape is"),
    "shape twice below zero": (entry(shape=[-1, -2]), bytes(8), "its shape is"),
    "shape of truths": (entry(shape=[True, 2]), bytes(8), "its shape is"),
    "shape of floats": (entry(shape=[2.0]), bytes(8), "its shape is"),
    "shape of texts": (entry(shape=["2"]), bytes(8), "its shape is"),
    "a huge dimension": (entry(shape=[1 << 63]), bytes(8), "its shape is"),
    "dimensions that overflow": (entry(shape=[1 << 62, 1 << 62, 2]), bytes(8), "F32 of shape"),
    "many dimensions": (entry(shape=[1] * 65 + [2]), bytes(8), "its shape is"),
    "one offset": (entry(data_offsets=[8]), bytes(8), "its data_offsets are"),
    "three offsets": (entry(data_offsets=[0, 4, 8]), bytes(8), "its data_offsets are"),
    "offsets a text": (entry(data_offsets="08"), bytes(8), "its data_offsets are"),
    "offsets below zero": (entry(data_offsets=[-8, 0]), bytes(8), "its data_offsets are"),
    "offsets the other way": (entry(data_offsets=[8, 0]), bytes(8), "its data_offsets are"),
    "fewer bytes than elements": (
        entry(shape=[3]),
        bytes(8),
        "F32 of shape .3. has 12 bytes, its data_offsets leave 8",
    ),
    "a hole at the start": (entry(data_offsets=[4, 12]), bytes(12), "begins at byte 4 of the data"),
    "a hole between": ({"a": A, "b": A | {"data_offsets": [12, 20]}}, bytes(20), "the tensor before ends at 8"),
    "one on the other": ({"a": A, "b": A | {"data_offsets": [4, 12]}}, bytes(12), "the tensor before ends at 8"),
    "the same bytes twice": ({"a": A, "b": A}, bytes(8), "'b' begins at byte 0"),
    "cut off": (entry(), bytes(7), "it is cut off: a ends at byte"),
    "more bytes": (entry(), bytes(9), "has bytes that belong to no tensor"),
    "bytes of nothing": ({}, bytes(1), "has bytes that belong to no tensor"),
    "a long name": ({"n" * 5000: A}, bytes(8), "the name has 5000 characters"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_headers(tmp_path: Path, name: str) -> None:
    header, data, words = BAD[name]
    file = write(tmp_path / "model.safetensors", header, data)
    with pytest.raises(ManifestError, match=words) as problem:
        read_safetensors_header(file)
    assert str(problem.value.place).startswith(str(file)) and problem.value.fix == "copy or download it again"
    assert len(str(problem.value)) < 700
    with pytest.raises(ManifestError):
        load_tensors(file)
    # hftune is not laxer than the format's library; it asks for sane names and dimensions besides.
    if name not in (
        "many dimensions",
        "a long name",
        "a name twice",
        "more than that",
        "metadata no object",
        "spaces first",
    ):
        with pytest.raises(SafetensorError):
            safe_open(file, framework="pt")


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (HEADER_LIMIT + 1, "has 100000001 bytes, and the format allows 100000000"),
        ((1 << 64) - 1, "the format allows"),
        (HEADER_LIMIT, "it is cut off: the header of 100000000 bytes"),
        (10_000, "it is cut off: the header of 10000 bytes"),
        (0, "it is cut off: the header of 0 bytes"),
        (1, "it is cut off: the header of 1 bytes"),
    ],
)
def test_lengths_of_headers(tmp_path: Path, length: int, words: str) -> None:
    file = write(tmp_path / "a.safetensors", entry(), bytes(8), length)
    with pytest.raises(ManifestError, match=words):
        read_safetensors_header(file)


@pytest.mark.parametrize("size", range(8))
def test_files_too_short_for_a_length(tmp_path: Path, size: int) -> None:
    (tmp_path / "a.safetensors").write_bytes(bytes(size))
    with pytest.raises(ManifestError, match="cut off"):
        read_safetensors_header(tmp_path / "a.safetensors")


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


def test_every_dtype_of_the_format(tmp_path: Path) -> None:
    for dtype, bits in BITS.items():
        shape, size = ([4], bits // 2) if bits < 8 else ([2], bits // 4)
        file = write(tmp_path / "a.safetensors", {"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}})
        file.write_bytes(file.read_bytes() + bytes(size))
        assert read_safetensors_header(file).tensors["a"]["dtype"] == dtype
        with safe_open(file, framework="pt") as stored:
            assert stored.keys() == ["a"], dtype


def test_memory_is_asked_before_all_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"a": torch.zeros(4)}, tmp_path / "a.safetensors")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 10}))
    with pytest.raises(ManifestError, match=r"takes .* bytes of memory"):
        load_tensors(tmp_path / "a.safetensors")


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
