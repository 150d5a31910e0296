"""Stages at a terminal, as small runs that last. Not a test: see test_interrupts.py and test_quiet_terminal.py."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import NETGUARD, ROOT, free_port, without_launcher
from tests.faults.at_terminal import AtTerminal
from tests.warm import WarmStarter

DATA = {"pt": "pt", "sft": "sft", "rm": "pairs", "dpo": "pairs", "rl": "prompts", "distill": "sft"}
LAUNCHERS = {
    "python": "python",
    "deepspeed": "deepspeed --num_gpus 2 --master_port {port}",
    "torchrun": "torchrun --nproc_per_node 2 --master_port {port}",
    "launched deepspeed": "hftune launch deepspeed --num_gpus 2 --master_port {port}",
    "launched torchrun": "hftune launch torchrun --nproc_per_node 2 --master_port {port}",
}


@dataclass
class Terminal:
    """Starts stages at a terminal."""

    model: Path
    data: Path
    folder: Path
    starter: WarmStarter

    def start(
        self,
        launcher: str,
        stage: str,
        *flags: str,
        slow: str = "",
        script: str = "",
        piped: bool = False,
        warm: bool = False,
    ) -> AtTerminal:
        """A stage that would run for a long time, unless flags say otherwise.

        Args:
            warm: Python's start and its imports are left out.
        """
        words = LAUNCHERS[launcher].format(port=free_port()).split()
        words += [script or "tests/faults/run_slowly.py"]
        words += ["--model_name_or_path", str(self.model), "--train_file_dir", str(self.data / DATA[stage])]
        words += ["--output_dir", str(self.folder / "out"), "--use_cpu", "True", "--report_to", "none"]
        words += ["--per_device_train_batch_size", "2", "--logging_steps", "1", "--gradient_checkpointing", "False"]
        words += ["--block_size", "32"] if stage == "pt" else []
        if stage == "rl":
            words += ["--reward_funcs", "tests/integration/reward_functions.py:count_digits", "--num_generations", "2"]
            words += ["--max_completion_length", "4"]
        if stage == "distill":
            words += ["--teacher_model_name_or_path", str(self.model), "--hard_label_share", "0.5"]
        words += ["--deepspeed", "ds_configs/zero2.json"] if launcher.endswith("deepspeed") else []
        words += flags
        if piped:
            words = ["bash", "-c", f"{shlex.join(words)} 2>&1 | tee {self.folder}/tee; exit ${{PIPESTATUS[0]}}"]
        return AtTerminal(words, ROOT, self.environment(slow, stage), self.starter if warm else None)

    def environment(self, slow: str, stage: str) -> dict[str, str]:
        """As `run` of tests/conftest.py has it."""
        kept = without_launcher({name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"})
        search = [str(NETGUARD), str(ROOT), os.environ.get("PYTHONPATH", "")]
        return kept | {
            "PYTHONPATH": os.pathsep.join(filter(None, search)),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "CUDA_VISIBLE_DEVICES": "",
            "COLUMNS": "160",
            "SLOW": slow,
            "STAGE": stage,
        }

    @property
    def output(self) -> Path:
        return self.folder / "out"

    def status(self) -> str | None:
        """What the manifest says; None without one."""
        file = self.output / "hftune.json"
        return json.loads(file.read_text())["status"] if file.exists() else None
