"""Whole weights in the memory of a few tensors."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hftune.errors import ArgumentError
from hftune.tools.consolidating import ConsolidateArguments, consolidate
from hftune.weight_files import weight_files
from tests.unit.checkpoints.zero_files import PARAMETERS, write

pytestmark = pytest.mark.long

STATUS = Path("/proc/self/status")


GROUPS = [*PARAMETERS, {"d": torch.arange(300.0), "e": torch.arange(280.0).reshape(7, 40)}]


def asked_for(checkpoint: Path, folder: Path, **more: str) -> ConsolidateArguments:
    return ConsolidateArguments(checkpoint=str(checkpoint), output_dir=str(folder), **more)


def test_a_size_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="'1500B' is no size"):
        consolidate(asked_for(write(tmp_path, 2, 3, GROUPS), tmp_path / "out", max_shard_size="1500B"))


@pytest.mark.parametrize(
    ("stage", "dtype", "size", "files"), [(1, "float32", "1KB", 3), (2, "bfloat16", "5GB", 1), (3, "float32", "1KB", 3)]
)
def test_files_and_index(tmp_path: Path, stage: int, dtype: str, size: str, files: int) -> None:
    checkpoint = write(tmp_path, stage, 3, GROUPS)
    folder = consolidate(asked_for(checkpoint, tmp_path / "out", dtype=dtype, max_shard_size=size))
    assert len(list(folder.glob("*.safetensors"))) == files == len(weight_files(folder))
    found = {name: tensor for file in weight_files(folder) for name, tensor in load_file(file).items()}
    for name, value in ((name, value) for group in GROUPS for name, value in group.items()):
        assert torch.equal(found.pop(name), value.to(getattr(torch, dtype))), name
    assert not found


@pytest.mark.skipif(not STATUS.is_file(), reason="counts memory as Linux does")
@pytest.mark.parametrize("stage", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_memory_is_that_of_a_few_tensors(tmp_path: Path, stage: int) -> None:
    """24 tensors of 4 MiB, with moments 288 MiB on the disk, which are mapped: a few are in memory of its own."""
    each, count = 4 << 20, 24
    groups = [{f"layer.{number}": torch.full((each // 4,), float(number)) for number in range(count)}]
    checkpoint = write(tmp_path, stage, 2, groups)
    del groups
    asked = asked_for(checkpoint, tmp_path / "out")
    consolidate(asked_for(write(tmp_path / "small", stage, 2), tmp_path / "s"))
    before, seen, done = kilobytes("RssAnon"), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            seen.append(kilobytes("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        folder = consolidate(asked)
    finally:
        done.set()
        watcher.join()
    grown = (max(seen) - before) * 1024
    assert len(seen) > 10 and grown < 8 * each, f"{grown / each:.1f} tensors"
    (file,) = folder.glob("*.safetensors")
    assert file.stat().st_size > count * each
    assert float(load_file(file)["layer.17"][-1]) == 17.0


def kilobytes(what: str) -> int:
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(what))
