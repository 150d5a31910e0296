"""A reward model on the example pairs: held-out accuracy and calibration, and what padding costs.

python benchmarks/reward.py --model FOLDER                SmolLM2-135M-Instruct, say; LoRA, on this machine
python benchmarks/reward.py --model FOLDER --write-docs   also puts the figures into docs/reward.md
python benchmarks/reward.py --quick                       a small random model, a few steps

Trains with run_rm.py, without padding and with, on the same pairs; merges; loads the merged model with plain
transformers and compares its head and scale with what was trained, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reward.md"
DATA = ROOT / "examples" / "data"
BAR_ACCURACY = 0.9
TRAIN = (
    "--max_train_samples 96 --per_device_train_batch_size 4 --num_train_epochs 1 --learning_rate 1e-3 "
    "--max_length 192 --use_peft --save_strategy no --logging_steps 1 --report_to none --lr_scheduler_type linear "
    "--warmup_steps 0 --eval_strategy no"
)
START, END = "<!-- figures: python benchmarks/reward.py --model MODEL --write-docs -->", "<!-- end of figures -->"


def main() -> int:
    """Train twice, merge, compare, print; 1 where a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of the base")
    parser.add_argument("--quick", action="store_true", help="a small random model")
    parser.add_argument("--write-docs", action="store_true", help="put the figures into docs/reward.md")
    parser.add_argument("--launcher", default=sys.executable, help='such as "deepspeed --num_gpus 2"')
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        model = Path(args.model) if args.model and not args.quick else small_model(work)
        flags = TRAIN.split() + (["--max_steps", "3"] if args.quick else [])
        flat = train(args.launcher, model, work / "rm", flags)
        padded = train(args.launcher, model, work / "padded", [*flags, "--padding_free", "False"])
        same = merged_is_the_same(work)
    text = table(flat, padded)
    bars = {
        "held-out accuracy": bar(flat["held_out"]["accuracy"], BAR_ACCURACY),
        "head and scale after merging, equal bits": bar(float(same), 1.0),
    }
    print(text)
    if args.write_docs:
        write(text)
    figures = {name: result["held_out"] | {"seconds": seconds(result)} for name, result in named(flat, padded)}
    said = {"benchmark": "reward", "machine": f"{os.cpu_count()} cores, {platform.machine()}", "figures": figures}
    print(json.dumps(said | {"bars": bars}))
    return 0 if args.quick or all(found["holds"] for found in bars.values()) else 1


def named(flat: dict[str, Any], padded: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The two runs with what to call them."""
    return [("without padding", flat), ("padded", padded)]


def train(launcher: str, model: Path, folder: Path, flags: list[str]) -> dict[str, Any]:
    """The manifest of a run."""
    where = ["--train_file_dir", str(DATA / "preference"), "--validation_file_dir", str(DATA / "preference_eval")]
    run(*launcher.split(), "run_rm.py", "--model_name_or_path", str(model), "--output_dir", str(folder), *where, *flags)
    return json.loads((folder / "hftune.json").read_text(encoding="utf-8"))


def run(*command: str) -> None:
    """A command in the repository; its output on stderr."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=sys.stderr)


def small_model(work: Path) -> Path:
    """A random Llama with SmolLM2's kind of template; its tokenizer knows bytes only."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<|pad|>", "<|im_start|>", "<|im_end|>", *letters]
    backend = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(words[:3])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|pad|>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **shape)).save_pretrained(work / "small")
    tokenizer.save_pretrained(work / "small")
    return work / "small"


def merged_is_the_same(work: Path) -> bool:
    """Whether the merged model has the trained head and the stored scale, bit for bit."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForSequenceClassification

    run(sys.executable, "merge_peft_adapter.py", "--peft_model_path", f"{work}/rm", "--output_dir", f"{work}/merged")
    merged = AutoModelForSequenceClassification.from_pretrained(work / "merged", dtype=torch.float32)
    trained = load_file(work / "rm" / "adapter_model.safetensors")["base_model.model.score.weight"]
    scale = json.loads((work / "rm" / "hftune.json").read_text(encoding="utf-8"))["reward_scale"]
    return torch.equal(merged.score.weight, trained) and merged.config.reward_scale == scale


def seconds(manifest: dict[str, Any]) -> float:
    """Of training alone."""
    return round(manifest["metrics"]["train_runtime"], 1)


def table(flat: dict[str, Any], padded: dict[str, Any]) -> str:
    """Figures of both runs."""
    base, pairs = Path(flat["base"]["name"]).name, flat["held_out"]["pairs"]
    lines = [
        f"{base}, LoRA, {flat['data']['train']['used']} pairs in {flat['steps']} steps; {pairs} pairs held out:",
        "",
        "| rows | accuracy | margin | ECE (10 bins) | scores, mean ± deviation | training, s |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, result in named(flat, padded):
        found, scale = result["held_out"], result["reward_scale"]
        lines.append(
            f"| {name} | {found['accuracy']:.3f} | {found['margin']:.2f} | {found['ece']:.4f} "
            f"| {scale['mean']:.2f} ± {scale['std']:.2f} | {seconds(result)} |"
        )
    return "\n".join(lines)


def bar(value: float, wanted: float) -> dict[str, Any]:
    """At least."""
    return {"value": value, "bar": wanted, "holds": value >= wanted}


def write(text: str) -> None:
    """The figures between their marks in the page."""
    page = PAGE.read_text(encoding="utf-8")
    found = re.compile(re.escape(START) + ".*?" + re.escape(END), re.DOTALL)
    assert found.search(page), f"{PAGE.name} has no place for figures"
    PAGE.write_text(found.sub(lambda _: f"{START}\n{text}\n{END}", page), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
