"""All stages on a real pretrained model: PT -> merge -> SFT -> merge -> RM -> merge -> RL -> merge,
and SFT -> DPO -> merge.

python examples/demo.py                     every command is printed as a user would type it
python examples/demo.py --output_dir DIR    keep the results somewhere else than outputs/demo
python examples/demo.py --write_docs        copy the report to docs/demo.md
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = Path("examples/data")
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

# What all stages share. Two processes of one thread each on a laptop, or one process a GPU.
COMMON = "--use_peft --lora_rank 16 --lora_alpha 32 --target_modules all --gradient_checkpointing False"
COMMON += " --save_strategy no --lr_scheduler_type cosine --warmup_steps 2 --logging_steps 1 --disable_tqdm True"


@dataclass
class Step:
    """One command of the demo."""

    name: str
    script: str
    flags: str
    trains: bool = True

    def command(self, launcher: list[str]) -> list[str]:
        """What a user would type."""
        if not self.trains:
            return ["python", self.script, *shlex.split(self.flags)]
        shared = f"--deepspeed ds_configs/zero2.json {COMMON}"
        return [*launcher, self.script, *shlex.split(shared), *shlex.split(self.flags)]


def steps(out: Path, base: Path) -> list[Step]:
    """The road from base to aligned model. Batch sizes are per process."""

    def merge(stage: str) -> Step:
        flags = f"--peft_model_path {out}/{stage} --output_dir {out}/{stage}-merged"
        return Step(f"merge {stage}", "merge_peft_adapter.py", flags, trains=False)

    def train(stage: str, model: Path, flags: str) -> Step:
        return Step(stage, f"run_{stage}.py", f"--model_name_or_path {model} --output_dir {out}/{stage} {flags}")

    pairs = f"--train_file_dir {DATA}/preference --validation_file_dir {DATA}/preference_eval"
    sorted_by_length = "--train_sampling_strategy group_by_length"
    return [
        train(
            "pt",
            base,
            f"--train_file_dir {DATA}/pretrain --validation_file_dir {DATA}/pretrain_eval --block_size 256"
            " --per_device_train_batch_size 2 --num_train_epochs 1 --learning_rate 5e-4",
        ),
        merge("pt"),
        train(
            "sft",
            out / "pt-merged",
            f"--train_file_dir {DATA}/sft --validation_file_dir {DATA}/sft_eval {sorted_by_length}"
            " --per_device_train_batch_size 4 --num_train_epochs 1 --learning_rate 1e-3 --max_length 256",
        ),
        merge("sft"),
        train(
            "rm",
            out / "sft-merged",
            f"{pairs} {sorted_by_length} --max_train_samples 96 --per_device_train_batch_size 4"
            " --num_train_epochs 1 --learning_rate 1e-3 --max_length 192",
        ),
        merge("rm"),
        train(
            "rl",
            out / "sft-merged",
            f"--rl_algorithm grpo --reward_model_path {out}/rm-merged --train_file_dir {DATA}/prompts"
            " --per_device_train_batch_size 4 --num_generations 4 --max_completion_length 48 --max_steps 18"
            " --learning_rate 1e-3 --beta 0.02",
        ),
        merge("rl"),
        train(
            "dpo",
            out / "sft-merged",
            f"{pairs} {sorted_by_length} --max_train_samples 48 --max_eval_samples 24"
            " --per_device_train_batch_size 2 --num_train_epochs 1 --learning_rate 2e-4 --max_length 192",
        ),
        merge("dpo"),
    ]


def main() -> int:
    """Run every step, then compare the models and write the report. 0 if all went well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/demo"))
    parser.add_argument("--write_docs", action="store_true", help="copy the report to docs/demo.md")
    options = parser.parse_args()
    os.chdir(ROOT)
    out: Path = options.output_dir
    began = time.time()
    shutil.rmtree(out, ignore_errors=True)
    (out / "logs").mkdir(parents=True)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    from base_model import prepare_base
    from demo_report import hush, report

    hush()

    base = Path("outputs/base/SmolLM2-135M-Instruct")
    print(f"base model: {prepare_base(base)}\n  in {base}", flush=True)
    launcher = ["deepspeed", "--num_gpus", str(processes()), "--master_port", str(free_port())]
    planned = steps(out, base)
    for number, step in enumerate(planned, start=1):
        if not run(step, f"[{number}/{len(planned)}]", launcher, out / "logs", environment):
            return 1

    report(out, base, began, docs=Path("docs") if options.write_docs else None)
    return 0


def processes() -> int:
    """One a GPU; on a CPU two, as a small picture of a cluster, or one where there is a single core."""
    import torch

    return torch.cuda.device_count() or min(2, os.cpu_count() or 1)


def free_port() -> int:
    """A port for the processes to meet at, since another run on this machine may hold DeepSpeed's default."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(step: Step, number: str, launcher: list[str], logs: Path, environment: dict[str, str]) -> bool:
    """Run one step with its output in a log; on failure show its end and how to repeat it."""
    command = step.command(launcher)
    log = logs / f"{step.name.replace(' ', '-')}.log"
    print(f"\n{number} {step.name}\n  {shlex.join(command)}", flush=True)
    began = time.time()
    with log.open("w") as stream:
        finished = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, env=environment)
    if finished.returncode == 0:
        print(f"  done in {time.time() - began:.0f} s", flush=True)
        return True
    print(f"  failed with exit code {finished.returncode}; the end of {log}:\n", flush=True)
    print("\n".join(log.read_text(errors="replace").splitlines()[-30:]), flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
