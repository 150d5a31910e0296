"""What goes wrong outside of hftune: each ends in one clear message, what was finished stays, and the same command
finishes once the cause is gone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hftune.checkpoints.resume import newest_whole

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


@pytest.fixture
def started(pipeline: Callable, unharmed: dict[str, bytes], tmp_path: Path) -> Path:
    """A pipeline of which pt is finished."""
    folder = tmp_path / "out"
    output = pipeline(folder, sft=", learning_rate: 1e30", code=2)
    assert "sft failed" in output
    return folder


def finishes(pipeline: Callable, folder: Path, unharmed: dict[str, bytes], **more: object) -> str:
    """The same command now comes to what it always came to, and pt has not run again."""
    output = pipeline(folder, **more)
    assert "] pt: unchanged, skipped" in output and "] merge pt: unchanged, skipped" in output
    assert weights(folder) == unharmed
    return output


@pytest.mark.slow
def test_a_loss_that_is_no_number(pipeline: Callable, unharmed: dict[str, bytes], started: Path) -> None:
    output = pipeline(started, sft=", learning_rate: 1e30", code=2)
    message = output[output.index("sft failed") :]
    assert "nan" in message.lower() or "finite" in message.lower()
    assert "Traceback" not in message and "run_sft.py --model_name_or_path" in message
    told = finishes(pipeline, started, unharmed)
    assert "runs again, since learning_rate was 1e30, is 1e-2" in told


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
def test_a_read_only_disk(pipeline: Callable, unharmed: dict[str, bytes], small_disk: Path) -> None:
    folder = small_disk / "out"
    remount = ["mount", "-o", "remount,{}", str(small_disk)]
    subprocess.run([word.format("ro") for word in remount], check=True)
    output = pipeline(folder, code=2)
    assert f"{folder} cannot be written: Read-only file system" in output and "Traceback" not in output
    subprocess.run([word.format("rw") for word in remount], check=True)
    pipeline(folder)
    assert weights(folder) == unharmed


@pytest.mark.slow
def test_flipped_bits_in_a_checkpoint(pipeline: Callable, unharmed: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    pipeline(folder)
    interrupt(folder)
    newest, older = folder / "sft" / "checkpoint-4", folder / "sft" / "checkpoint-2"
    assert newest_whole(folder / "sft").folder == newest
    for file in sorted(path for path in newest.rglob("*") if path.is_file() and path.stat().st_size):
        good = file.read_bytes()
        middle = len(good) // 2
        file.write_bytes(good[:middle] + bytes([good[middle] ^ 0x10]) + good[middle + 1 :])
        found = newest_whole(folder / "sft").folder
        # A record whose own letters were flipped may still say all that matters.
        assert found == older or file.name == "hftune_checkpoint.json", file
        file.write_bytes(good)
    optimizer = newest / "optimizer.pt"
    good = optimizer.read_bytes()
    optimizer.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    finishes(pipeline, folder, unharmed)
    log = (folder / "logs" / "sft.log").read_text()
    assert "checkpoint-4 is skipped: optimizer.pt no longer holds what was written" in log
    assert f"resuming from {older}" in log


def interrupt(folder: Path) -> None:
    """What a run leaves that was killed while it saved its result."""
    manifest = json.loads((folder / "sft" / "hftune.json").read_text())
    (folder / "sft" / "hftune.json").write_text(json.dumps(manifest | {"status": "running"}))
    (folder / "sft" / "adapter_model.safetensors").unlink()
    shutil.rmtree(folder / "sft-merged")


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
