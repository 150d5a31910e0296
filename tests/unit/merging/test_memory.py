"""Memory does not grow with a model: 70B merges where 7B does (US1667)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hftune.weight_files import weight_files
from tests.unit.merging.models import make_adapter

# One process merges both, the small one first: what the high-water mark gains is what the large one needs more.
_MERGE_BOTH = """
import sys
from pathlib import Path
from hftune.arguments.merging import MergeArguments
from hftune.merging.merge import merge_adapter
for adapter in sys.argv[1:]:
    merge_adapter(MergeArguments(peft_model_path=adapter, output_dir=adapter + "-merged", verify="false"))
    status = Path("/proc/self/status").read_text()
    print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_more_layers_take_no_more_memory(make_base: Callable, tmp_path: Path) -> None:
    adapters, sizes = [], []
    # Twelve layers fill what is read ahead and the allocator's pools, as two do not (they gain 10 MiB to 14 later on).
    for layers in (12, 56):
        base = make_base("llama", num_hidden_layers=layers, intermediate_size=6144, dtype=torch.float32)
        sizes.append(sum(file.stat().st_size for file in weight_files(base)) / 2**20)
        adapters.append(
            make_adapter(base, tmp_path / str(layers), target_modules=["gate_proj", "up_proj", "down_proj"])
        )
    more = sizes[1] - sizes[0]
    assert more > 90  # MiB
    done = subprocess.run(
        [sys.executable, "-c", _MERGE_BOTH, *map(str, adapters)], capture_output=True, text=True, check=True
    )
    small, large = (int(value) / 1024 for value in done.stdout.split()[-2:])
    assert large - small < more / 3, f"{small:.0f} and {large:.0f} MiB for {more:.0f} MiB more of weights"
