"""Stored tensors, read and written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hftune.errors import ManifestError
from hftune.merging import tensors
from hftune.merging.tensors import NAMES, read_pieces, read_tensor, write_tensors
from hftune.weight_files import file_tensors
from tests.unit.merging.models import store

MADE = {
    "a": torch.randn(3, 1),
    "b.weight": torch.randn(2, 3, 1),
    "é": torch.arange(5, dtype=torch.bfloat16),
    "eight": torch.randn(7).to(torch.float8_e4m3fn),
}


def write(path: Path, made: dict[str, torch.Tensor]) -> None:
    write_tensors(
        path, [(name, NAMES[one.dtype], tuple(one.shape)) for name, one in made.items()], lambda name: [made[name]]
    )


def test_a_file_is_what_safetensors_writes(tmp_path: Path) -> None:
    """Byte by byte, and read back as it was."""
    for number in range(len(MADE) + 1):  # headers of several lengths
        made = dict([*MADE.items()][:number])
        found = store(tmp_path / f"{number}", made)
        write(tmp_path / f"{number}.safetensors", made)
        written = (tmp_path / f"{number}.safetensors").read_bytes()
        # safetensors puts dtypes of more bytes first.
        assert number > 2 or written == (tmp_path / f"{number}" / "model.safetensors").read_bytes()
        (tmp_path / f"{number}" / "model.safetensors").write_bytes(written)
        for name, stored in file_tensors(tmp_path / f"{number}" / "model.safetensors").items():
            assert stored.shape == found[name].shape
            value = read_tensor(stored)
            assert value.dtype == made[name].dtype and torch.equal(value.float(), made[name].float())


def test_a_value_that_is_not_contiguous(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", {"w": MADE["b.weight"].transpose(0, 1)})
    (stored,) = file_tensors(tmp_path / "a.safetensors").values()
    assert torch.equal(read_tensor(stored), MADE["b.weight"].transpose(0, 1))


def test_a_tensor_in_pieces(tmp_path: Path) -> None:
    """In order and none twice, the last one shorter; one without elements as well."""
    made = {"w": torch.randn(5, 3), "empty": torch.empty(0, 3)}
    found = store(tmp_path, made)
    pieces = [*read_pieces(found["w"], 16)]
    assert [len(one) for one in pieces] == [4, 4, 4, 3] and torch.equal(torch.cat(pieces), made["w"].flatten())
    write_tensors(
        tmp_path / "new", [("w", "F32", (5, 3)), ("empty", "F32", (0, 3))], lambda n: read_pieces(found[n], 16)
    )
    assert all(torch.equal(read_tensor(one), made[name]) for name, one in file_tensors(tmp_path / "new").items())


def test_a_value_that_was_not_planned(tmp_path: Path) -> None:
    for other in (torch.ones(4, 1), torch.ones(2, 1), torch.ones(3, 1).half()):
        with pytest.raises(AssertionError, match="a is not what was planned"):
            write_tensors(
                tmp_path / f"{other.dtype}{len(other)}", [("a", "F32", (3, 1))], lambda name, other=other: [other]
            )


def test_a_file_that_ends_too_early(tmp_path: Path) -> None:
    stored = store(tmp_path, {"w": torch.ones(4, 4)})["w"]
    with stored.file.open("r+b") as file:
        file.truncate(stored.start + 10)
    with pytest.raises(ManifestError, match="ends too early"):
        read_tensor(stored)


def test_a_new_file_is_not_written_through_somebody_s(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        write(tmp_path / "model.safetensors", MADE)
    assert not (tmp_path / "victim").exists()


def test_bytes_are_on_the_disk_before_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(tensors.os, "fsync", lambda file: sizes.append(tensors.os.fstat(file).st_size))
    write(tmp_path / "a.safetensors", MADE)
    assert sizes == [(tmp_path / "a.safetensors").stat().st_size]


def test_what_can_be_folded_into() -> None:
    """Every kind of float but those of eight bits, in which a step is larger than most updates."""
    assert {tensors.DTYPES[name] for name in tensors.FLOATS} == {
        dtype for dtype in tensors.DTYPES.values() if dtype.is_floating_point and dtype.itemsize > 1
    }
