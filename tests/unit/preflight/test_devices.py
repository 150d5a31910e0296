"""GPUs that are here, by what torch says of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hftune.preflight.devices import DEVICES, GIB, known_gpu
from hftune.preflight.estimating.planner import CONTEXT
from hftune.tools.planning.cluster import cluster_here


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    return monkeypatch


@pytest.mark.parametrize(
    ("name", "gibibytes", "known"),
    [
        ("NVIDIA H100 80GB HBM3", 79.2, "H100"),
        ("NVIDIA H200", 139.8, "H200"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100-40"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "A100-80"),
        ("Made Up 1", 10.0, "Made Up 1"),
    ],
)
def test_by_name_and_size(gpu: pytest.MonkeyPatch, name: str, gibibytes: float, known: str) -> None:
    found = SimpleNamespace(name=name, total_memory=int(gibibytes * GIB), major=8)
    gpu.setattr(torch.cuda, "get_device_properties", lambda device: {3: found}[device])
    assert known_gpu().name == known
    assert (known_gpu().tflops is None) == (known == "Made Up 1")


def test_only_this_processs_own_gpu_is_asked(gpu: pytest.MonkeyPatch) -> None:
    """To ask another one makes a context of some hundred MB there."""
    gpu.setattr(
        torch.cuda, "get_device_properties", {3: SimpleNamespace(name="NVIDIA H200", total_memory=1, major=9)}.get
    )
    gpu.setattr(torch.cuda, "mem_get_info", lambda device: {3: (100 * GIB, 140 * GIB)}[device])
    here = cluster_here()
    assert here.device.memory == 100 * GIB + CONTEXT and here.per_node == 8 and here.device.name == DEVICES["H200"].name
