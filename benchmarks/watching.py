"""What scripts share that run one tool, in whichever environment: its steps watched, settings alike, its data.

Imports Python's own library alone: every tool begins as it does by itself.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import runpy
import sys
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMON = {
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
LORA = {"lora_rank": 8, "lora_alpha": 16, "lora_dropout": 0.0}
ROLES = {"human": "user", "gpt": "assistant", "system": "system"}


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
    """Times and tokens of the steps of one training.

    Args:
        count: Tokens of a micro batch: those that are not pads, and all places.
    """

    def __init__(self, count: Callable[[dict[str, Any]], tuple[int, int]]) -> None:
        self.count = count
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
            real, places = watch.count(inputs)
            watch._real, watch._places = watch._real + real, watch._places + places
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
        """What was seen: seconds from the start of the process to each step's end, tokens, losses, memory."""
        began = float(os.environ["BENCHMARK_BEGAN"])
        return {
            "ended": [round(moment - began, 3) for moment in self.ended],
            "real": self.real,
            "places": self.places,
            "losses": self.losses,
            "peak_mebibytes": peak_mebibytes(),
            "peak_gigabytes": peak_of_gpu(),
        }


def peak_mebibytes() -> float:
    """The most that was resident of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peak_of_gpu() -> float | None:
    """The most that was allocated there, 10^9 bytes; None without one."""
    import torch

    return torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else None


def as_flags(arguments: dict[str, Any]) -> list[str]:
    """Arguments as a command line has them."""
    return [part for name, value in arguments.items() for part in (f"--{name}", str(value))]


def run_script(script: Path, flags: list[str]) -> None:
    """As `python SCRIPT FLAGS`."""
    sys.argv = [str(script), *flags]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


def lora() -> Any:
    """For TRL's trainers."""
    from peft import LoraConfig

    return LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


def records_of(file: Path) -> list[dict[str, Any]]:
    """The records of a file, a line each."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def messages_of(turns: list[dict[str, str]]) -> list[dict[str, str]]:
    """ShareGPT's turns as those of chat templates."""
    return [{"role": ROLES[turn["from"]], "content": turn["value"]} for turn in turns]


def in_folder(data: Path, folder: Path) -> str:
    """A folder with this file alone, as `train_file_dir` wants it."""
    (folder / "data").mkdir()
    (folder / "data" / "records.jsonl").write_bytes(data.read_bytes())
    return str(folder / "data")


def for_llamafactory(records: list[dict[str, Any]], folder: Path, **info: Any) -> dict[str, Any]:
    """Conversations where LLaMA-Factory looks for them; its arguments for that.

    Args:
        info: Further entries of its dataset_info.json.
    """
    (folder / "records.json").write_text(json.dumps(records, ensure_ascii=False), encoding="utf-8")
    described = {"records": {"file_name": "records.json", "formatting": "sharegpt", **info}}
    (folder / "dataset_info.json").write_text(json.dumps(described))
    return {"dataset": "records", "dataset_dir": str(folder), "do_train": True, "overwrite_cache": True}
