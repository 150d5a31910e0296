"""The table: its dimensions, its cells, and the command that each cell is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tests.architectures import ARCHITECTURES

STEPS = 3
LORA_REGEX = r".*\.self_attn\..*_proj"
LORAPLUS_RATIO = 4.0
LAYERWISE_BOUND = 0.5
WEIGHT_DECAY = 0.1
GLOBAL_BATCH = 4

SCRIPTS: dict[str, tuple[str, ...]] = {
    "pt": ("--block_size", "32"),
    "sft": (),
    "rm": (),
    "dpo": (),
    "rl": (
        *("--reward_funcs", "tests/table/rewards.py:uneven", "--num_generations", "2"),
        *("--max_completion_length", "8"),
    ),
}
DATA = {"pt": "pt", "sft": "sft", "rm": "pairs", "dpo": "pairs", "rl": "prompts"}

_NO_ZERO = json.dumps(
    {
        "zero_optimization": {"stage": 0},
        "gradient_clipping": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
    }
)


@dataclass(frozen=True)
class Mode:
    """How processes share the work: their number, and the ZeRO stage; None without DeepSpeed."""

    processes: int
    stage: int | None
    deepspeed: str | None

    @property
    def flags(self) -> tuple[str, ...]:
        """What the command line gets."""
        return ("--deepspeed", self.deepspeed) if self.deepspeed else ()


MODES = {
    "alone": Mode(1, None, None),
    "ddp": Mode(2, None, None),
    "zero0": Mode(2, 0, _NO_ZERO),
    "zero1": Mode(2, 1, "ds_configs/zero1.json"),
    "zero2": Mode(2, 2, "ds_configs/zero2.json"),
    "zero3": Mode(2, 3, "ds_configs/zero3.json"),
    "zero2_offload": Mode(2, 2, "ds_configs/zero2_offload.json"),
    "zero3_offload": Mode(2, 3, "ds_configs/zero3_offload.json"),
}
MAIN_MODES = ("alone", "zero2", "zero3")

BASES: dict[str, tuple[str, ...]] = {"fp32": (), "nf4": ("--load_in_4bit",), "int8": ("--load_in_8bit",)}

_FULL = ("--learning_rate", "1e-3")
_LORA = ("--use_peft", "--lora_r", "4", "--lora_alpha", "8", "--learning_rate", "1e-2")
METHODS: dict[str, tuple[str, ...]] = {
    "full": _FULL,
    "lora": _LORA,
    "lora_names": (*_LORA, "--lora_target_modules", "o_proj"),
    "rslora": (*_LORA, "--use_rslora"),
    "dora": (*_LORA, "--use_dora"),
    "lora_bias_all": (*_LORA, "--lora_bias", "all"),
    "lora_bias_only": (*_LORA, "--lora_bias", "lora_only"),
    "lora_embeddings": (*_LORA, "--lora_modules_to_save", "embed_tokens"),
    "lora_regex": (*_LORA, "--target_regex", LORA_REGEX),
    "lora_experts": (*_LORA, "--lora_target_modules", "none", "--lora_target_parameters", "experts.down_proj"),
    "lora_tokens": (*_LORA, "--trainable_token_indices", "5", "6"),
    "lora_norms": (*_LORA, "--trainable_parameters", "model.norm"),
    "loraplus": (*_LORA, "--loraplus_lr_ratio", str(LORAPLUS_RATIO)),
    "layerwise": (*_FULL, "--layerwise_lr_decay_bound", str(LAYERWISE_BOUND)),
    "freeze_prefix": (*_FULL, "--freeze_parameters", "model.embed_tokens"),
}

OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "adamw": (),
    "sgd": ("--optim", "sgd"),
    "adafactor": ("--optim", "adafactor"),
    "adamw_8bit": ("--optim", "adamw_bnb_8bit"),
    "lion": ("--optim", "lion_32bit"),
    "muon": ("--optim", "muon", "--max_grad_norm", "0"),
}


@dataclass(frozen=True)
class Cell:
    """One point of the table; each field is a key of its dimension."""

    script: str
    architecture: str
    method: str
    mode: str
    base: str
    optimizer: str

    @property
    def name(self) -> str:
        """Also that of its folder."""
        return "-".join(asdict(self).values())

    @property
    def is_adapter(self) -> bool:
        """Whether an adapter is saved, not a model."""
        return "--use_peft" in METHODS[self.method]

    @property
    def learning_rate(self) -> float:
        """As given on the command line."""
        return float(value_of("--learning_rate", METHODS[self.method]))

    def at(self, **changes: str) -> Cell:
        """This cell with other values in some dimensions."""
        return Cell(**(asdict(self) | changes))

    def as_line(self, work: Path) -> dict[str, Any]:
        """What the driver runs: see `drive.py`. `work` holds the models and the data."""
        mode, model = MODES[self.mode], work / "models" / self.architecture
        return {
            "name": self.name,
            "script": self.script,
            "processes": mode.processes,
            "flags": [
                *("--model_name_or_path", str(model), "--train_file_dir", str(work / "data" / DATA[self.script])),
                *("--per_device_train_batch_size", str(GLOBAL_BATCH // mode.processes)),
                *("--max_steps", str(STEPS), "--lr_scheduler_type", "linear", "--weight_decay", str(WEIGHT_DECAY)),
                *("--logging_steps", "1", "--save_strategy", "no", "--report_to", "none"),
                *SCRIPTS[self.script],
                *METHODS[self.method],
                *BASES[self.base],
                *OPTIMIZERS[self.optimizer],
                *mode.flags,
                # Recomputed reentrantly, as adapters are under ZeRO-3, routers give no loss of their own (it is said).
                *("--gradient_checkpointing", "False"),
            ],
            "reload": {
                "kind": "adapter" if self.is_adapter else "full",
                "head": "score" if self.script == "rm" else "causal_lm",
                "model": str(model),
                "base": self.base,
            },
        }


def value_of(flag: str, flags: tuple[str, ...]) -> str:
    """What stands behind a flag."""
    return flags[flags.index(flag) + 1]


PLANES: dict[str, dict[str, tuple[str, ...]]] = {
    # Each is a whole product of some dimensions; the others stay at one value.
    "architectures": {
        "script": ("sft",),
        "architecture": ARCHITECTURES,
        "method": tuple(METHODS),
        "mode": MAIN_MODES,
        "base": tuple(BASES),
        "optimizer": ("adamw",),
    },
    "stages": {
        "script": tuple(SCRIPTS),
        "architecture": ("qwen2",),
        "method": tuple(METHODS),
        "mode": MAIN_MODES,
        "base": tuple(BASES),
        "optimizer": ("adamw",),
    },
    "scripts": {
        "script": tuple(SCRIPTS),
        "architecture": ARCHITECTURES,
        "method": ("full", "lora"),
        "mode": MAIN_MODES,
        "base": ("fp32",),
        "optimizer": ("adamw",),
    },
    "modes": {
        "script": ("sft",),
        "architecture": ("qwen2",),
        "method": tuple(METHODS),
        "mode": tuple(MODES),
        "base": tuple(BASES),
        "optimizer": ("adamw",),
    },
    "optimizers": {
        "script": ("sft",),
        "architecture": ("qwen2",),
        "method": ("full", "lora"),
        "mode": tuple(MODES),
        "base": ("fp32",),
        "optimizer": tuple(OPTIMIZERS),
    },
}


def cells_of(plane: str) -> list[Cell]:
    """Every cell of a plane: the product of its dimensions."""
    dimensions = PLANES[plane]
    return [Cell(**dict(zip(dimensions, values, strict=True))) for values in product(*dimensions.values())]


def all_cells() -> list[Cell]:
    """Every cell of the table once, those without a launcher first: others are compared with them."""
    unique = dict.fromkeys(cell for plane in PLANES for cell in cells_of(plane))
    return sorted(unique, key=lambda cell: MODES[cell.mode].processes)


def references(cell: Cell) -> Iterator[Cell]:
    """The cells that a cell is compared with: the same in one process, and where that starts."""
    yield cell.at(mode="alone")
    yield starting_point(cell)


def starting_point(cell: Cell) -> Cell:
    """The plainest cell whose model is the same before the first step."""
    return cell.at(mode="alone", optimizer="adamw", method="full" if cell.base == "fp32" else "lora")
