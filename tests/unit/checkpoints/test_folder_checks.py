"""Folders that are not what was written, and what they lie upon."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hftune import digests
from hftune.checkpoints.folder_checks import (
    chain_problems,
    check_recorded,
    check_recorded_base,
    check_recorded_whole,
    recorded_chain,
    whole_chain,
)
from hftune.checkpoints.integrity import record_contents, write_record
from hftune.checkpoints.manifest import finish_manifest, write_manifest
from hftune.logging import notices
from hftune.weight_files import fingerprint
from tests.unit.merging.models import store


def said(folder: Path | str) -> str:
    return "; ".join(str(problem) for problem in check_recorded_whole(str(folder), "--model"))


def test_a_finished_folder_is_sound_until_it_changes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "vocab.txt").write_text("a")
    finish_manifest(tmp_path, {"status": "complete"})
    assert said(tmp_path) == ""
    (tmp_path / "vocab.txt").write_text("b")
    (problem,) = check_recorded(tmp_path, "--base")
    assert "vocab.txt" in str(problem) and f"--base {tmp_path}" in str(problem)


def test_contents_behind_an_unchanged_time_are_read(tmp_path: Path) -> None:
    """What a disk damages leaves size and time as they were; so does `cp -p`."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"abc")
    finish_manifest(tmp_path, {"status": "complete"})
    then = file.stat()
    assert said(tmp_path) == ""
    file.write_bytes(b"abd")
    os.utime(file, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert "model.safetensors has other contents" in said(tmp_path)


@pytest.mark.parametrize("name", ["chat_template.jinja", "model.safetensors.index.json", "adapter_model.safetensors"])
def test_a_file_that_takes_the_place_of_recorded_ones(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    finish_manifest(tmp_path, {"status": "complete"})
    for note in ("README.md", "answers.json", "evaluation.json", "notes.txt", "training_args.bin"):
        (tmp_path / note).write_text("{}")
    assert said(tmp_path) == ""
    (tmp_path / name).write_text('{"weight_map": {"a": "b.safetensors"}}')
    assert f"{name} is new" in said(tmp_path)
    write_manifest(tmp_path, {"files": {"config.json": None, name: None}})
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert said(tmp_path) == "", "the way out"


def test_a_checkpoint_is_compared_with_its_own_record(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "optimizer.pt").write_text("1")
    write_record(tmp_path, {})
    record_contents(tmp_path)
    (tmp_path / "optimizer.pt").write_text("2")
    assert said(tmp_path) == "", "the optimizer's files are not used here"
    (tmp_path / "config.json").write_text("{ }")
    assert "config.json has other contents" in said(tmp_path)


def test_damaged_json_and_names_of_the_hub(tmp_path: Path) -> None:
    assert said("owner/name") == "" == "; ".join(map(str, check_recorded(None, "--base")))
    (tmp_path / "config.json").write_text("{")
    (problem,) = check_recorded(tmp_path, "--base")
    assert "config.json" in str(problem)


def adapter(folder: Path, base: Path, *below: Path) -> Path:
    store(folder, {"a": torch.full((2,), float(len(folder.name)))})
    (folder / "config.json").unlink(missing_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    parents = [{"folder": str(one), "fingerprint": fingerprint(one)} for one in below]
    recorded = {"name": str(base), "fingerprint": fingerprint(base), "adapters": [str(one) for one in below]}
    finish_manifest(folder, {"base": recorded, "parents": parents, "status": "complete"})
    return folder


def test_an_adapter_is_looked_at_with_all_that_it_lies_upon(tmp_path: Path) -> None:
    base = tmp_path / "base"
    store(base, {"a": torch.ones(2)})
    (base / "tokenizer_config.json").write_text("{}")
    finish_manifest(base, {"status": "complete"})
    first = adapter(tmp_path / "first", base)
    second = adapter(tmp_path / "second", base, first)
    assert said(second) == ""
    (base / "tokenizer_config.json").write_text('{"a": 1}')
    assert "tokenizer_config.json has" in said(second) and [*check_recorded(second, "--model")] == []
    (base / "tokenizer_config.json").write_text("{}")
    store(first, {"a": torch.zeros(2)})
    assert "model.safetensors has other contents" in said(second) and "was trained on the base" in said(second)


def test_a_file_is_read_once_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vocab.txt").write_text("a")
    finish_manifest(tmp_path, {"status": "complete"})
    monkeypatch.setattr(digests, "_SETTLED", 0)
    read: list[Path] = []
    monkeypatch.setattr(digests, "digest", lambda file, real=digests.digest: read.append(file) or real(file))
    assert said(tmp_path) == said(tmp_path) == ""
    assert read == [tmp_path / "vocab.txt"]
    (tmp_path / "vocab.txt").write_text("b")
    assert "other contents" in said(tmp_path) and len(read) == 2


# --- what lies upon what: read from manifests, compared by fingerprints ---


def link(folder: Path, below: list[Path], *, manifest: bool = True, seed: int = 0) -> str:
    folder.mkdir()
    torch.manual_seed(seed)
    save_file({"x": torch.randn(4)}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    if manifest:
        base = {"name": "base", "fingerprint": "f"} | ({"adapters": [str(path) for path in below]} if below else {})
        parents = [{"folder": str(path), "fingerprint": fingerprint(path)} for path in below]
        write_manifest(folder, {"status": "complete", "base": base, "parents": parents})
    return str(folder)


def chained(*folders: str) -> str:
    return "\n".join(map(str, chain_problems(list(folders), "--peft_path")))


def test_the_rest_of_a_chain_is_known(tmp_path: Path) -> None:
    a = link(tmp_path / "a", [])
    b = link(tmp_path / "b", [tmp_path / "a"], seed=1)
    c = link(tmp_path / "c", [tmp_path / "a", tmp_path / "b"], seed=2)
    assert recorded_chain(c) == [a, b]
    assert whole_chain([c]) == whole_chain([a, b, c]) == [a, b, c]
    assert whole_chain([]) == []
    assert chained(a, b, c) == chained(a, b) == chained(a) == ""


def test_another_order_or_base_is_refused(tmp_path: Path) -> None:
    a = link(tmp_path / "a", [])
    b = link(tmp_path / "b", [tmp_path / "a"], seed=1)
    other = link(tmp_path / "other", [], seed=2)
    for chain in ([b, a], [other, b], [b], [a, other]):
        said = chained(*chain)
        assert "was trained on the base" in said and "here it would lie upon the base" in said, chain
    c = link(tmp_path / "c", [tmp_path / "a", tmp_path / "b"], seed=3)
    assert f"the adapter in {c} was trained on the base + {a} + {b}" in chained(b, a, c), "the same two the other way"


def test_the_same_weights_elsewhere_will_do(tmp_path: Path) -> None:
    link(tmp_path / "a", [])
    b = link(tmp_path / "b", [tmp_path / "a"], seed=1)
    (tmp_path / "a").rename(tmp_path / "moved")
    assert chained(str(tmp_path / "moved"), b) == ""


def test_changed_weights_are_noticed(tmp_path: Path) -> None:
    a = link(tmp_path / "a", [])
    b = link(tmp_path / "b", [tmp_path / "a"], seed=1)
    save_file({"x": torch.zeros(4)}, tmp_path / "a" / "adapter_model.safetensors")
    assert "was trained on" in chained(a, b)


def test_adapters_from_elsewhere_are_taken_as_given(tmp_path: Path) -> None:
    a = link(tmp_path / "a", [], manifest=False)
    b = link(tmp_path / "b", [], manifest=False, seed=1)
    assert chained(a, b) == "" and whole_chain([a, b]) == [a, b]
    c = link(tmp_path / "c", [tmp_path / "b"], seed=2)
    assert "c was trained on" in chained(a, b, c), "what is before it says nothing, and it says its own"


# --- another base than an adapter's own: refused where its weights are known, said where its name is ---


@pytest.fixture
def base(tmp_path: Path) -> Path:
    store(tmp_path / "base", {"a": torch.ones(2)})
    return tmp_path / "base"


def named(folder: Path, name: str | None, recorded: str | None) -> str:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": name}))
    if recorded is not None:
        write_manifest(folder, {"base": {"name": "its own", "fingerprint": recorded}})
    return str(folder)


def test_by_the_fingerprint(base: Path, tmp_path: Path) -> None:
    own = named(tmp_path / "own", "another name", fingerprint(base))
    assert not list(check_recorded_base(str(base), own, "--flag")) and notices() == []
    other = named(tmp_path / "other", base.name, "0123456789abcdef")
    (problem,) = check_recorded_base(str(base), other, "--flag")
    assert f"trained on other weights than those in {base}" in str(problem) and "its own" in str(problem)


@pytest.mark.parametrize("recorded", [None, "hub:maker/model"])
def test_by_the_name_where_no_weights_are_known(base: Path, tmp_path: Path, recorded: str | None) -> None:
    same = named(tmp_path / "same", f"/elsewhere/{base.name}", recorded)
    unnamed = named(tmp_path / "unnamed", None, recorded)
    for folder in (same, unnamed):
        assert not list(check_recorded_base(str(base), folder, "--flag")) and notices() == []
    other = named(tmp_path / "other", "maker/model", recorded)
    assert not list(check_recorded_base(str(base), other, "--flag"))
    assert notices() == [f"the adapter in {other} names the base maker/model, here it is used on {base}"]


def test_a_base_of_the_hub_is_compared_by_name(tmp_path: Path) -> None:
    folder = named(tmp_path / "adapter", "maker/model", "0123456789abcdef")
    assert not list(check_recorded_base("other/model", folder, "--flag")) and notices() == []
    assert (
        not list(check_recorded_base("other/thing", folder, "--flag")) and "names the base maker/model" in notices()[0]
    )
