"""Merging a LoRA adapter: time and memory beside peft's load + merge_and_unload + save, and `cp` of the same files.

python benchmarks/merge.py      1.5 billion parameters in bf16 in 5 files, and 135 million in fp32
python benchmarks/merge.py --quick                  a small model

Models and adapters are generated. Every tool runs in a process of its own, the tools in turn, and the median counts.
Time is from start to end of the process, imports included. Memory is the largest sum of resident bytes over the tool's
processes (PSS where the kernel tells it), read twenty times a second, and for one process the kernel's own VmHWM.
hftune runs without its comparison of logits (--verify False), which peft does not make either.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import ROOT, Figures, Peak, bar, finish, in_turns, medians, parser_of, words_of

BAR_TIME, BAR_MEMORY, BAR_SMALL = 0.3, 0.2, 3.0


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


def measure(command: list[str], output: Path) -> Figures:
    """Seconds and peak memory of a command that makes `output`."""
    shutil.rmtree(output, ignore_errors=True)
    os.sync()
    began = time.perf_counter()
    with Peak("Pss", 0.05) as peak:
        words_of(command, CUDA_VISIBLE_DEVICES="")
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "MiB": peak.mebibytes}


def generate(shape: Shape, folder: Path) -> None:
    """A base and an adapter, once."""
    if (folder / "adapter" / "adapter_config.json").is_file():
        return
    said = words_of([sys.executable, "-c", MAKE, json.dumps(vars(shape)), str(folder)])
    parameters, files = map(int, said.splitlines()[-1].split())
    print(f"{shape.name}: {parameters / 1e6:.0f}M parameters in {files} files")


def commands(folder: Path) -> dict[str, list[str]]:
    """Name to the command that merges."""
    base, adapter, output = (str(folder / name) for name in ("base", "adapter", "merged"))
    ours = [sys.executable, str(ROOT / "merge_peft_adapter.py"), "--peft_model_path", adapter, "--output_dir", output]
    return {
        "hftune": [*ours, "--verify", "False"],
        "peft": [sys.executable, "-c", PEFT, base, adapter, output],
        "cp": ["cp", "-r", base, output],
    }


def compare(shape: Shape, folder: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Every tool `rounds` times, in turn; medians."""
    generate(shape, folder)
    every = commands(folder)
    runs = in_turns(every, options, lambda name: measure(every[name], folder / "merged"))
    found = {name: medians(each) for name, each in runs.items()}
    print(f"\n{shape.name:12} {'seconds':>9} {'peak MiB':>9}")
    for name, each in found.items():
        print(f"{name:12} {each['seconds']:9.2f} {each['MiB']:9.0f}")
    return found


def bars(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What was promised beside what was measured."""
    main = next(iter(figures["tools"].values()))
    found = {
        "time / peft's": bar(main["hftune"]["seconds"] / main["peft"]["seconds"], BAR_TIME),
        "memory / peft's": bar(main["hftune"]["MiB"] / main["peft"]["MiB"], BAR_MEMORY),
    }
    if SMALL.name in figures["tools"]:
        found["seconds for 135M fp32"] = bar(figures["tools"][SMALL.name]["hftune"]["seconds"], BAR_SMALL)
    return found


def main() -> None:
    """Parse, run, print."""
    parser = parser_of(__doc__, 3)
    parser.add_argument("--work_dir", help="where models are generated; left out: a temporary folder")
    options = parser.parse_args()
    shapes = [QUICK] if options.quick else [LARGE, SMALL]
    with tempfile.TemporaryDirectory(dir=options.work_dir, prefix="merge-") as work:
        tools = {shape.name: compare(shape, Path(work) / str(n), options) for n, shape in enumerate(shapes)}
    figures = {"tools": tools}
    finish("merge", figures, {} if options.quick else bars(figures))


if __name__ == "__main__":
    main()
