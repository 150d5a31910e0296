"""Memory for models from 1.5B to 72B, as `hftune plan` says: full, LoRA and QLoRA, by ZeRO stage, on 1 and 8 GPUs.

python benchmarks/memory_table.py                 all models, some minutes
python benchmarks/memory_table.py --quick         the smallest model alone
python benchmarks/memory_table.py --only Qwen2.5-7B
python benchmarks/memory_table.py --write-docs    the tables go into docs/memory.md and docs/choosing.md

Models are config.json files written on the spot from published sizes; nothing is downloaded, nothing runs on a GPU.
Each row is two calls of `hftune plan run_sft ... --json`. The bars hold the planned weights against the published
numbers of parameters. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import children  # noqa: E402

PAGE = ROOT / "docs" / "memory.md"
CHOOSING = ROOT / "docs" / "choosing.md"
GIB = 2**30
CAP = 600.0
"""Seconds that one plan may take."""
WITHIN = 0.01
"""How far the number of planned weights may be from the published number of parameters."""
LENGTH = 4096
RUN = [
    *("--max_length", str(LENGTH), "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "1"),
    *("--bf16", "True", "--activation_checkpointing", "full", "--optim", "adamw_torch"),
]
LORA = ["--lora_rank", "16", "--target_modules", "all"]
METHODS = {"full": [], "LoRA": ["--use_peft", *LORA], "QLoRA": ["--qlora", *LORA]}
ONE = {"1 GPU": "", "1 GPU, offload": "zero2_offload"}
EIGHT = {"8 GPUs": "", "ZeRO-1": "zero1", "ZeRO-2": "zero2", "ZeRO-3": "zero3", "ZeRO-3, offload": "zero3_offload"}
"""Head of a column, and the DeepSpeed config behind it; none: DistributedDataParallel, or one process alone."""

_QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 32768}
_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 131072}
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")


def shape(base: dict[str, Any], sizes: tuple[int, ...], vocabulary: int, *, tied: bool = False) -> dict[str, Any]:
    """A config.json from published sizes."""
    own = {"vocab_size": vocabulary, "tie_word_embeddings": tied, "torch_dtype": "bfloat16"}
    return base | dict(zip(_SIZES, sizes, strict=True)) | own


MODELS: dict[str, tuple[dict[str, Any], float]] = {
    "Qwen2.5-1.5B": (shape(_QWEN2, (1536, 8960, 28, 12, 2), 151936, tied=True), 1.54e9),
    "Qwen2.5-7B": (shape(_QWEN2, (3584, 18944, 28, 28, 4), 152064), 7.62e9),
    "Llama-3.1-8B": (shape(_LLAMA, (4096, 14336, 32, 32, 8), 128256), 8.03e9),
    "Qwen2.5-14B": (shape(_QWEN2, (5120, 13824, 48, 40, 8), 152064), 14.77e9),
    "Qwen2.5-32B": (shape(_QWEN2, (5120, 27648, 64, 40, 8), 152064), 32.76e9),
    "Llama-3.1-70B": (shape(_LLAMA, (8192, 28672, 80, 64, 8), 128256), 70.55e9),
    "Qwen2.5-72B": (shape(_QWEN2, (8192, 29568, 80, 64, 8), 152064), 72.71e9),
}
"""Sizes as the model cards and config.json files give them, and the published number of parameters."""


def main() -> int:
    """Plan all cells, print the table, then JSON; 0 where every bar holds."""
    options = arguments()
    found = children.Found(options.output, "memory_table", platform.machine(), quick=options.quick)
    chosen = list(MODELS)[:1] if options.quick else [name for name in MODELS if name in (options.only or MODELS)]
    rows = found.cases("models")
    with children.work_folder() as folder:
        for name in children.to_do(chosen, rows):
            rows[name] = plan_model(name, folder)
            found.bars[name] = bar(name, rows[name])
            print(f"{name}: planned", file=sys.stderr, flush=True)
            found.keep()
    text = table({name: rows[name] for name in MODELS if name in rows})
    print(text)
    if options.write_docs:
        write_docs(text)
    found.say_bars()
    print(found.keep(complete=True))
    return 0 if found.holds else 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest model alone")
    parser.add_argument("--only", nargs="+", choices=list(MODELS), metavar="MODEL", help="these models")
    parser.add_argument("--output", type=Path, help="the JSON, written anew after each model; gone on with if there")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/memory.md")
    return parser.parse_args()


def plan_model(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Method -> column -> bytes of a process at its peak, on its GPU and in the machine, and whether it fits."""
    model = folder / name
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODELS[name][0]), encoding="utf-8")
    return {
        method: plan(model, flags, "1x80GiB", ONE, folder) | plan(model, flags, "8x80GiB", EIGHT, folder)
        for method, flags in METHODS.items()
    }


def plan(model: Path, flags: list[str], gpus: str, columns: dict[str, str], folder: Path) -> dict[str, Any]:
    """The columns of one call of `hftune plan`: the run as asked, and the same under other DeepSpeed configs."""
    command = [sys.executable, "-m", "hftune.cli", "plan", "run_sft", "--model_name_or_path", str(model)]
    command += [*RUN, *flags, "--gpus", gpus, "--json"]
    ended = children.run(command, children.environment(folder), CAP)
    if ended.code != 0:
        raise SystemExit(f"{' '.join(command)}:\n{ended.words[-2000:]}")
    planned = json.loads(ended.out.strip().splitlines()[-1])
    by_flags = {choice["flags"]: choice for choice in planned["choices"]}
    return {
        column: _figures(by_flags[f"--deepspeed {config}" if config else "as asked"])
        for column, config in columns.items()
    }


def _figures(choice: dict[str, Any]) -> dict[str, Any]:
    assert choice["traced"], choice
    return {name: choice[name] for name in ("peak", "host", "fits", "verdict")} | {
        "weights": choice["parts"]["weights"]
    }


def bar(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """The weights of full training alone (float32: four bytes each) against the published number."""
    planned, published = row["full"]["1 GPU"]["weights"] / 4, MODELS[name][1]
    off = abs(planned / published - 1)
    return {"value": round(off, 4), "bar": WITHIN, "holds": off <= WITHIN}


def table(rows: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The rows as Markdown; GiB of a process, bold where they fit into 80 GiB."""
    heads = ["model", "method", *ONE, *EIGHT]
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 2)}"]
    for name, methods in rows.items():
        for method, columns in methods.items():
            cells = (cell(columns[head], offloading(head)) for head in heads[2:])
            lines.append(f"| {name} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def offloading(head: str) -> int:
    """How many processes of a machine keep something in its memory, in a column; 0 where none does."""
    return (8 if head in EIGHT else 1) if head.endswith("offload") else 0


def cell(figures: dict[str, Any], offloading: int) -> str:
    """`**19**` fits, `145` does not; behind a plus what all processes keep in the machine's memory."""
    size = f"{figures['peak'] / GIB:,.0f}"
    shown = f"**{size}**" if figures["fits"] else size
    return shown + (f" + {figures['host'] * offloading / GIB:,.0f}" if offloading else "")


def write_docs(text: str) -> None:
    """Put the table into its page, and what follows from it into the page that helps to choose; between their marks."""
    for page, name, found in ((PAGE, "table", text), (CHOOSING, "choices", choices(text))):
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, rest = page.read_text(encoding="utf-8").split(start)
        page.write_text(f"{before}{start}\n{found}\n{end}{rest.split(end)[1]}", encoding="utf-8")


NAMED = {"full": "all weights", "LoRA": "LoRA", "QLoRA": "QLoRA"}


def choices(text: str) -> str:
    """The most of each model that trains on three machines, in words, from the table of memory."""
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines())
    assert heads[2:] == [*ONE, *EIGHT], heads
    columns = {(row[0], row[1]): dict(zip(heads, row, strict=True)) for row in rows}
    lines = ["| model | one GPU of 24 GB | one GPU of 80 GB | eight GPUs of 80 GB |", "|---|---|---|---|"]
    for name in dict.fromkeys(row[0] for row in rows):
        found = {method: columns[name, method] for method in METHODS}
        lines.append(f"| {name} | {_most(found, ONE, 24.0)} | {_most(found, ONE)} | {_most(found, EIGHT)} |")
    return "\n".join(lines)


def _most(rows: dict[str, dict[str, str]], configs: dict[str, str], limit: float | None = None) -> str:
    """The first of all weights, LoRA and QLoRA that fits; behind it what more would fit in the machine's memory.

    Args:
        rows: Method -> column -> cell of the table of memory.
        configs: Column -> DeepSpeed config.
        limit: GiB of a GPU; left out: what the table says of 80.
    """
    offloaded = ""
    for method, columns in rows.items():
        for head, config in configs.items():
            size, _, host = columns[head].partition(" + ")
            # Above 92 % a plan is called tight.
            fits = "**" in size if limit is None else float(size.strip("*").replace(",", "")) <= 0.92 * limit
            flags = f"{NAMED[method]}, `{config}`" if config else NAMED[method]
            if fits and not host:
                return f"{flags}; {offloaded}" if offloaded else flags
            if fits and not offloaded:
                offloaded = f"{flags} ({host} GiB)"
    return offloaded or "none"


if __name__ == "__main__":
    sys.exit(main())
