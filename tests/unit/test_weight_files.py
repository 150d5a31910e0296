"""Headers and fingerprints of weights on disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hftune.errors import ArgumentError
from hftune.weight_files import fingerprint, parse_size, weight_shapes


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


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("500mb", 5 * 10**8), ("2 GiB", 2**31), ("4KiB", 4096), ("7", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "0GB", "1.5GB", "-1MB", "5TB", "\N{SUPERSCRIPT TWO}", "9" * 5000])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ArgumentError, match="is no size"):
        parse_size(text)
