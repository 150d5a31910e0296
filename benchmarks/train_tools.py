"""Supervised fine-tuning as each tool does it, watched; `train.py` runs this in the tools' environments.

PYTHON benchmarks/train_tools.py TOOL --data sharegpt.jsonl --model MODEL --steps 30 [--packing] [--cuda] [--bits 4]

Imports nothing of hftune but where hftune is the tool. Every tool runs its own entry point, unchanged. What is watched
is what they all share: a callback notes when each step ended, and a wrapper around `Trainer.training_step` counts the
tokens of each micro batch, those that are pads apart. Last a line of JSON.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import runpy
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any


class AfterImport(MetaPathFinder):
    """Calls `then` with a module when it has been loaded."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self.name, self.then = name, then

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """As Python finds it, with a loader that calls."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        load = spec.loader.exec_module

        def load_and_call(module: Any) -> None:
            load(module)
            self.then(module)

        spec.loader.exec_module = load_and_call
        return spec


class Watch:
    """Times and tokens of the steps of one training."""

    def __init__(self, pad_id: int) -> None:
        self.pad_id = pad_id
        self.ended: list[float] = []
        self.real: list[int] = []
        self.places: list[int] = []
        self.losses: list[float] = []
        self._real = self._places = 0

    def install(self) -> None:
        """Hook into transformers' trainer, which every tool trains with, as soon as the tool itself imports it.

        Imported here, it would make all tools start in the same way.
        """
        if "transformers.trainer" in sys.modules:  # this process is the fork of one that has all imports
            self.hook(sys.modules["transformers.trainer"])
        else:
            sys.meta_path.insert(0, AfterImport("transformers.trainer", self.hook))

    def hook(self, module: Any) -> None:
        """Watch the trainers of this module."""
        import transformers

        watch, step, begin = self, module.Trainer.training_step, module.Trainer.__init__

        @functools.wraps(step)
        def training_step(trainer: Any, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            ids = inputs["input_ids"]
            watch._real += int((ids != watch.pad_id).sum())
            watch._places += ids.numel()
            return step(trainer, model, inputs, *args, **kwargs)

        class Callback(transformers.TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                watch.ended.append(time.time())
                watch.real.append(watch._real)
                watch.places.append(watch._places)
                watch._real = watch._places = 0

            def on_log(self, *_: Any, logs: dict[str, Any] | None = None, **__: Any) -> None:
                if logs and "loss" in logs:
                    watch.losses.append(float(logs["loss"]))

        @functools.wraps(begin)  # ms-swift looks at the signature
        def __init__(trainer: Any, *args: Any, **kwargs: Any) -> None:
            begin(trainer, *args, **kwargs)
            trainer.add_callback(Callback())

        module.Trainer.training_step = training_step
        module.Trainer.__init__ = __init__

    def figures(self) -> dict[str, Any]:
        """What was seen: seconds from the start of the process to each step's end, tokens, losses, memory in MiB."""
        began = float(os.environ["BENCHMARK_BEGAN"])
        return {
            "ended": [round(moment - began, 3) for moment in self.ended],
            "real": self.real,
            "places": self.places,
            "losses": self.losses,
            "peak_mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "peak_gigabytes": _peak_of_gpu(),
        }


def _peak_of_gpu() -> float | None:
    """The most that was allocated there, 10^9 bytes."""
    import torch

    return torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else None


COMMON = {
    "output_dir": "",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "gradient_checkpointing": False,
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "seed": 42,
}
ON_GPU = {"use_cpu": False, "bf16": True, "gradient_checkpointing": True}


def common(options: argparse.Namespace, folder: Path, *without: str) -> dict[str, Any]:
    """What transformers calls alike in every tool."""
    wanted = COMMON | {"output_dir": str(folder / "out"), "max_steps": options.steps}
    wanted |= ON_GPU if options.cuda else {}
    return {name: value for name, value in wanted.items() if name not in without}


def as_flags(arguments: dict[str, Any]) -> list[str]:
    """Arguments as a command line has them."""
    return [part for name, value in arguments.items() for part in (f"--{name}", str(value))]


def hftune(options: argparse.Namespace, folder: Path) -> None:
    """run_sft.py."""
    (folder / "data").mkdir()
    (folder / "data" / "records.jsonl").write_bytes(options.data.read_bytes())
    arguments = common(options, folder) | {
        "model_name_or_path": options.model,
        "train_file_dir": str(folder / "data"),
        "max_length": options.max_length,
        "use_peft": True,
        "lora_rank": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "target_modules": "all",
        "packing": options.packing,
        "overwrite_cache": True,
    }
    if options.recompute:  # all of it, as other tools do on a GPU
        arguments["gradient_checkpointing"] = True
    elif options.cuda:  # as `--activation_checkpointing auto` has it: what memory has no room for is computed again
        del arguments["gradient_checkpointing"]
        arguments["activation_checkpointing"] = "auto"
    if options.bits == 4:
        arguments["load_in_4bit"] = True
    run_script(Path(__file__).resolve().parents[1] / "run_sft.py", [*as_flags(arguments), *options.more])


def trl(options: argparse.Namespace, folder: Path) -> None:
    """What `trl sft` does: SFTTrainer on prompt and completion."""
    import datasets
    import peft
    import transformers
    import trl as library

    names = {"human": "user", "gpt": "assistant", "system": "system"}
    records = []
    for line in options.data.read_text(encoding="utf-8").splitlines():
        turns = json.loads(line)["conversations"]
        turns = [{"role": names[turn["from"]], "content": turn["value"]} for turn in turns]
        records.append({"prompt": turns[:-1], "completion": turns[-1:]})
    arguments = common(options, folder) | {
        "max_length": options.max_length,
        "packing": options.packing,
        "dataset_num_proc": 2,
    }
    given: dict[str, Any] = {"dtype": "bfloat16" if options.cuda else "float32", "attn_implementation": "sdpa"}
    if options.bits == 4:
        given["quantization_config"] = four_bits()
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, **given)
    trainer = library.SFTTrainer(
        model=model,
        args=library.SFTConfig(**arguments),
        train_dataset=datasets.Dataset.from_list(records),
        processing_class=transformers.AutoTokenizer.from_pretrained(options.model),
        peft_config=peft.LoraConfig(
            r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )
    trainer.train()


def four_bits() -> Any:
    """NF4, computing in bf16."""
    import torch
    import transformers

    return transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )


def unsloth(options: argparse.Namespace, folder: Path) -> None:
    """Its notebooks' way: FastLanguageModel under TRL's SFTTrainer. For a GPU alone."""
    import datasets
    import trl as library
    from unsloth import FastLanguageModel  # first of all: it changes the others

    model, tokenizer = FastLanguageModel.from_pretrained(
        options.model, max_seq_length=options.max_length, load_in_4bit=options.bits == 4, dtype=None
    )
    model = FastLanguageModel.get_peft_model(
        model, r=8, lora_alpha=16, lora_dropout=0.0, use_gradient_checkpointing="unsloth"
    )
    names = {"human": "user", "gpt": "assistant", "system": "system"}
    texts = []
    for line in options.data.read_text(encoding="utf-8").splitlines():
        turns = [{"role": names[turn["from"]], "content": turn["value"]} for turn in json.loads(line)["conversations"]]
        texts.append({"text": tokenizer.apply_chat_template(turns, tokenize=False)})
    arguments = common(options, folder, "gradient_checkpointing") | {
        "max_length": options.max_length,
        "packing": options.packing,
        "dataset_text_field": "text",
    }
    library.SFTTrainer(
        model=model,
        args=library.SFTConfig(**arguments),
        train_dataset=datasets.Dataset.from_list(texts),
        processing_class=tokenizer,
    ).train()


def llamafactory(options: argparse.Namespace, folder: Path) -> None:
    """`llamafactory-cli train FILE`."""
    from llamafactory.train.tuner import run_exp

    (folder / "records.jsonl").write_bytes(options.data.read_bytes())
    info = {"records": {"file_name": "records.jsonl", "formatting": "sharegpt"}}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    arguments = common(options, folder, "gradient_checkpointing") | {
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora",
        "lora_rank": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "lora_target": "all",
        "model_name_or_path": options.model,
        "dataset": "records",
        "dataset_dir": str(folder),
        "template": "chatml",
        "cutoff_len": options.max_length,
        "preprocessing_num_workers": 2,
        "overwrite_cache": True,
        "flash_attn": "sdpa",
        "disable_gradient_checkpointing": not options.cuda,
        "neat_packing": options.packing,
        "packing": options.packing,
    }
    if options.bits == 4:
        arguments["quantization_bit"] = 4
    run_exp(arguments)


def ms_swift(options: argparse.Namespace, folder: Path) -> None:
    """`swift sft`."""
    from swift.pipelines.train.sft import sft_main

    arguments = common(options, folder) | {
        "model": options.model,
        "model_type": "llama",
        "template": "chatml",
        "dataset": str(options.data),
        "split_dataset_ratio": 0,
        "max_length": options.max_length,
        "truncation_strategy": "right",
        "dataset_num_proc": 2,
        "load_from_cache_file": "false",
        "torch_dtype": "float32",
        "attn_impl": "sdpa",
        "tuner_type": "lora",
        "lora_rank": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "target_modules": "all-linear",
        "dataloader_num_workers": 0,
        "save_only_model": True,
    }
    arguments["fp16"] = False
    sft_main(as_flags(arguments))


def medicalgpt(options: argparse.Namespace, folder: Path) -> None:
    """training/supervised_finetuning.py."""
    (folder / "data").mkdir()
    (folder / "data" / "records.jsonl").write_bytes(options.data.read_bytes())
    arguments = common(options, folder) | {
        "model_name_or_path": options.model,
        "train_file_dir": str(folder / "data"),
        "validation_file_dir": str(folder / "data"),
        "max_eval_samples": 2,
        "cache_dir": str(folder / "cache"),
        "do_train": True,
        "model_max_length": options.max_length,
        "template_name": "qwen",
        "use_peft": True,
        "lora_rank": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "target_modules": "all",
        "torch_dtype": "float32",
        "preprocessing_num_workers": 2,
        "overwrite_cache": True,
    }
    script = options.repository / "training" / "supervised_finetuning.py"
    sys.path.insert(0, str(script.parent))
    run_script(script, as_flags(arguments))


def run_script(script: Path, flags: list[str]) -> None:
    """As `python SCRIPT FLAGS`."""
    sys.argv = [str(script), *flags]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


TOOLS: dict[str, Callable[[argparse.Namespace, Path], None]] = {
    "hftune": hftune,
    "trl": trl,
    "llamafactory": llamafactory,
    "ms_swift": ms_swift,
    "medicalgpt": medicalgpt,
    "unsloth": unsloth,
}


def main() -> None:
    """Train with one tool and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("--data", type=Path, required=True, help="conversations with `from` and `value`, a line each")
    parser.add_argument("--model", required=True)
    parser.add_argument("--repository", type=Path, help="MedicalGPT's folder")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--pad_id", type=int, required=True)
    parser.add_argument("--packing", action="store_true")
    parser.add_argument("--cuda", action="store_true", help="bf16 on a GPU, activations recomputed; else float32 here")
    parser.add_argument("--bits", type=int, choices=(4, 16), default=16, help="of the frozen base")
    parser.add_argument("--recompute", action="store_true", help="all activations, of hftune")
    options, options.more = parser.parse_known_args()
    watch = Watch(options.pad_id)
    watch.install()
    with tempfile.TemporaryDirectory() as folder:
        TOOLS[options.tool](options, Path(folder))
    print("\n" + json.dumps(watch.figures()))


if __name__ == "__main__":
    main()
