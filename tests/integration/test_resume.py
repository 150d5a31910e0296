"""Going on elsewhere: on another number of processes, under another ZeRO stage, without DeepSpeed.

The loss of every step is that of the run that was never stopped, and every step trains the very same records. Runs are
forked from a process that has the libraries (tests/warm.py).
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.checkpoints.engine_files import open_engine
from hftune.checkpoints.sharded_state import WEIGHTS
from tests.conftest import logged

# Three steps an epoch, of which the last has two records; stopped in the second epoch, ended in the third.
RECORDS, BATCH, STEPS, STOP = 10, 4, 7, 4
SCRIPT = "tests/integration/recording_sft.py"
METHODS = {
    "full": ["--learning_rate", "1e-3"],
    "lora": ["--use_peft", "--lora_r", "4", "--learning_rate", "1e-2", "--loraplus_lr_ratio", "4"],
}
_AUTO = ("gradient_clipping", "gradient_accumulation_steps", "train_batch_size", "train_micro_batch_size_per_gpu")
STAGE_0 = json.dumps({"zero_optimization": {"stage": 0}, **dict.fromkeys(_AUTO, "auto")})
CONFIGS = {
    "plain": [],
    "zero0": ["--deepspeed", STAGE_0],
    **{name: ["--deepspeed", f"ds_configs/{name}.json"] for name in ("zero1", "zero2", "zero3", "zero3_offload")},
}


@dataclass(frozen=True)
class World:
    """What shares the work: a key of CONFIGS, and processes."""

    config: str
    processes: int

    def __str__(self) -> str:
        return f"{self.config}x{self.processes}"


@dataclass
class Leg:
    """A finished run: the loss and the records of each step, and what it said."""

    losses: list[float]
    records: dict[int, Counter[str]]
    said: str
    code: int


@pytest.fixture
def legs(run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path) -> Callable[..., dict[str, Leg]]:
    """`legs({name: (world, flags)})`: SFT; a flag "FROM:name" goes on from that run's checkpoint."""

    def train(wanted: dict[str, tuple[World, list[str]]]) -> dict[str, Leg]:
        return {name: leg(name, world, flags) for name, (world, flags) in wanted.items()}

    def leg(name: str, world: World, flags: list[str]) -> Leg:
        shared = ["--model_name_or_path", str(tiny_model), "--train_file_dir", str(tiny_data / "sft")]
        shared += ["--max_train_samples", str(RECORDS), "--max_steps", str(STEPS), "--logging_steps", "1"]
        shared += ["--weight_decay", "0.1", "--gradient_checkpointing", "False", "--report_to", "none"]
        shared += ["--per_device_train_batch_size", str(BATCH // world.processes), *CONFIGS[world.config]]
        shared += ["--output_dir", str(tmp_path / name)]
        source = next((flag.removeprefix("FROM:") for flag in flags if flag.startswith("FROM:")), None)
        saving = ["--save_strategy", "steps", "--save_steps", str(STOP), "--save_total_limit", "9"]
        if source:
            checkpoint = tmp_path / source / f"checkpoint-{STOP}"
            saving = ["--save_strategy", "no", "--resume_from_checkpoint", str(checkpoint)]
        own = [flag for flag in flags if not flag.startswith("FROM:")]
        os.environ["RECORD_TO"] = str(tmp_path / f"{name}-record")
        launcher = "python" if world.processes == 1 else f"deepspeed --num_gpus {world.processes}"
        finished = run(SCRIPT, *shared, *saving, *own, launcher=launcher, warm=True)
        return read(tmp_path, name, finished)

    return train


def read(folder: Path, name: str, finished: Any) -> Leg:
    if finished.code != 0:
        return Leg([], {}, finished.output, finished.code)
    records: dict[int, Counter[str]] = {}
    for file in folder.glob(f"{name}-record.*"):
        for line in file.read_text().splitlines():
            step, *rows = line.split()
            records.setdefault(int(step), Counter()).update(rows)
    return Leg(logged(folder / name), records, finished.output, finished.code)


def check_same(resumed: Leg, whole: Leg, name: str, *, exact: bool = False) -> None:
    """Losses to 1e-4, or to the last bit, and the very records of each step that was left."""
    assert resumed.code == 0, (name, resumed.said[-3000:])
    assert len(resumed.losses) == STEPS, name
    assert resumed.losses == (whole.losses if exact else pytest.approx(whole.losses, abs=1e-4)), name
    assert resumed.records == {step: rows for step, rows in whole.records.items() if step >= STOP}, name


def matrix(methods: Iterable[str], sources: Iterable[World], targets: Iterable[World]) -> dict:
    """Whole runs of all sources, and each resumed as every target."""
    wanted = {}
    for method, source in product(methods, sources):
        whole = f"{method}-{source}"
        wanted[whole] = (source, METHODS[method])
        for target in targets:
            wanted[f"{whole}-to-{target}"] = (target, [*METHODS[method], f"FROM:{whole}"])
    return wanted


def check_matrix(found: dict[str, Leg]) -> None:
    for name, leg in found.items():
        source, _, target = name.partition("-to-")
        if target:
            check_same(leg, found[source], name, exact=source.endswith(f"-{target}"))


def test_another_world_and_another_stage(legs: Callable[..., dict[str, Leg]]) -> None:
    """2 to 1 and ZeRO-2 to 3 at once, LoRA with rates of its own; 1 to 2 and ZeRO-3 to 2, full."""
    two, one = World("zero2", 2), World("zero3", 1)
    found = legs(matrix(["lora"], [two], [one]) | matrix(["full"], [one], [two]))
    check_matrix(found)
    assert "was written by 2 process(es) under ZeRO-2" in found["lora-zero2x2-to-zero3x1"].said
    for whole in (found["lora-zero2x2"], found["full-zero3x1"]):
        epoch = sum((whole.records[step] for step in range(3)), Counter())
        assert len(epoch) == RECORDS and set(epoch.values()) == {1}, "each record once an epoch"
        assert sum(whole.records[2].values()) == RECORDS % BATCH


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", METHODS)
def test_the_matrix(legs: Callable[..., dict[str, Leg]], method: str) -> None:
    worlds = [World(config, processes) for config, processes in product(("zero2", "zero3"), (1, 2))]
    found = legs(matrix([method], worlds, worlds))
    assert len(found) == 4 + 16
    check_matrix(found)
    # One curve, however the work is shared, over the end of an epoch that does not divide.
    for name, leg in found.items():
        assert leg.losses == pytest.approx(found[f"{method}-zero2x1"].losses, abs=1e-4), name


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_with_and_without_deepspeed(legs: Callable[..., dict[str, Leg]]) -> None:
    plain, ddp, basic, zero1 = World("plain", 1), World("plain", 2), World("zero0", 2), World("zero1", 2)
    zero3, offload = World("zero3", 2), World("zero3_offload", 1)
    wanted = matrix(METHODS, [zero3], [plain, ddp, basic, zero1, offload])
    wanted |= matrix(METHODS, [plain], [zero3, ddp, World("zero2", 1), basic])
    wanted |= matrix(["full"], [basic], [zero3, plain, World("zero0", 1)])
    wanted |= matrix(["full"], [offload], [zero3])
    check_matrix(legs(wanted))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_optimizers(legs: Callable[..., dict[str, Leg]]) -> None:
    """States of any name are resharded; those quantised in blocks are refused, and resumed where they were."""
    two, three, same = World("zero2", 2), World("zero3", 1), World("zero2", 2)
    asked = {name: ["--optim", name, "--learning_rate", "1e-3"] for name in ("lion_32bit", "adamw_8bit", "ademamix")}
    asked["sgd"] = ["--optim", "sgd", "--sgd_momentum", "0.9", "--learning_rate", "1e-2"]
    asked["muon"] = ["--optim", "muon", "--learning_rate", "1e-3", "--max_grad_norm", "0"]
    wanted = {}
    for name, flags in asked.items():
        wanted[name] = (two, flags)
        for target in (three, World("zero2", 1)):
            wanted[f"{name}-to-{target}"] = (target, [*flags, f"FROM:{name}"])
        wanted[f"{name}-to-same"] = (same, [*flags, f"FROM:{name}"])
    wanted["muon3"] = (World("zero3", 2), asked["muon"])
    wanted["muon3-to-zero2x2"] = (two, [*asked["muon"], "FROM:muon3"])
    found = legs(wanted)
    for name, leg in found.items():
        source, _, target = name.partition("-to-")
        if target and source == "adamw_8bit" and target != "same":
            assert leg.code == 2 and "belongs to blocks of weights" in leg.said, name
        elif target:
            check_same(leg, found[source], name, exact=target == "same")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_bf16_and_accumulation(legs: Callable[..., dict[str, Leg]]) -> None:
    """fp32 masters are resharded, not the 16-bit copy; and a batch that does not fit is made to, or refused."""
    bf16 = [*METHODS["full"], "--bf16", "True"]
    wanted = {"bf16": (World("zero1", 2), bf16), "bf16-to-zero3x2": (World("zero3", 2), [*bf16, "FROM:bf16"])}
    two, one, flags = World("zero2", 2), World("zero3", 1), METHODS["full"]
    wanted |= {"whole": (two, flags)}
    for micro in (1, 2, 3):
        own = [*flags, "--per_device_train_batch_size", str(micro), "FROM:whole"]
        wanted |= {f"micro-{micro}": (one, own)}
    packed = [*flags, "--padding_free", "True"]
    wanted |= {"flat": (two, packed), "flat-to-one": (one, [*packed, "FROM:flat"])}
    found = legs(wanted)
    check_same(found["flat-to-one"], found["flat"], "flat")
    assert found["flat"].losses == pytest.approx(found["whole"].losses, abs=1e-4)
    # In bf16 sums differ by the number of processes; as many, under another stage, differ by rounding alone.
    assert found["bf16-to-zero3x2"].losses == pytest.approx(found["bf16"].losses, abs=2e-2)
    assert found["bf16-to-zero3x2"].losses[: STOP + 1] == found["bf16"].losses[: STOP + 1]
    for micro in (1, 2):
        check_same(found[f"micro-{micro}"], found["whole"], f"micro-{micro}")
        assert f"--gradient_accumulation_steps 1 is {BATCH // micro} in this run" in found[f"micro-{micro}"].said
    assert found["micro-3"].code == 2 and "--per_device_train_batch_size 2 --gradient_acc" in found["micro-3"].said


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_deepspeeds_own_converter_makes_the_same(
    legs: Callable[..., dict[str, Leg]], tmp_path: Path, stage: str
) -> None:
    """Every number that `ds_to_universal` takes out of the pieces is the one that is read here."""
    from deepspeed.checkpoint import ds_to_universal

    legs({"run": (World(stage, 2), METHODS["full"])})
    source = tmp_path / "run" / f"checkpoint-{STOP}" / f"global_step{STOP}"
    asked = {"input_folder": str(source), "output_folder": str(tmp_path / "universal"), "strict": True}
    asked |= {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False, "inject_missing_state": True}
    ds_to_universal.main(argparse.Namespace(**asked))
    ours = open_engine(source)
    assert len(ours.shapes) == 20
    for name, key in product(ours.shapes, (WEIGHTS, "exp_avg", "exp_avg_sq")):
        theirs = torch.load(tmp_path / "universal" / "zero" / name / f"{key}.pt", weights_only=False)["param"]
        assert torch.equal(ours.read(name, key), theirs.flatten()), (name, key)
        assert ours.scalars(name)["step"] == STOP
