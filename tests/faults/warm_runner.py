"""`hftune pipeline run PIPELINE.yaml` whose stages are forks; run_sft.py may be given less than it needs.

python tests/faults/warm_runner.py PIPELINE.yaml [memory=BYTES] [force=STAGE]

Not a test: see test_pipeline_faults.py.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from hftune.errors import run_tool
from hftune.tools.pipeline.runner import Choice, Runner
from hftune.tools.pipeline.spec import read_spec
from hftune.tools.pipeline.steps import steps_of
from tests.faults.warm_pipeline import Forked, warm_start


def main() -> None:
    """As the command does."""
    spec = read_spec(sys.argv[1])
    limits = dict(word.split("=") for word in sys.argv[2:])

    def start(command: Sequence[str], env: Mapping[str, str], log: Path) -> Forked:
        def limit() -> None:
            if "memory" in limits and command[1].endswith("run_sft.py"):
                most = psutil.Process().memory_info().vms + int(limits["memory"])
                resource.setrlimit(resource.RLIMIT_AS, (most, most))

        return warm_start(command, env, log, limit)

    Runner(Path(str(spec.output_dir.value)), start=start, check=lambda steps: None).run(
        steps_of(spec), Choice(force=tuple(filter(None, limits.get("force", "").split(","))))
    )


if __name__ == "__main__":
    run_tool(main)
