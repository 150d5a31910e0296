"""What goes wrong outside of hftune: each ends in one clear message, what was finished stays, and the same command
finishes once the cause is gone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

WARM = "tests/faults/warm_runner.py"


@pytest.fixture(scope="module")
def pipeline(run: Callable, tiny_model: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """`pipeline(folder, sft="...", data=...)`: run pt and sft in `folder` without the imports; its output."""

    def once(folder: Path, *, data: Path | None = None, launch: str = "", code: int | None = 0, **stages: str) -> str:
        data = data or tiny_data
        file = tmp_path_factory.mktemp("yaml") / "pipeline.yaml"
        shared = "use_peft: true, lora_rank: 4, learning_rate: 1e-2, save_steps: 2, logging_steps: 1, max_steps: 4"
        shared += ", per_device_train_batch_size: 2, gradient_checkpointing: false, use_cpu: true, report_to: none"
        own = {"pt": f"train_file_dir: {data}/pt, block_size: 32", "sft": f"train_file_dir: {data}/sft"}
        listed = "".join(f"  {name}: {{{text}{stages.get(name, '')}}}\n" for name, text in own.items())
        file.write_text(f"model: {tiny_model}\noutput_dir: {folder}\nshared: {{{shared}}}\nstages:\n{listed}")
        finished = run(WARM, str(file), *([launch] if launch else []), warm=True)
        assert code is None or finished.code == code, finished.output[-4000:]
        return finished.output

    return once


def weights(folder: Path) -> dict[str, bytes]:
    return {file.parent.name: file.read_bytes() for file in sorted(folder.glob("*/*.safetensors"))}


@pytest.fixture(scope="module")
def unharmed(pipeline: Callable, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What everything should come to."""
    folder = tmp_path_factory.mktemp("unharmed") / "out"
    pipeline(folder)
    return weights(folder)


def finishes(pipeline: Callable, folder: Path, unharmed: dict[str, bytes], **more: object) -> str:
    """The same command now comes to what it always came to, and pt has not run again."""
    output = pipeline(folder, **more)
    assert "] pt: unchanged, skipped" in output and "] merge pt: unchanged, skipped" in output
    assert weights(folder) == unharmed
    return output


@pytest.mark.slow
def test_too_little_memory(pipeline: Callable, unharmed: dict[str, bytes], tmp_path: Path) -> None:
    output = pipeline(tmp_path / "out", launch=f"memory={20 << 20}", code=2)
    message = output[output.index("sft failed") :]
    assert "out of memory" in message and "--per_device_train_batch_size" in message
    finishes(pipeline, tmp_path / "out", unharmed)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(disk)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.slow
def test_a_full_disk(pipeline: Callable, unharmed: dict[str, bytes], small_disk: Path) -> None:
    folder = small_disk / "out"
    (small_disk / "filler").write_bytes(b"\0" * ((24 << 20) - 200_000))
    output = pipeline(folder, code=2)
    message = output[output.index(" failed (exit code") :]
    assert "the disk is full" in message and "make room" in message
    (small_disk / "filler").unlink()
    pipeline(folder)
    assert weights(folder) == unharmed


@pytest.mark.slow
def test_changed_records(pipeline: Callable, unharmed: dict[str, bytes], tiny_data: Path, tmp_path: Path) -> None:
    data, folder = tmp_path / "data", tmp_path / "out"
    shutil.copytree(tiny_data, data)
    pipeline(folder, data=data)
    file = data / "sft" / "train.jsonl"
    good = file.read_text()
    file.write_text(good.splitlines()[0] + "\n{broken\n")
    output = pipeline(folder, data=data, code=2)
    changed = f"{file} has {file.stat().st_size} bytes, not {len(good.encode())}"
    assert f"sft ({changed})" in output and "--force sft" in output
    output = pipeline(folder, data=data, launch="force=sft", code=2)
    assert f"sft: runs again, since {changed}" in output and f"{file}:2" in output
    assert weights(folder / "previous")["sft"] == unharmed["sft"], "what there was is kept"
    file.write_text(good)
    finishes(pipeline, folder, unharmed, data=data)
