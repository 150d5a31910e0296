"""Estimates the time of a step, on named hardware, from operations and bytes; what it assumes is printed with it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from hftune.arguments.data import DataArguments
from hftune.arguments.training import PTArguments, StageArguments
from hftune.data.readers.files import find_files
from hftune.data.readers.specs import parse_sources
from hftune.distributed import launch
from hftune.errors import ArgumentError, UserError, did_you_mean
from hftune.models.structure import attention_layers, expert_count, experts_per_token, head_size, routed_weights
from hftune.preflight.devices import DEVICES, GIB, Device, known_gpu
from hftune.preflight.estimating.planner import CONTEXT, Choice
from hftune.preflight.estimating.work import Generation, Work
from hftune.preflight.free_memory import free_memory
from hftune.preflight.memory import ModelSize, Setup


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

    def __str__(self) -> str:
        of_nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        return f"{of_nodes}{self.per_node} x {self.device.name} ({self.device.memory / GIB:.1f} GiB)"


# A name without a size stands for one of its sizes. The plan prints the memory that was taken, so a wrong guess shows.
ALIASES = {"A100": "A100-80", "V100": "V100-16", "RTX4090": "4090", "RTX3090": "3090"}

_ASKED = re.compile(r"(?:(\d+)\s*[x*]\s*)?(.+)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(GiB|GB|G)", re.IGNORECASE)

CPU_TFLOPS_A_CORE = 0.04
"""10^12 multiplications and additions a second in float32 that a core of a server does in training: an assumption."""


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
        # torch's threads and not the machine's cores: OMP_NUM_THREADS and a container's quota bound what a run gets.
        threads = torch.get_num_threads()
        return Cluster(Device("CPU", free.host, CPU_TFLOPS_A_CORE * threads, 50.0, major=0), 1, nodes, free.host)
    # To look at what is free has cost this process a context, which a plan counts for the run.
    here = replace(known_gpu(), memory=free.device + CONTEXT, bf16=launch.supports_bf16())
    return Cluster(here, count, nodes, free.host)


MFU, MFU_LORA, MFU_PACKED, MFU_CPU = 0.40, 0.35, 0.25, 1.0
"""Share of the data sheet's operations that training reaches: in full, with an adapter, on a packed base. Large models
with rows of a few thousand tokens do on Hopper and Ampere; others do not. On a CPU the figure is of training itself."""

LINK_SHARE = 0.7
"""Share of a link's speed that communication reaches."""

NETWORK = 40.0
"""GB/s a device between machines: 400 Gb/s InfiniBand for each."""

HOST_BANDWIDTH = 150.0
"""GB/s of the machine's memory, shared by its processes: what bounds an optimizer on the CPU."""

ADAM_BYTES = 28
"""Read and written a parameter by Adam on the CPU: gradient, copy and two states, and the 16-bit weight."""


@dataclass(frozen=True)
class Time:
    """Seconds of a step.

    Args:
        step: All of it.
        compute, communication, offload, generation: Its parts; communication hides behind computing as far as it can.
        tokens: A step, of all processes.
        mfu: What was assumed.
    """

    step: float
    compute: float
    communication: float
    offload: float
    generation: float
    tokens: int
    mfu: float


def active_weights(bare: PreTrainedModel, size: ModelSize) -> tuple[float, float]:
    """The weights a token is multiplied with, of layers and of head; of experts, those that it is sent to."""
    experts, chosen = expert_count(bare.config), experts_per_token(bare.config)
    routed = sum(one.numel() for one in routed_weights(bare, bare.config))
    # Some models have further ones, of each layer.
    tables = {id(module.weight): module.weight for module in bare.modules() if isinstance(module, nn.Embedding)}
    embeddings = sum(one.numel() for one in tables.values())
    head = bare.get_output_embeddings()
    words = head.weight.numel() if head is not None else 0
    tied = head is not None and head.weight is bare.get_input_embeddings().weight
    # Embeddings are looked up, not multiplied. A tied head was taken off with them.
    layers = size.weights - embeddings - (0 if tied else words)
    return layers - routed * (1 - chosen / experts if experts else 0.0) + size.adapter, float(words)


def forward_flops(bare: PreTrainedModel, size: ModelSize, work: Work) -> float:
    """The operations of one token forward."""
    layers, head = active_weights(bare, size)
    width = sum(head_size(layer) * layer.num_attention_heads for layer in attention_layers(bare.config))
    # 2 for each weight (arXiv:2001.08361, section 2.1); for attention 2 products of 2 operations, over half a row on
    # average.
    return 2 * (layers + head) + 2 * 2 * width * work.tokens / 2


def estimate_time(bare: PreTrainedModel, size: ModelSize, choice: Choice, cluster: Cluster) -> Time | None:
    """The time of a step; None if the device's speed is not known."""
    device, setup, work = cluster.device, choice.setup, choice.work
    if device.tflops is None:
        return None
    forward = forward_flops(bare, size, work)
    passes = 2.0 if choice.adapter.use_peft else 3.0  # a frozen weight has no gradient of its own
    # A reference runs forward alone, whichever way it runs.
    passes += recomputed_share(choice, len_layers(bare)) + (1.0 if work.reference or work.separate_reference else 0.0)
    mfu = (
        MFU_CPU
        if device.on_cpu
        else MFU_PACKED
        if choice.adapter.quantised
        else MFU_LORA
        if choice.adapter.use_peft
        else MFU
    )
    tokens = work.tokens_per_micro_step * work.accumulation
    compute = tokens * forward * passes / (device.tflops * 1e12 * mfu) / (choice.mesh.tensor * choice.mesh.sequence)
    talk, carry = communication(size, setup, work, cluster), offloading(size, setup, work, cluster)
    drawn = generation(size, setup, work.generation, cluster)
    every = tokens * setup.processes // (choice.mesh.tensor * choice.mesh.sequence)
    # Communication overlaps with computing; offloading and generation do not.
    return Time(max(compute, talk) + carry + drawn, compute, talk, carry, drawn, every, mfu)


def len_layers(bare: PreTrainedModel) -> int:
    """The number of decoder layers."""
    return int(bare.config.get_text_config().num_hidden_layers)


def recomputed_share(choice: Choice, layers: int) -> float:
    """The share of a forward pass that runs again, 0 to 1."""
    plan = choice.recompute
    if plan is None:
        return 0.0
    # Shares of a layer's operations, in round figures of a Llama-like layer: two thirds are in its gated MLP.
    parts = {"full": 1.0, "mlp": 0.65, "attention": 0.35}
    return sum(parts[part] for part in plan.parts) * len(plan.layers(layers)) / layers


def exchanged(size: ModelSize, setup: Setup, work: Work) -> tuple[float, float]:
    """The bytes of weights that a step gathers and of gradients that it reduces, whole tensors.

    Gradients are reduced, and weights gathered, once a step; ZeRO-2 and 3 reduce in every micro step, ZeRO-3
    gathers weights forward and backward instead (arXiv:1910.02054, section 7).
    """
    if setup.processes == 1:
        return 0.0, 0.0
    passes = work.accumulation if setup.zero_stage >= 2 else 1
    reduced = size.trained * setup.gradient_bytes * passes
    if setup.zero_stage == 3:
        return 2 * (size.weights + size.adapter) * setup.kept_bytes * work.accumulation, reduced
    return (size.trained * setup.kept_bytes if setup.zero_stage else 0.0), reduced


def communication(size: ModelSize, setup: Setup, work: Work, cluster: Cluster) -> float:
    """The seconds of communication in a ring."""
    # A ring is as fast as its slowest link.
    speed = (cluster.device.link if cluster.nodes == 1 else min(cluster.device.link, NETWORK)) * LINK_SHARE * 1e9
    gathered, reduced = exchanged(size, setup, work)
    # An all-reduce is a reduce-scatter and a gather: each byte moves twice, in stages 2 and 3 once.
    return (gathered + reduced * (2 if setup.zero_stage < 2 else 1)) / speed


def offloading(size: ModelSize, setup: Setup, work: Work, cluster: Cluster) -> float:
    """The seconds of offloading: gradients and weights over PCIe, and Adam on the CPU."""
    if not setup.offload_optimizer and not setup.offload_weights:
        return 0.0
    speed, share = cluster.device.pcie * LINK_SHARE * 1e9, setup.processes if setup.zero_stage else 1
    seconds = 0.0
    if setup.offload_optimizer:
        # Float32 gradients go down in every micro step, 16-bit weights come up once a step.
        seconds += size.trained / share * 4.0 * work.accumulation / speed + size.trained / share * 2.0 / speed
        # The processes of a machine share its memory's bandwidth.
        seconds += size.trained / share * ADAM_BYTES * cluster.per_node / (HOST_BANDWIDTH * 1e9)
    if setup.offload_weights:
        seconds += 3 * size.weights / share * 2.0 * work.accumulation / speed
    return seconds


def generation(size: ModelSize, setup: Setup, drawn: Generation | None, cluster: Cluster) -> float:
    """The seconds of generation: each token, for all rows together, reads the weights once."""
    if drawn is None:
        return 0.0
    kept = 2.0 if setup.half or setup.packed_bytes is not None else setup.weight_bytes
    # Decoding is bound by memory, of whose data-sheet speed half is assumed.
    return drawn.tokens * size.weights * kept / (cluster.device.memory_bandwidth * 0.5 * 1e9)


# --- steps of a run ---

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
