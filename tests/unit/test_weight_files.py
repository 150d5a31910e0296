"""Headers and fingerprints of weights on disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hftune.errors import ArgumentError, ManifestError
from hftune.weight_files import INDEX_NAME, WEIGHTS_NAME, fingerprint, parse_size, weight_files, weight_shapes


def test_shapes_come_from_headers(tiny_model: Path) -> None:
    loaded = load_file(tiny_model / "model.safetensors")
    assert weight_shapes(tiny_model) == {name: tuple(tensor.shape) for name, tensor in loaded.items()}
    assert weight_shapes("some/hub-name") == {}
    assert weight_shapes(None) == {}


def test_a_fingerprint_follows_the_weights(tiny_model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_model, copy)
    assert fingerprint(copy) == fingerprint(tiny_model)
    (copy / "README.md").write_text("not a weight")
    assert fingerprint(copy) == fingerprint(tiny_model)
    weights = load_file(copy / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], 0.5)
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    assert fingerprint(copy) != fingerprint(tiny_model)
    assert fingerprint("some/hub-name") == "hub:some/hub-name"


def test_a_fingerprint_is_of_start_middle_and_end_and_of_name_and_size(tmp_path: Path) -> None:
    file, size = tmp_path / "model.gguf", 1 << 20

    def after(*places: int, more: int = 0) -> str:
        content = bytearray(size + more)
        for place in places:
            content[place] = 1
        file.write_bytes(content)
        return fingerprint(tmp_path)

    found = [after(), after(0), after(size // 2), after(size - 1), after(more=1)]
    assert len({*found}) == 5 and after(1 << 17) == found[0], "what lies between is not read"
    file.rename(tmp_path / "other.gguf")
    assert fingerprint(tmp_path) not in found


def test_which_files_are_the_model(tmp_path: Path) -> None:
    """Those of the index, else the one of the usual name, else all; what lies next to them is something else's."""
    for name in ("b.safetensors", "a.safetensors"):
        save_file({"x": torch.ones(1)}, tmp_path / name)
    assert [file.name for file in weight_files(tmp_path)] == ["a.safetensors", "b.safetensors"]
    save_file({"x": torch.ones(1)}, tmp_path / WEIGHTS_NAME)
    assert weight_files(tmp_path) == [tmp_path / WEIGHTS_NAME]
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"x": "b.safetensors", "y": "b.safetensors"}}))
    assert weight_files(tmp_path) == [tmp_path / "b.safetensors"]
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ManifestError, match=r"lacks b\.safetensors, which its index names"):
        weight_files(tmp_path)
    assert weight_files("owner/name") == []


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("500mb", 5 * 10**8), ("2 GiB", 2**31), ("4KiB", 4096), ("7", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "0GB", "1.5GB", "-1MB", "5TB", "\N{SUPERSCRIPT TWO}", "9" * 5000])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ArgumentError, match="is no size"):
        parse_size(text)
