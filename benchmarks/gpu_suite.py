"""All that wants a GPU, in one go: kernels against each other, every stage with every method, speeds and memory.

python benchmarks/gpu_suite.py --output gpu.json           on a machine with a CUDA device, about 9 minutes
python benchmarks/gpu_suite.py --minutes 25                with speeds of real sizes (gpu_speed.py) and planned and
                                                           measured peaks (memory.py), as far as time goes
python benchmarks/gpu_suite.py --parts speed               one of them: runs, speed, memory
python benchmarks/gpu_suite.py --quick                     two steps of a tiny model, on any machine

Nothing is downloaded: the model has SmolLM2-135M's sizes and random weights, and the records are generated. Each stage
is run by its own script. The last line is JSON, and `--output` writes it to a file as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

METHODS: dict[str, list[str]] = {
    "full": ["--learning_rate", "1e-4"],
    "lora": ["--use_peft", "--lora_rank", "8", "--target_modules", "all"],
    "qlora4": ["--qlora", "--lora_rank", "8", "--target_modules", "all"],
    "qlora8": ["--use_peft", "--load_in_8bit", "--lora_rank", "8", "--target_modules", "all"],
}
ENGINES: dict[str, list[str]] = {
    "plain": [],
    "zero2": ["--deepspeed", "ds_configs/zero2.json"],
    "zero3": ["--deepspeed", "ds_configs/zero3.json"],
    **{
        name: ["--deepspeed", f"ds_configs/{name}.json"]
        for name in (
            *("zero0", "zero1", "zero2_offload", "zero3_offload", "zero2_bf16_states", "zero3_bf16_states"),
            *("zero3_hpz", "zero3_zeropp", "zero3_superoffload", "zero3_deepcompile"),
        )
    },
    **{
        name: ["--deepspeed", f"ds_configs/{name}.json", "--nvme_path", tempfile.gettempdir()]
        for name in ("zero3_nvme", "zero3_nvme_optimizer")
    },
}
STAGES: dict[str, list[str]] = {
    "pt": ["--block_size", "1024"],
    "sft": ["--max_length", "1024"],
    "rm": ["--max_length", "1024"],
    "dpo": ["--max_length", "1024"],
    "rl": [
        "--reward_funcs",
        "benchmarks/gpu_suite.py:brevity",
        "--max_completion_length",
        "32",
        "--num_generations",
        "4",
    ],
}
EXTRA: list[tuple[str, str, str, list[str]]] = [
    ("sft", "lora", "plain", ["--packing"]),
    ("sft", "lora", "plain", ["--padding_free"]),
    ("sft", "full", "zero2", ["--packing"]),
    ("sft", "lora", "plain", ["--attn_implementation", "sdpa", "--packing"]),
    ("sft", "lora", "plain", ["--attn_implementation", "flex_attention", "--packing"]),
    ("sft", "full", "plain", ["--optim", "adamw_torch_fused"]),
    ("sft", "full", "plain", ["--optim", "paged_adamw_8bit"]),
    ("sft", "full", "zero2", ["--optim", "adamw_8bit"]),
    ("sft", "full", "plain", ["--optim", "muon"]),
    ("sft", "full", "zero3", ["--optim", "muon", "--max_grad_norm", "0"]),
    ("sft", "full", "zero2", ["--fp16", "True", "--bf16", "False"]),
    ("sft", "full", "plain", ["--fp8", "tensorwise"]),
    ("sft", "full", "zero2", ["--fp8", "rowwise", "--packing", "--torch_compile", "True"]),
    ("sft", "lora", "plain", ["--use_dora"]),
    ("sft", "qlora4", "plain", ["--use_dora"]),
    ("sft", "lora", "zero3", ["--init_lora_weights", "pissa"]),
]
CONFIGS: list[tuple[str, str, str, list[str]]] = [
    *(("sft", "full", name, []) for name in ENGINES if name not in ("plain", "zero2", "zero3")),
    *(
        ("sft", "full", engine, ["--activation_checkpointing", *parts])
        for engine in ("plain", "zero3")
        for parts in (["full"], ["attention"], ["full", "--activation_checkpointing_offload", "True"])
    ),
    ("sft", "lora", "zero3", ["--activation_checkpointing", "full", "--activation_checkpointing_offload", "True"]),
]
"""Every shipped DeepSpeed config, and what is recomputed where it is kept elsewhere than on a CPU."""

OTHERS = {"speed": "gpu_speed", "memory": "memory"}
"""Parts that are benchmarks of their own."""

PARTS = ("runs", *OTHERS)

REFUSED = {("qlora8", "zero3")}
"""What hftune says cannot work: it must exit with 2."""


def brevity(completions: list[Any], **_: Any) -> list[float]:
    """A reward for RL that costs nothing: short answers."""
    return [-float(len(str(completion))) for completion in completions]


def make_tokenizer() -> Any:
    """A byte-level tokenizer of 2,000 tokens, with ChatML."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from hftune.data.readers.dummy import dummy_chunks

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<|pad|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (row.value["text"] for chunk in dummy_chunks(200, "text") for row in chunk.rows())  # type: ignore[union-attr]
    backend.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|pad|>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    return tokenizer


def make_model(folder: Path, *, quick: bool) -> None:
    """A random Llama of SmolLM2-135M's sizes (two narrow layers with `quick`), and its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer()
    sizes = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    sizes |= {"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 4096}
    if quick:
        sizes |= {"vocab_size": 2048, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 3}
    torch.manual_seed(0)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    LlamaForCausalLM(LlamaConfig(**sizes, **ends, tie_word_embeddings=True)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train(
    stage: str, method: str, engine: str, extra: list[str], model: Path, out: Path, quick: bool
) -> dict[str, Any]:
    """One run of a script: how it ended, its losses, its speed and its memory."""
    name = "-".join([stage, method, engine, *(flag.strip("-").replace("/", "_") for flag in extra)])
    steps = "2" if quick else "10" if stage == "rl" else "20"
    command = [sys.executable, f"run_{stage}.py", "--model_name_or_path", str(model), "--output_dir", str(out / name)]
    command += ["--dummy_data", "64" if quick else "512", "--max_steps", steps, "--logging_steps", "1"]
    command += [
        "--per_device_train_batch_size",
        "2" if quick else "8",
        "--save_strategy",
        "no",
        "--disable_tqdm",
        "True",
    ]
    if "--activation_checkpointing" not in extra:
        command += ["--activation_checkpointing", "none"]
    command += ["--skip_memory_metrics", "False", "--report_to", "none"]
    command += [*STAGES[stage], *METHODS[method], *ENGINES[engine], *extra]
    if stage == "rl":
        command += ["--per_device_train_batch_size", "4" if quick else "16"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HFTUNE_CACHE": str(out / "cache")}
    began = time.perf_counter()
    finished = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=540
    )
    result: dict[str, Any] = {"run": name, "exit": finished.returncode, "seconds": time.perf_counter() - began}
    result["expected"] = 2 if (method, engine) in REFUSED or _lacks(engine) else 0
    result["holds"] = finished.returncode == result["expected"]
    if finished.returncode == 0:
        result |= _figures(out / name)
    elif not result["holds"]:
        result["output"] = finished.stdout[-1500:]
    return result


def _lacks(engine: str) -> bool:
    """Whether this machine lacks what a config needs, so that it must be refused."""
    from hftune.distributed.launch import has_async_files

    return "nvme" in engine and not has_async_files()


def _figures(folder: Path) -> dict[str, Any]:
    """Of a finished run, from its own files."""
    manifest = json.loads((folder / "hftune.json").read_text())
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    metrics = manifest["metrics"]
    runtime = metrics.get("train_runtime") or 1.0
    memory = metrics.get("train_mem_gpu_peaked_delta")
    return {
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "trained_tokens_per_second": manifest["trained_tokens"] / runtime,
        "peak_mebibytes": None if memory is None else round(memory / 2**20),
    }


def kernels() -> dict[str, Any]:
    """The tests that want a GPU."""
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-m", "gpu", "-q", "-p", "no:cacheprovider"]
    finished = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return {"exit": finished.returncode, "output": finished.stdout[-3000:], "holds": finished.returncode in (0, 5)}


def other(name: str, quick: bool, minutes: float, began: float) -> dict[str, Any]:
    """What another benchmark found (`gpu_speed.py`, `memory.py`), in the time that is left."""
    left = minutes - (time.perf_counter() - began) / 60
    if left <= 0:
        return {"skipped": "no time left"}
    command = [sys.executable, f"benchmarks/{name}.py", "--minutes", f"{left:.2f}", *(["--quick"] if quick else [])]
    finished = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    lines = finished.stdout.strip().splitlines()
    print("\n".join(lines[:-1]), flush=True)
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {"skipped": f"exit code {finished.returncode}"}
    return found


def machine() -> str:
    """The device, in words."""
    import torch

    if not torch.cuda.is_available():
        return f"no GPU, {os.cpu_count()} cores, torch {torch.__version__}"
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}"


def plan(quick: bool) -> list[tuple[str, str, str, list[str]]]:
    """Which runs are made, the most telling first: a limit on time cuts the end off."""
    if quick:
        return [("sft", "lora", "plain", ["--packing"]), ("dpo", "full", "zero2", []), ("sft", "qlora8", "zero3", [])]
    first = [("sft", method, engine, []) for method in METHODS for engine in ENGINES]
    others = [
        (stage, method, "plain", []) for stage in STAGES if stage != "sft" for method in ("full", "lora", "qlora4")
    ]
    sharded = [(stage, "lora", engine, []) for stage in ("pt", "rm", "dpo", "rl") for engine in ("zero2", "zero3")]
    return [*first, *EXTRA, *CONFIGS, *others, *sharded]


def main() -> int:
    """Run everything that fits into the time; 0 if all that ran did as it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the JSON here, too, after every run")
    parser.add_argument("--minutes", type=float, default=9.0, help="start no further run after this time")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="in this order")
    options = parser.parse_args()
    began, results, skipped = time.perf_counter(), [], []
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "model", quick=options.quick)
        tested = kernels() if "runs" in options.parts else {}
        for stage, method, engine, extra in plan(options.quick) if "runs" in options.parts else []:
            if time.perf_counter() - began > 60 * options.minutes:
                skipped.append("-".join([stage, method, engine, *extra]))
                continue
            result = train(stage, method, engine, extra, Path(folder) / "model", Path(folder) / "out", options.quick)
            results.append(result)
            print({name: value for name, value in result.items() if name != "output"}, flush=True)
            _keep(options.output, _line(tested, results, skipped, {}))
    others: dict[str, dict[str, Any]] = {}
    for part in (part for part in OTHERS if part in options.parts):
        others[part] = other(OTHERS[part], options.quick, options.minutes, began)
        _keep(options.output, _line(tested, results, skipped, others))
    line = _line(tested, results, skipped, others)
    _keep(options.output, line)
    print(line)
    return 0 if all(bar["holds"] for bar in json.loads(line)["bars"].values()) else 1


def _keep(file: Path | None, line: str) -> None:
    if file:
        file.write_text(line + "\n")


def _line(
    tested: dict[str, Any], results: list[dict[str, Any]], skipped: list[str], others: dict[str, dict[str, Any]]
) -> str:
    bars = {
        result["run"]: {"value": result["exit"], "bar": result["expected"], "holds": result["holds"]}
        for result in results
    }
    if tested:
        bars["kernels"] = {"value": tested["exit"], "bar": 0, "holds": tested["holds"]}
    for part, found in others.items():
        bars |= {f"{part}-{name}": bar for name, bar in found.get("bars", {}).items()}
    figures = {"kernels": tested.get("output"), "runs": results, "skipped": skipped, **others}
    return json.dumps({"benchmark": "gpu_suite", "machine": machine(), "figures": figures, "bars": bars})


if __name__ == "__main__":
    sys.exit(main())
