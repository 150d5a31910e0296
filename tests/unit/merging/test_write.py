"""Which tensor lies where, and what is written of it."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hftune.errors import ArgumentError, ManifestError
from hftune.merging import write
from hftune.merging.changes import LowRank, Replace
from hftune.merging.plan import Output
from hftune.merging.skeleton import StoredSlice
from hftune.merging.tensors import read_tensor
from hftune.merging.write import lay_out, write_index
from hftune.weight_files import StoredTensor, stored_tensors
from tests.unit.merging.models import store


def output(name: str, rows: int) -> Output:
    return Output(name, "F32", (rows, 1), None)


def names(shards: write.Shards) -> dict[str, list[str]]:
    return {file: [one.name for one in held] for file, held in shards.items()}


def test_files_of_a_size() -> None:
    tensors = [output("a", 2), output("b", 1), output("c", 9), output("d", 1)]  # 4 bytes a row
    assert names(lay_out(tensors, "12")) == {
        "model-00001-of-00003.safetensors": ["c"],  # larger than asked for by itself
        "model-00002-of-00003.safetensors": ["a", "b"],
        "model-00003-of-00003.safetensors": ["d"],
    }
    assert names(lay_out(tensors, "1KB")) == {"model.safetensors": ["a", "b", "c", "d"]}


def test_the_base_s_files(tmp_path: Path) -> None:
    """A new tensor stands behind the last old one before it."""
    first = store(tmp_path / "1", {"a": torch.ones(1)}, "one.safetensors")["a"]
    second = store(tmp_path / "2", {"b": torch.ones(1)}, "two.safetensors")["b"]
    tensors = [Output("a", "F32", (1,), first), Output("b", "F32", (1,), second), output("c", 1)]
    assert names(lay_out(tensors, None)) == {"one.safetensors": ["a"], "two.safetensors": ["b", "c"]}
    assert names(lay_out(tensors[:1], None)) == {"model.safetensors": ["a"]}


def test_the_index(tmp_path: Path) -> None:
    shards = lay_out([output("b", 2), output("a", 3)], "12")
    write_index(tmp_path, shards)
    text = (tmp_path / "model.safetensors.index.json").read_text()
    assert json.loads(text)["metadata"] == {"total_parameters": 5, "total_size": 20}
    files = {"a": "model-00002-of-00002.safetensors", "b": "model-00001-of-00002.safetensors"}
    assert json.loads(text)["weight_map"] == files and list(json.loads(text)["weight_map"]) == ["a", "b"]
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n", "as transformers writes it"
    (tmp_path / "one").mkdir()
    write_index(tmp_path / "one", dict([*shards.items()][:1]))
    assert not list((tmp_path / "one").iterdir())


def merge_into(folder: Path, outputs: list[Output]) -> list[bool | None]:
    folder.mkdir()
    return write.write_weights(folder, outputs, None)


def test_every_byte(tmp_path: Path) -> None:
    """Copied, cast, replaced by others and replaced by the same."""
    w = {name: torch.randn(40, 3) for name in ("copied", "cast", "changed", "same")}
    base, new = store(tmp_path / "base", w), store(tmp_path / "new", {"changed": w["changed"] + 1, "same": w["same"]})
    outputs = [Output("copied", "F32", (40, 3), base["copied"]), Output("cast", "BF16", (40, 3), base["cast"])]
    for name in ("changed", "same"):
        outputs.append(Output(name, "F32", (40, 3), base[name], [Replace(new[name])], StoredSlice(name)))
    assert merge_into(tmp_path / "merged", outputs) == [None, None, True, False]
    found = load_file(tmp_path / "merged" / "model.safetensors")
    wanted = w | {"cast": w["cast"].bfloat16(), "changed": w["changed"] + 1}
    assert all(torch.equal(found[name], one) and found[name].dtype == one.dtype for name, one in wanted.items())


def test_several_files(tmp_path: Path) -> None:
    base = store(tmp_path / "base", {name: torch.randn(2) for name in "abc"})
    (tmp_path / "merged").mkdir()
    outputs = [Output(name, "F32", (2,), one) for name, one in base.items()]
    assert write.write_weights(tmp_path / "merged", outputs, "16") == [None] * 3
    found = stored_tensors(tmp_path / "merged")
    assert [one.file.name[:11] for one in found.values()] == ["model-00001", "model-00001", "model-00002"]
    assert all(torch.equal(read_tensor(found[name]), read_tensor(base[name])) for name in base)


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of any size is merged in the memory of its largest tensor, and of the one before."""
    base = store(tmp_path / "base", {name: torch.randn(2) for name in "abcdef"})
    read: list[Any] = []

    def noted(stored: StoredTensor) -> torch.Tensor:
        assert sum(one() is not None for one in read) <= 1
        found = read_tensor(stored)
        read.append(weakref.ref(found))
        return found

    monkeypatch.setattr(write, "read_tensor", noted)
    add: Any = SimpleNamespace(apply=lambda weight, where: weight.add_(1))
    merge_into(tmp_path / "merged", [Output(n, "F32", (2,), one, [add], StoredSlice(n)) for n, one in base.items()])
    assert len(read) == 6
    merge_into(tmp_path / "copied", [Output(n, "F32", (2,), one) for n, one in base.items()])
    assert len(read) == 6  # what is not adapted is read in pieces


@pytest.mark.parametrize(("value", "words"), [(float("nan"), "NaN or infinity"), (1e6, "too large for F16")])
def test_what_a_dtype_cannot_hold(value: float, words: str, tmp_path: Path) -> None:
    base = store(tmp_path / "base", {"w": torch.full((2, 2), value)})
    with pytest.raises(ManifestError, match=words):
        merge_into(tmp_path / "merged", [Output("w", "F16", (2, 2), base["w"])])


def test_an_adapter_changes_a_copy(tmp_path: Path) -> None:
    """Else float32 weights, which need no cast, would be compared with themselves."""
    stored = store(tmp_path / "base", {"w": torch.randn(25, 3)})["w"]
    update: Any = SimpleNamespace(apply=lambda weight, where: weight.add_(1))
    outputs = [Output("w", "F32", (25, 3), stored, [update], StoredSlice("w"))]
    assert merge_into(tmp_path / "merged", outputs) == [True]
    assert torch.equal(load_file(tmp_path / "merged" / "model.safetensors")["w"], read_tensor(stored) + 1)


def test_a_rounding_alone_is_no_change(tmp_path: Path) -> None:
    stored = store(tmp_path / "base", {"w": torch.randn(25, 3)})["w"]
    nothing: Any = SimpleNamespace(apply=lambda weight, where: weight)
    assert merge_into(tmp_path / "merged", [Output("w", "BF16", (25, 3), stored, [nothing], StoredSlice("w"))]) == [
        False
    ]


def test_a_second_merge_reads_its_adapter_anew(tmp_path: Path) -> None:
    """Of the same names: written again in between."""
    for value in (1.0, 2.0):
        found = store(tmp_path, {"a": torch.full((1, 2), value), "b": torch.ones(3, 1), "w": torch.zeros(3, 2)})
        update = LowRank(found["a"], found["b"], 1.0)
        merge_into(tmp_path / f"{value}", [Output("w", "F32", (3, 2), found["w"], [update], StoredSlice("w"))])
        assert torch.equal(load_file(tmp_path / f"{value}" / "model.safetensors")["w"], torch.full((3, 2), value))


def test_numbers_of_eight_bits_are_not_looked_at() -> None:
    output = Output("w", "F8_E4M3", (1, 2), None)
    assert write._round(torch.tensor([[1.0, 2.0]]), output).float().tolist() == [[1.0, 2.0]]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = store(tmp_path / "base", {"a": torch.ones(2)})["a"]
    outputs = [Output("a", "F32", (2,), stored)]
    monkeypatch.setattr(write, "free_bytes", lambda folder: 7 + write._SPARE_BYTES)
    with pytest.raises(ArgumentError, match=r"needs 0\.00 GB, the disk of .* has 0\.02 GB left"):
        merge_into(tmp_path / "full", outputs)
    assert not list((tmp_path / "full").iterdir())
    monkeypatch.setattr(write, "free_bytes", lambda folder: 8 + write._SPARE_BYTES)
    assert merge_into(tmp_path / "fits", outputs) == [None]


@pytest.mark.parametrize(
    ("results", "changed", "said"),
    [
        ([True, None, False, True], 2, ["1 of 3 adapted tensors are the base's own after rounding"]),
        ([True, None], 1, []),
    ],
)
def test_tensors_that_rounding_leaves_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: list[Any], changed: int, said: list[str]
) -> None:
    notices: list[str] = []
    monkeypatch.setattr(write, "notice", notices.append)
    monkeypatch.setattr(write, "write_weights", lambda *given: results)
    monkeypatch.setattr(write, "write_config", lambda *given: None)
    plan = SimpleNamespace(outputs=[], inputs=SimpleNamespace(names="a"))
    assert write.write_model(plan, tmp_path, None) == changed
    assert notices == said
