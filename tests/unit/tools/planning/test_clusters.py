"""Devices that are here, as a plan takes them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hftune.preflight.devices import DEVICES, GIB
from hftune.tools.planning.timing import cluster_here


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    return monkeypatch


def test_only_this_processs_own_gpu_is_asked(gpu: pytest.MonkeyPatch) -> None:
    """To ask another one makes a context of some hundred MB there."""
    gpu.setattr(
        torch.cuda, "get_device_properties", {3: SimpleNamespace(name="NVIDIA H200", total_memory=1, major=9)}.get
    )
    gpu.setattr(torch.cuda, "mem_get_info", lambda device: {3: (100 * GIB, 140 * GIB)}[device])
    here = cluster_here()
    assert here.device.memory == 100 * GIB and here.per_node == 8 and here.device.name == DEVICES["H200"].name
