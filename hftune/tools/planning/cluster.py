"""The devices and machines that a plan is for, and the number of steps that its records make."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from hftune.arguments.data import DataArguments
from hftune.arguments.training import PTArguments, StageArguments
from hftune.data.files import find_files
from hftune.data.specs import parse_sources
from hftune.distributed import launch
from hftune.errors import ArgumentError, UserError, did_you_mean
from hftune.preflight.devices import DEVICES, GIB, Device, known_gpu
from hftune.preflight.estimating.planner import CONTEXT
from hftune.preflight.free_memory import free_memory
from hftune.preflight.memory import Free


@dataclass(frozen=True)
class Cluster:
    """The devices and machines of a run.

    Args:
        device: Each of them.
        per_node: In a machine.
        nodes: Machines.
        host: Bytes of memory that are free in a machine; None: not known.
    """

    device: Device
    per_node: int = 1
    nodes: int = 1
    host: float | None = None

    @property
    def count(self) -> int:
        """All devices."""
        return self.per_node * self.nodes

    @property
    def free(self) -> Free:
        """Memory for each process and in each machine; infinite where the machine's is not known."""
        return Free(device=self.device.memory, host=float("inf") if self.host is None else self.host)

    def __str__(self) -> str:
        of_nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        return f"{of_nodes}{self.per_node} x {self.device.name} ({self.device.memory / GIB:.1f} GiB)"


# A name without a size stands for one of its sizes. The plan prints the memory that was taken, so a wrong guess shows.
ALIASES = {"A100": "A100-80", "V100": "V100-16", "RTX4090": "4090", "RTX3090": "3090"}

_ASKED = re.compile(r"(?:(\d+)\s*[x*]\s*)?(.+)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(GiB|GB|G)", re.IGNORECASE)


def cluster_of(asked: str, nodes: int = 1) -> Cluster:
    """The cluster that `8xH200`, `H100` or `4x24GiB` means, in each of `nodes` machines.

    Raises:
        ArgumentError: No known device, or none of it.
    """
    match = _ASKED.fullmatch(asked.strip())
    assert match is not None, "anything matches"
    count, name = int(match[1] or 1), match[2].strip()
    size = _SIZE.fullmatch(name)
    found = None
    if size is not None:
        # GB as on data sheets, 10^9; GiB and the bare G as tools that report memory count, 2^30.
        unit = GIB if size[2].lower() != "gb" else 10**9
        found = Device(name, float(size[1]) * unit)
    else:
        known = {key.upper(): device for key, device in DEVICES.items()}
        known |= {other: DEVICES[key] for other, key in ALIASES.items()}
        found = known.get(name.upper().replace(" ", ""))
        if found is None:
            listed = f"One of: {', '.join(DEVICES)}; or its memory: {count}x24GiB"
            raise ArgumentError(
                f"{name} is no device that hftune knows",
                place="--gpus",
                fix=f"{did_you_mean(name.upper(), known)} {listed}".strip(),
            )
    if count < 1 or nodes < 1:
        raise ArgumentError("no device at all", place="--gpus, --nodes", fix="give 1 or more")
    return Cluster(found, count, nodes)


def cluster_here(nodes: int = 1) -> Cluster:
    """The devices of this machine with the memory that is free now, in each of `nodes` machines alike."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    free = free_memory(on_cpu=count == 0, device=torch.cuda.current_device() if count else 0)
    if count == 0:
        return Cluster(Device("CPU", free.host, major=0), 1, nodes, free.host)
    # To look at what is free has cost this process a context, which a plan counts for the run.
    here = replace(known_gpu(), memory=free.device + CONTEXT, bf16=launch.supports_bf16())
    return Cluster(here, count, nodes, free.host)


MOST_BYTES = 2 * 2**30
"""Most bytes of data files to count records in: more would take longer than the plan."""


@dataclass(frozen=True)
class Steps:
    """Optimizer steps of a run, None where they are not known; and where the number is from, or why there is none."""

    count: int | None
    because: str


def steps_of(data_args: DataArguments, training_args: StageArguments, examples_a_step: int) -> Steps:
    """The steps of a run, from `--max_steps` or from the number of records.

    Args:
        examples_a_step: The global batch.
    """
    if training_args.max_steps > 0:
        return Steps(training_args.max_steps, "--max_steps")
    if isinstance(training_args, PTArguments) or getattr(training_args, "packing", False):
        return Steps(None, "rows are packed, and how many tokens the records have is known when they are tokenised")
    count, because = records(data_args)
    if count is None:
        return Steps(None, because)
    if data_args.max_train_samples >= 0:
        count = min(count, data_args.max_train_samples)
    # Without files of its own the validation set is taken from the training records.
    if not data_args.validation_file_dir and data_args.validation_split_percentage:
        count = round(count * (1 - data_args.validation_split_percentage / 100))
    # Two roundings as in the Trainer: an epoch's last, smaller batch is a step, and so is a last part of an epoch.
    steps = math.ceil(math.ceil(count / examples_a_step) * training_args.num_train_epochs)
    return Steps(max(1, steps), f"{count:,} records, {because}")


def records(data_args: DataArguments) -> tuple[int | None, str]:
    """The number of records and how they were counted; None and the reason where counting is not cheap."""
    if data_args.dummy_data:
        return data_args.dummy_data, "--dummy_data"
    if not data_args.train_file_dir:
        return None, "no data were named"
    try:
        specs = parse_sources(data_args.train_file_dir)
        # `PATH#500` is 500 records, however many the source has.
        files = [file for spec in specs if spec.take is None for file in find_files(spec.path, "--train_file_dir")]
    except UserError as problem:
        return None, problem.cause
    if any(file.suffix != ".jsonl" for file in files):
        return None, "only the lines of .jsonl files are counted here"
    if sum(file.stat().st_size for file in files) > MOST_BYTES:
        return None, "the files are too large to count them here"
    return sum(spec.take or 0 for spec in specs) + sum(map(_lines, files)), "one a line"


def _lines(file: Path) -> int:
    with file.open("rb") as stream:
        # Readers skip empty lines, so they are no records.
        return sum(bool(line.strip()) for line in stream)
