"""The cost model of `hftune plan` at scale: checked by bytes that processes exchange, and beside published figures.

python benchmarks/scaling.py --measure        two processes on this machine: bytes a step, against the model's
python benchmarks/scaling.py                  8 and 1,024 GPUs, and the settings of published runs
python benchmarks/scaling.py --measure --write-docs      both tables go into docs/scaling.md

Nothing is downloaded: models are random weights or a config alone. Bytes are those that collectives of torch hand to
the backend on each rank, between the second step's end and the fourth's, by kind: what an all-gather gives, what a
reduction takes. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
PAGE = ROOT / "docs" / "scaling.md"
WITHIN = 0.1
"""Of the model's bytes: how far measured ones may be off."""

CELLS = {
    "ZeRO-1": ["--deepspeed", "zero1"],
    "ZeRO-2": ["--deepspeed", "zero2"],
    "ZeRO-3": ["--deepspeed", "zero3"],
    "ZeRO-3, recomputing": ["--deepspeed", "zero3", "--activation_checkpointing", "full"],
    "ZeRO-2, 2 micro batches": ["--deepspeed", "zero2", "--gradient_accumulation_steps", "2"],
    "ZeRO-3, 2 micro batches": ["--deepspeed", "zero3", "--gradient_accumulation_steps", "2"],
    "ZeRO-3, LoRA": ["--deepspeed", "zero3", "--use_peft"],
}
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter_tensor", "reduce_scatter", "all_to_all_single")
GATHERS = ("all_gather_into_tensor", "all_gather", "broadcast")

SMALL = {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4,
         "num_attention_heads": 8, "num_key_value_heads": 4}  # fmt: skip
LLAMA2_7B = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
             "num_key_value_heads": 32, "vocab_size": 32000}  # fmt: skip
LLAMA3_8B = LLAMA2_7B | {"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256}
QWEN25_14B = {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48, "num_attention_heads": 40,
              "num_key_value_heads": 8, "vocab_size": 152064}  # fmt: skip

PUBLISHED = (
    ("fms-fsdp, 7B, 128 A100", LLAMA2_7B, "8xA100", 16, 4096, 2, "none", 0.57, 3760.0),
    ("torchtitan, 8B, 32 H200, FP8, compiled", LLAMA3_8B, "8xH200", 4, 8192, 2, "none", 0.40, 10900.0),
)
"""What, shape, GPUs of a machine, machines, tokens of a row, rows, recomputing, share of the data sheet, tok/s/GPU."""


def main() -> int:
    """Measure and reckon as asked; 1 where measured bytes are not the model's."""
    options = arguments()
    if options.worker:
        return count_bytes(options.worker)
    result: dict[str, Any] = {"benchmark": "scaling"}
    pieces = {}
    if options.measure:
        cells = {name: measure(flags) for name, flags in CELLS.items()}
        result["bytes"] = cells
        pieces["measured"] = bytes_table(cells)
        result["bars"] = {name: abs(cell["ratio"] - 1) <= WITHIN for name, cell in cells.items()}
    rows = reckon()
    result["estimates"] = rows
    pieces["estimates"] = estimates_table(rows)
    print("\n\n".join(pieces.values()))
    if options.write_docs:
        write_docs(pieces)
    print(json.dumps(result))
    return 0 if all(result.get("bars", {}).values()) else 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="bytes exchanged by two processes here")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/scaling.md")
    parser.add_argument("--worker", nargs=argparse.REMAINDER, help="run run_pt.py with these arguments, counting")
    return parser.parse_args()


def measure(flags: list[str]) -> dict[str, float]:
    """Bytes a step and rank of a small model's training by two processes, and what the cost model says."""
    from made_up import make_tokenizer, make_weights

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_weights(SMALL | {"max_position_embeddings": 256}, folder / "model", make_tokenizer())
        (folder / "data").mkdir()
        words = "one two three four five six seven eight nine ten " * 40
        (folder / "data" / "text.txt").write_text("\n".join([words] * 200), encoding="utf-8")
        run = [
            "--model_name_or_path", str(folder / "model"), "--train_file_dir", str(folder / "data"),
            "--output_dir", str(folder / "out"), "--block_size", "64", "--per_device_train_batch_size", "1",
            "--max_steps", "4", "--use_cpu", "True", "--bf16", "False", "--save_strategy", "no",
            "--report_to", "none", "--preview", "0", "--activation_checkpointing", "none", "--max_grad_norm", "0",
        ]  # fmt: skip
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        command += [str(Path(__file__).resolve()), "--worker", *run, *flags]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COUNT_TO": str(folder / "bytes")}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        finished = subprocess.run(command, env=environment, capture_output=True, text=True)
        if finished.returncode:
            raise SystemExit(f"{' '.join(flags)} failed:\n{finished.stderr[-3000:]}")
        counted = json.loads((folder / "bytes").read_text(encoding="utf-8"))
        said = modelled([*run, *flags])
    found = {"gathered": counted["gathered"], "reduced": counted["reduced"], **said}
    return found | {"ratio": (found["gathered"] + found["reduced"]) / (said["model gathered"] + said["model reduced"])}


def count_bytes(argv: list[str]) -> int:
    """In a rank: run the script, and write what collectives moved a step."""
    import torch.distributed as dist
    import transformers

    counts: Counter[str] = Counter()
    marks: list[Counter[str]] = []

    def counting(name: str) -> None:
        plain = getattr(dist, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            kind = "reduced" if name in REDUCTIONS else "gathered"
            counts[kind] += handed(name, args, kwargs)
            return plain(*args, **kwargs)

        setattr(dist, name, call)

    for name in (*REDUCTIONS, *GATHERS):
        counting(name)
    ended = transformers.trainer_callback.CallbackHandler.on_step_end

    def on_step_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        marks.append(Counter(counts))
        return ended(self, *args, **kwargs)

    transformers.trainer_callback.CallbackHandler.on_step_end = on_step_end
    sys.argv = ["run_pt.py", *argv]
    runpy.run_path(str(ROOT / "run_pt.py"), run_name="__main__")
    if os.environ["RANK"] == "0":
        steps = {kind: (marks[3][kind] - marks[1][kind]) / 2 for kind in ("gathered", "reduced")}
        Path(os.environ["COUNT_TO"]).write_text(json.dumps(steps), encoding="utf-8")
    return 0


def handed(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Bytes of the whole tensor that a collective makes or takes."""
    import torch

    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    lists = [one for one in (*args, *kwargs.values()) if isinstance(one, list)]
    sizes = [one.numel() * one.element_size() for one in tensors]
    sizes += [sum(part.numel() * part.element_size() for part in one) for one in lists]
    return max(sizes, default=0)


def modelled(argv: list[str]) -> dict[str, float]:
    """What `tools/planning/timing.py` takes a step to gather and reduce."""
    from hftune.tools.planning.timing import exchanged

    choice, size, *_ = planned("pt", argv, 2)
    gathered, reduced = exchanged(size, choice.setup, choice.work)
    return {"model gathered": gathered, "model reduced": reduced}


def planned(stage: str, argv: list[str], processes: int, gpus: str | None = None, nodes: int = 1) -> Any:
    """The choice that flags make, the model's size, its skeleton and the cluster."""
    from hftune.arguments.entry import parse_arguments
    from hftune.distributed import ranks
    from hftune.preflight.facts import resolve
    from hftune.tools.planning.clusters import cluster_here, cluster_of
    from hftune.tools.planning.planner import Planner

    cluster = cluster_of(gpus, nodes) if gpus else cluster_here()
    imagined = ranks.PlannedWorld(processes, cluster.per_node if gpus else processes, on_cpu=gpus is None)
    with ranks.planning_for(imagined):
        given = parse_arguments(stage, argv)
        planner = Planner(resolve(stage, given))
        choice = planner.asked()
        return choice, planner.size(choice.adapter), planner.bare, cluster, planner.plan(choice) if gpus else None


def reckon() -> list[dict[str, Any]]:
    """Speed and memory a GPU of full bf16 training under ZeRO-3, at a share of the data sheet's arithmetic."""
    from hftune.tools.planning import timing

    rows = []
    settings = [
        *PUBLISHED,
        ("8B, 8 H200", LLAMA3_8B, "8xH200", 1, 8192, 2, "none", timing.MFU, None),
        ("8B, 1,024 H200", LLAMA3_8B, "8xH200", 128, 8192, 2, "none", timing.MFU, None),
        ("14B, 8 H100", QWEN25_14B, "8xH100", 1, 8192, 1, "full", timing.MFU, None),
        ("14B, 1,024 H100", QWEN25_14B, "8xH100", 128, 8192, 1, "full", timing.MFU, None),
    ]
    for what, shape, gpus, nodes, tokens, examples, recompute, mfu, published in settings:
        with tempfile.TemporaryDirectory() as folder:
            config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
                      "max_position_embeddings": tokens, "tie_word_embeddings": False, **shape}  # fmt: skip
            (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
            argv = ["--model_name_or_path", folder, "--output_dir", folder + "/out", "--train_file_dir", folder,
                    "--deepspeed", "zero3", "--bf16", "True", "--dtype", "bfloat16", "--block_size", str(tokens),
                    "--per_device_train_batch_size", str(examples),
                    "--activation_checkpointing", recompute]  # fmt: skip
            count = nodes * int(gpus.split("x")[0])
            choice, size, bare, cluster, plan = planned("pt", argv, count, gpus, nodes)
            time = timing.estimate_time(bare, size, choice, cluster)
            assert time is not None
            compute = time.compute * time.mfu / mfu
            step = max(compute, time.communication)
            rows.append({
                "what": what, "gpus": count, "mfu": mfu, "compute": compute, "communication": time.communication,
                "tokens_per_gpu": time.tokens / count / step, "published": published,
                "peak_gib": plan.device / 2**30, "memory_gib": cluster.device.memory / 2**30,
            })  # fmt: skip
    return rows


def bytes_table(cells: dict[str, dict[str, float]]) -> str:
    """Measured beside modelled, in MiB."""
    lines = ["| setting | gathered | model | reduced | model | measured / model |", "|---|---:|---:|---:|---:|---:|"]
    for name, cell in cells.items():
        parts = [cell[key] / 2**20 for key in ("gathered", "model gathered", "reduced", "model reduced")]
        lines.append(f"| {name} | " + " | ".join(f"{part:.1f}" for part in parts) + f" | {cell['ratio']:.2f} |")
    return "\n".join(lines)


def estimates_table(rows: list[dict[str, Any]]) -> str:
    """Estimates, and published figures where there are some."""
    lines = [
        "| run | MFU assumed | computing, s | exchanging, s | tokens/s a GPU | published | peak a GPU, GiB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        published = f"{row['published']:,.0f}" if row["published"] else ""
        lines.append(
            f"| {row['what']} | {row['mfu']:.0%} | {row['compute']:.2f} | {row['communication']:.2f} | "
            f"{row['tokens_per_gpu']:,.0f} | {published} | {row['peak_gib']:.0f} of {row['memory_gib']:.0f} |"
        )
    return "\n".join(lines)


def write_docs(pieces: dict[str, str]) -> None:
    """Put tables into the page, between their marks."""
    page = PAGE.read_text(encoding="utf-8")
    for name, table in pieces.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, rest = page.split(start)
        page = f"{before}{start}\n{table}\n{end}{rest.split(end)[1]}"
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
