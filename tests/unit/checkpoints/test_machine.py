"""What a manifest says of the machine."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from hftune.checkpoints.manifest import describe_machine, processor


def test_what_shapes_the_last_bits_is_there() -> None:
    found = describe_machine()
    assert found["threads"] == torch.get_num_threads() and found["instructions"] and found["processor"]
    assert ("gpu" in found) == torch.cuda.is_available()


def test_the_processor_s_name(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Some CPU: 3 GHz\nmodel name\t: Other\n")
    assert processor(file) == "Some CPU: 3 GHz"
    file.write_text("processor\t: 0\n")
    assert processor(file) == platform.machine()
    assert processor(tmp_path / "gone") == (platform.processor() or platform.machine())
