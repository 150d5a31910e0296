"""Merging a LoRA adapter: time and memory beside peft's load + merge_and_unload + save, and `cp` of the same files.

python benchmarks/merge.py      1.5 billion parameters in bf16 in 5 files, and 135 million in fp32
python benchmarks/merge.py --quick                  a small model
python benchmarks/merge.py --peer "NAME=COMMAND"    another tool; {base}, {adapter} and {output} are replaced in COMMAND

Models and adapters are generated. Every tool runs in a process of its own, the tools in turn, and the median counts.
Time is from start to end of the process, imports included. Memory is the largest sum of resident bytes over the tool's
processes (PSS where the kernel tells it), read twenty times a second, and for one process the kernel's own VmHWM.
hftune runs without its comparison of logits (--verify False), which peft does not make either.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BAR_TIME, BAR_MEMORY, BAR_SMALL, BAR_LAYERS = 0.3, 0.2, 3.0, 1.05


@dataclass(frozen=True)
class Shape:
    """A Llama to generate."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    vocabulary: int
    dtype: str
    shard: str
    tied: bool


# The largest tensor of the first has 65,536 x 1,536 entries: 201 MB.
LARGE = Shape("1.5B bf16", 1536, 8960, 30, 12, 65536, "bfloat16", "650MB", False)
SMALL = Shape("135M fp32", 576, 1536, 30, 9, 49152, "float32", "5GB", True)
QUICK = Shape("30M bf16", 384, 1024, 12, 6, 16384, "bfloat16", "20MB", False)

MAKE = """
import sys, json, torch
from pathlib import Path
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
shape, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
config = LlamaConfig(hidden_size=shape["hidden"], intermediate_size=shape["intermediate"],
    num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"], num_key_value_heads=shape["heads"] // 3,
    vocab_size=shape["vocabulary"], tie_word_embeddings=shape["tied"])
torch.set_default_dtype(getattr(torch, shape["dtype"]))
model = LlamaForCausalLM(config)
model.save_pretrained(folder / "base", max_shard_size=shape["shard"])
parameters = sum(p.numel() for p in model.parameters())
model.name_or_path = str(folder / "base")
adapted = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
for name, parameter in adapted.named_parameters():
    if "lora_B" in name:
        torch.nn.init.normal_(parameter, std=0.02)
adapted.peft_config["default"].base_model_name_or_path = str(folder / "base")
adapted.save_pretrained(folder / "adapter")
print(parameters, len(list((folder / "base").glob("*.safetensors"))))
"""

PEFT = """
import sys
from peft import PeftModel
from transformers import AutoModelForCausalLM
base, adapter, output = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(output, max_shard_size="650MB")
"""


# --- running and measuring ---------------------------------------------------------------------------------------


class Peak(threading.Thread):
    """The largest memory of a process and all below it."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.process, self.bytes, self.over = process, 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            tree = _tree(self.process)
            self.bytes = max(self.bytes, sum(map(_resident, tree)), _high_water(self.process))


def _tree(process: int) -> list[int]:
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [inner for child in task.read_text().split() for inner in _tree(int(child))]
        except OSError:
            continue
    return found


def _field(file: str, name: str) -> int:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


def _resident(process: int) -> int:
    return _field(f"/proc/{process}/smaps_rollup", "Pss:") or _field(f"/proc/{process}/status", "VmRSS")


def _high_water(process: int) -> int:
    return _field(f"/proc/{process}/status", "VmHWM")


def measure(command: list[str], output: Path) -> dict[str, float]:
    """Seconds and peak bytes of a command that makes `output`."""
    shutil.rmtree(output, ignore_errors=True)
    os.sync()
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    peak = Peak(process.pid)
    peak.start()
    said, _ = process.communicate()
    seconds = time.perf_counter() - began
    peak.over.set()
    peak.join()
    if process.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{said[-3000:]}")
    return {"seconds": seconds, "MiB": peak.bytes / 2**20}


def generate(shape: Shape, folder: Path) -> None:
    """A base and an adapter, once."""
    if (folder / "adapter" / "adapter_config.json").is_file():
        return
    finished = subprocess.run(
        [sys.executable, "-c", MAKE, json.dumps(vars(shape)), str(folder)], capture_output=True, text=True
    )
    if finished.returncode:
        raise SystemExit(finished.stderr[-3000:])
    parameters, files = map(int, finished.stdout.splitlines()[-1].split())
    print(f"{shape.name}: {parameters / 1e6:.0f}M parameters in {files} files")


def commands(folder: Path, peers: dict[str, str]) -> dict[str, list[str]]:
    """Name to the command that merges."""
    base, adapter, output = (str(folder / name) for name in ("base", "adapter", "merged"))
    ours = [sys.executable, str(ROOT / "merge_peft_adapter.py"), "--peft_model_path", adapter, "--output_dir", output]
    return {
        "hftune": [*ours, "--verify", "False"],
        "peft": [sys.executable, "-c", PEFT, base, adapter, output],
        "cp": ["cp", "-r", base, output],
        **{
            name: shlex.split(command.format(base=base, adapter=adapter, output=output))
            for name, command in peers.items()
        },
    }


def compare(shape: Shape, folder: Path, peers: dict[str, str], rounds: int) -> dict[str, dict[str, float]]:
    """Every tool `rounds` times, in turn; medians."""
    generate(shape, folder)
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        for name, command in commands(folder, peers).items():
            runs.setdefault(name, []).append(measure(command, folder / "merged"))
    found = {name: {key: statistics.median(run[key] for run in each) for key in each[0]} for name, each in runs.items()}
    print(f"\n{shape.name:12} {'seconds':>9} {'peak MiB':>9}")
    for name, each in found.items():
        print(f"{name:12} {each['seconds']:9.2f} {each['MiB']:9.0f}")
    return found


def memory_by_layers(shape: Shape, folder: Path) -> dict[str, float]:
    """Peak memory of hftune on half and on twice as many layers."""
    found = {}
    for factor in (0.5, 2):
        layers = int(shape.layers * factor)
        other = Shape(**vars(shape) | {"name": f"{layers} layers", "layers": layers})
        generate(other, folder / str(layers))
        run = measure(commands(folder / str(layers), {})["hftune"], folder / str(layers) / "merged")
        found[str(layers)] = run["MiB"]
        shutil.rmtree(folder / str(layers))
    print("\nhftune, peak MiB by layers: " + ", ".join(f"{layers}: {mib:.0f}" for layers, mib in found.items()))
    return found


def _bar(value: float, bar: float) -> dict[str, Any]:
    return {"value": round(value, 3), "bar": bar, "holds": value <= bar}


def bars(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What was promised beside what was measured."""
    main = next(iter(figures["tools"].values()))
    found = {
        "time / peft's": _bar(main["hftune"]["seconds"] / main["peft"]["seconds"], BAR_TIME),
        "memory / peft's": _bar(main["hftune"]["MiB"] / main["peft"]["MiB"], BAR_MEMORY),
    }
    if SMALL.name in figures["tools"]:
        found["seconds for 135M fp32"] = _bar(figures["tools"][SMALL.name]["hftune"]["seconds"], BAR_SMALL)
    by_layers = list(figures["layers"].values())
    found["memory of 4x the layers / memory"] = _bar(by_layers[1] / by_layers[0], BAR_LAYERS)
    return found


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model, one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="append", default=[], help="NAME=COMMAND")
    parser.add_argument("--work_dir", help="where models are generated; left out: a temporary folder")
    options = parser.parse_args()
    peers = dict(peer.split("=", 1) for peer in options.peer)
    shapes = [QUICK] if options.quick else [LARGE, SMALL]
    with tempfile.TemporaryDirectory(dir=options.work_dir, prefix="merge-") as work:
        rounds = 1 if options.quick else options.rounds
        tools = {shape.name: compare(shape, Path(work) / str(n), peers, rounds) for n, shape in enumerate(shapes)}
        layers = memory_by_layers(QUICK if options.quick else SMALL, Path(work) / "layers")
    figures = {"tools": tools, "layers": layers}
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(
        json.dumps(
            {
                "benchmark": "merge",
                "machine": machine,
                "figures": figures,
                "bars": {} if options.quick else bars(figures),
            }
        )
    )


if __name__ == "__main__":
    main()
