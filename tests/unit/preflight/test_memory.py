"""Memory as arithmetic: the ZeRO paper's own figures, the cases it does not have, and what is really allocated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hftune.preflight.free_memory import cgroup_free
from hftune.preflight.memory import ModelSize, Setup, estimate

GB = 1e9
FULL = ModelSize(weights=7_500_000_000, trained=7_500_000_000)
GPUS = Setup(deepspeed=True, half=True, processes=64, local_processes=8)


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_figure_1_of_the_zero_paper(stage: int, gigabytes: float) -> None:
    """7.5B parameters on 64 GPUs with Adam in mixed precision (arXiv:1910.02054, figure 1)."""
    need = estimate(FULL, replace(GPUS, zero_stage=stage))
    # The paper cuts 16.64 and 31.41, 1.875 is 1.9.
    assert need.weights + need.gradients + need.optimizer == pytest.approx(gigabytes * GB, abs=0.05 * GB)


def test_without_deepspeed_weights_are_float32_and_have_no_copy() -> None:
    need = estimate(ModelSize(100, 100), Setup())
    assert (need.weights, need.gradients, need.optimizer) == (400, 400, 800)


def test_offloading_moves_states_to_the_machine() -> None:
    setup = replace(GPUS, zero_stage=3, processes=1, local_processes=1, offload_optimizer=True, offload_weights=True)
    need = estimate(ModelSize(100, 100), setup)
    # Copy and Adam 12, gradients in float32 4, weights in 16 bit 2.
    assert need.weights == need.gradients == need.optimizer == 0 and need.host == 100 * (12 + 4 + 2)
    assert estimate(ModelSize(100, 100), replace(setup, on_disk=True)).host == 0


def test_a_quantised_base_is_whole_in_each_process_while_it_loads() -> None:
    size = ModelSize(weights=1000, trained=10, packed=900, adapter=10)
    setup = Setup(deepspeed=True, zero_stage=3, processes=4, local_processes=4, half=True, packed_bytes=0.5)
    need = estimate(size, replace(setup, weight_bytes=2.0))
    assert need.weights == (900 * 0.5 + (100 + 10) * 2) / 4
    assert need.loading == 900 * 0.5 + 100 * 2 and not need.loads_on_host


def test_a_full_copy_is_read_into_the_machine_by_each_process_unless_zero_3_shares() -> None:
    setup = replace(GPUS, zero_stage=2, processes=8)
    assert estimate(FULL, setup).loading == 4 * FULL.weights and estimate(FULL, setup).loads_on_host
    assert estimate(FULL, replace(setup, zero_stage=3)).loading == 4 * FULL.weights / 8


def test_limits_of_containers(tmp_path: Path) -> None:
    """Version 2 below its own path, version 1 below memory; droppable file cache is free; no limit says nothing."""
    own = tmp_path / "cgroup"
    own.write_text("0::/job/step\n4:memory:/old\n")
    step = tmp_path / "sys" / "job" / "step"
    step.mkdir(parents=True)
    (step / "memory.max").write_text("1000\n")
    (step / "memory.current").write_text("700\n")
    (step / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    (step.parent / "memory.max").write_text("max\n")
    (step.parent / "memory.current").write_text("900\n")
    old = tmp_path / "sys" / "memory" / "old"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (old / "memory.usage_in_bytes").write_text("5\n")
    assert list(cgroup_free(tmp_path / "sys", own)) == [450]
    (old / "memory.limit_in_bytes").write_text("100\n")
    assert sorted(cgroup_free(tmp_path / "sys", own)) == [95, 450]
    assert list(cgroup_free(tmp_path / "nothing", tmp_path / "none")) == []
