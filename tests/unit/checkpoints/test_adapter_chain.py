"""What lies upon what: read from manifests, compared by fingerprints."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from hftune.checkpoints.folder_checks import chain_problems, recorded_chain, whole_chain
from hftune.checkpoints.manifest import write_manifest
from hftune.weight_files import fingerprint


def adapter(folder: Path, below: list[Path], *, manifest: bool = True, seed: int = 0) -> str:
    folder.mkdir()
    torch.manual_seed(seed)
    save_file({"x": torch.randn(4)}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    if manifest:
        base = {"name": "base", "fingerprint": "f"} | ({"adapters": [str(path) for path in below]} if below else {})
        parents = [{"folder": str(path), "fingerprint": fingerprint(path)} for path in below]
        write_manifest(folder, {"status": "complete", "base": base, "parents": parents})
    return str(folder)


def problems(*folders: str) -> str:
    return "\n".join(map(str, chain_problems(list(folders), "--peft_path")))


def test_the_rest_of_a_chain_is_known(tmp_path: Path) -> None:
    a = adapter(tmp_path / "a", [])
    b = adapter(tmp_path / "b", [tmp_path / "a"], seed=1)
    c = adapter(tmp_path / "c", [tmp_path / "a", tmp_path / "b"], seed=2)
    assert recorded_chain(c) == [a, b]
    assert whole_chain([c]) == whole_chain([a, b, c]) == [a, b, c]
    assert whole_chain([]) == []
    assert problems(a, b, c) == problems(a, b) == problems(a) == ""


def test_another_order_or_base_is_refused(tmp_path: Path) -> None:
    a = adapter(tmp_path / "a", [])
    b = adapter(tmp_path / "b", [tmp_path / "a"], seed=1)
    other = adapter(tmp_path / "other", [], seed=2)
    for chain in ([b, a], [other, b], [b], [a, other]):
        said = problems(*chain)
        assert "was trained on the base" in said and "here it would lie upon the base" in said, chain


def test_the_same_weights_elsewhere_will_do(tmp_path: Path) -> None:
    adapter(tmp_path / "a", [])
    b = adapter(tmp_path / "b", [tmp_path / "a"], seed=1)
    (tmp_path / "a").rename(tmp_path / "moved")
    assert problems(str(tmp_path / "moved"), b) == ""


def test_changed_weights_are_noticed(tmp_path: Path) -> None:
    a = adapter(tmp_path / "a", [])
    b = adapter(tmp_path / "b", [tmp_path / "a"], seed=1)
    save_file({"x": torch.zeros(4)}, tmp_path / "a" / "adapter_model.safetensors")
    assert "was trained on" in problems(a, b)


def test_adapters_from_elsewhere_are_taken_as_given(tmp_path: Path) -> None:
    a = adapter(tmp_path / "a", [], manifest=False)
    b = adapter(tmp_path / "b", [], manifest=False, seed=1)
    assert problems(a, b) == "" and whole_chain([a, b]) == [a, b]
    c = adapter(tmp_path / "c", [tmp_path / "b"], seed=2)
    assert "c was trained on" in problems(a, b, c), "what is before it says nothing, and it says its own"
