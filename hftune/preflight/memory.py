"""Memory of weights, gradients and optimizer states in each process, as arithmetic: nothing is loaded.

Bytes follow the ZeRO paper (arXiv:1910.02054, section 3): with half precision 2 a weight, 2 a gradient, and for what is
trained a float32 copy (4) next to the optimizer's own states (8 for Adam). Stage 1 spreads copy and states over the
processes, stage 2 gradients as well, stage 3 weights as well. Activations, logits, communication buffers and what the
allocator wastes are not counted, so what is refused here would fail for certain; what passes may still not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

GIB = 2**30

OPTIMIZER_BYTES: dict[str, float] = {
    "adamw_8bit": 2,
    "paged_adamw_8bit": 2,
    "adamw_bnb_8bit": 2,
    "ademamix": 12,
    "ademamix_8bit": 3,
    "paged_ademamix_8bit": 3,
    "lion_32bit": 4,
    "paged_lion_32bit": 4,
    "lion_8bit": 1,
    "paged_lion_8bit": 1,
    "adafactor": 0,  # rows and columns instead of matrices
    "sgd": 0,
    "rmsprop": 4,
    "rmsprop_bnb": 4,
    "rmsprop_bnb_8bit": 1,
    "adagrad": 4,
    "muon": 4,
    "galore_adamw": 0,
    "galore_adamw_8bit": 0,
    "galore_adafactor": 0,
    "apollo_adamw": 0,
    "lomo": 0,
    "adalomo": 0,
}
"""Bytes of an optimizer's states for a trained parameter, by `--optim`; what is not listed is like Adam. Optimizers
with states far smaller than the weights have 0, so that nothing that fits is refused."""

ADAM_BYTES = 8.0


@dataclass(frozen=True)
class ModelSize:
    """Numbers of parameters.

    Args:
        weights: All, the tied ones once.
        trained: Those that get gradients, an adapter's included in full.
        packed: Those of `weights` that a quantised base keeps, or would keep, in 4 or 8 bit.
        reference: Those of a second, frozen model next to it (DPO and RL in full training).
        adapter: Those of an adapter, which come on top of `weights`.
    """

    weights: int
    trained: int
    packed: int = 0
    reference: int = 0
    adapter: int = 0

    def shared(self, processes: int) -> ModelSize:
        """The size of one process's share under tensor parallelism; nearly, since some weights are not split."""
        return ModelSize(*(getattr(self, one.name) // processes for one in fields(self)))


@dataclass(frozen=True)
class Setup:
    """How a run keeps a model in memory.

    Args:
        zero_stage: 0 to 3.
        deepspeed: Whether DeepSpeed is at work; stage 0 is possible with and without.
        processes: All of the run.
        local_processes: Those that share this machine.
        on_cpu: Whether they train in the machine's memory instead of a GPU's.
        half: Whether DeepSpeed keeps weights in 16 bit next to a float32 copy of what is trained.
        weight_bytes: Of a weight as loaded: 4 for float32.
        packed_bytes: Of a weight of a quantised base's linear layers; None where the base is not quantised.
        adapter_bytes: Of an adapter's weight, where it is not that of the others.
        spare_bytes: Of a quantised base's other weights (embeddings, head, norms), likewise: peft makes them float32.
        state_bytes: Of the optimizer's states for a trained parameter.
        copy_bytes: Of DeepSpeed's copy of a trained parameter: 2 with `bf16_master_weights_and_grads`.
        offload_optimizer: Copy, states and gradients lie in the machine's memory.
        offload_weights: Weights do.
        on_disk: Offloaded to NVMe: neither memory holds it.
        teacher_bytes: Of the teachers of a distillation, whole.
    """

    zero_stage: int = 0
    deepspeed: bool = False
    processes: int = 1
    local_processes: int = 1
    on_cpu: bool = False
    half: bool = False
    weight_bytes: float = 4.0
    packed_bytes: float | None = None
    adapter_bytes: float | None = None
    spare_bytes: float | None = None
    state_bytes: float = ADAM_BYTES
    copy_bytes: float = 4.0
    offload_optimizer: bool = False
    offload_weights: bool = False
    on_disk: bool = False
    teacher_bytes: float = 0.0

    @property
    def gradient_bytes(self) -> float:
        """Bytes of a gradient, which has the dtype of what is trained."""
        kept = 2.0 if self.half else self.weight_bytes
        return kept if self.adapter_bytes is None else self.adapter_bytes


@dataclass(frozen=True)
class Need:
    """Bytes that one process needs.

    Args:
        weights: Where it trains; a reference model's included.
        gradients: Where it trains.
        optimizer: Where it trains.
        host: In the machine's memory because of offloading.
        loading: While the weights are read, before DeepSpeed gets them: where it trains, or on the host.
        loads_on_host: Which of the two.
    """

    weights: float
    gradients: float
    optimizer: float
    host: float
    loading: float
    loads_on_host: bool

    @property
    def device(self) -> float:
        """The most that is needed at a time where the process trains."""
        training = self.weights + self.gradients + self.optimizer
        # Loading and training follow each other: the larger of the two must fit.
        return max(training, 0.0 if self.loads_on_host else self.loading)

    @property
    def on_host(self) -> float:
        """The most that is needed at a time in the machine's memory, in addition to the device's."""
        return max(self.host, self.loading if self.loads_on_host else 0.0)


@dataclass(frozen=True)
class Free:
    """Bytes that are free: for one process where it trains, and in the machine's memory for all its processes.

    Where a run trains on the CPU both are the same memory.
    """

    device: float
    host: float


def estimate(size: ModelSize, setup: Setup) -> Need:
    """The bytes that one process needs."""
    # Stage 1 spreads optimizer states, 2 gradients as well, 3 weights as well.
    shares = [setup.processes if setup.zero_stage >= stage else 1 for stage in (1, 2, 3)]
    by_optimizer, by_gradients, by_weights = shares
    kept = 2.0 if setup.half else setup.weight_bytes
    packed = 0.0 if setup.packed_bytes is None else size.packed * setup.packed_bytes
    plain = size.weights - (size.packed if setup.packed_bytes is not None else 0)
    spare = kept if setup.spare_bytes is None else setup.spare_bytes
    adapter = kept if setup.adapter_bytes is None else setup.adapter_bytes
    frozen = size.reference * kept + setup.teacher_bytes
    weights = (packed + plain * spare + size.adapter * adapter + frozen) / by_weights
    gradients = size.trained * setup.gradient_bytes / by_gradients
    # DeepSpeed keeps a float32 copy of what it partitions, also where the weights are float32 themselves.
    copy = setup.copy_bytes if setup.deepspeed and (setup.half or setup.zero_stage >= 1) else 0.0
    optimizer = size.trained * (copy + setup.state_bytes) / by_optimizer
    host = 0.0
    # DeepSpeed's CPU Adam takes gradients in float32, whatever they were on the device.
    if setup.offload_optimizer:
        host += 0.0 if setup.on_disk else optimizer + gradients * 4.0 / setup.gradient_bytes
        optimizer, gradients = 0.0, 0.0
    if setup.offload_weights and setup.zero_stage == 3:
        host += 0.0 if setup.on_disk else weights
        weights = 0.0
    return Need(weights, gradients, optimizer, host, *_loading(size, setup, packed, plain))


def _loading(size: ModelSize, setup: Setup, packed: float, plain: int) -> tuple[float, bool]:
    """Bytes of loading the weights, and whether they lie in the machine's memory.

    A quantised base is read whole by every process onto its device, also under ZeRO-3, which partitions it later. Other
    weights are read into the machine's memory, whole, or in shards under ZeRO-3.
    """
    if setup.packed_bytes is not None:
        return packed + plain * setup.weight_bytes, False
    # `zero.Init` partitions each weight as it is read; else every process has all of them for a moment.
    share = setup.processes if setup.zero_stage == 3 else 1
    return size.weights * setup.weight_bytes / share, True


def fits(need: Need, free: Free, setup: Setup) -> bool:
    """Whether what is needed is free, on the device and for all processes of the machine together."""
    if setup.on_cpu:
        return in_one_memory(need) * setup.local_processes <= free.host
    # Each process has a GPU of its own, and all of them share the machine's memory.
    return need.device <= free.device and need.on_host * setup.local_processes <= free.host


def in_one_memory(need: Need) -> float:
    """Bytes for one process that trains in the machine's memory, where offloading changes nothing."""
    return max(need.weights + need.gradients + need.optimizer + need.host, need.loading)


def shortfall(need: Need, free: Free, setup: Setup) -> str | None:
    """Which memory is too small, and by what, in words; None where all fits."""
    if fits(need, free, setup):
        return None
    if setup.on_cpu:
        asked = in_one_memory(need) * setup.local_processes
        who = f"{setup.local_processes} processes" if setup.local_processes > 1 else "the process"
        return f"{gib(asked)} are needed for {who}, {gib(free.host)} of memory are free"
    if need.device > free.device:
        return f"{gib(need.device)} are needed in each process, {gib(free.device)} are free on the GPU"
    asked = need.on_host * setup.local_processes
    return f"{gib(asked)} are needed in the machine's memory, {gib(free.host)} are free"


def ways_out(size: ModelSize, setup: Setup, adapter: int) -> Iterator[tuple[str, ModelSize, Setup]]:
    """Changes of a run that need less, from the least to the largest: flags, size and setup.

    Args:
        size: As it is now.
        setup: As it is now.
        adapter: Parameters of a LoRA adapter of the rank asked for.
    """
    for stage in (2, 3):
        # With one process there is nobody to share with: ZeRO would only add its copy.
        if setup.zero_stage < stage and setup.processes > 1:
            changed = replace(setup, deepspeed=True, zero_stage=stage, half=setup.half or not setup.on_cpu)
            yield f"--deepspeed ds_configs/zero{stage}.json", size, changed
    if not setup.on_cpu and not setup.offload_optimizer:
        offloaded = replace(
            setup, deepspeed=True, zero_stage=3, half=True, offload_optimizer=True, offload_weights=True
        )
        yield "--deepspeed ds_configs/zero3_offload.json", size, offloaded
    # An adapter of its own is no way out for a run that trains one, or less, already.
    if size.trained > adapter:
        lora = replace(size, trained=adapter, adapter=adapter, reference=0)
        # A frozen base needs no float32 copy, so that its weights are loaded in 16 bit on a GPU.
        frozen = replace(setup, weight_bytes=setup.weight_bytes if setup.on_cpu else 2.0)
        yield "--use_peft", lora, frozen
        if setup.packed_bytes is None and size.packed:
            # Bytes a weight: 4 bit and its share of nested constants, as --qlora sets them (`sizes.packed_bytes`).
            yield "--qlora", lora, replace(frozen, packed_bytes=0.52)
            if setup.zero_stage < 3 and setup.processes > 1:
                spread = replace(frozen, deepspeed=True, zero_stage=3, packed_bytes=0.52)
                yield "--qlora --deepspeed ds_configs/zero3.json", lora, spread
    elif setup.packed_bytes is None and size.packed:
        yield "--qlora", size, replace(setup, packed_bytes=0.52)


def table(size: ModelSize, setup: Setup, free: Free, adapter: int) -> tuple[list[str], str | None]:
    """A line for the run as it is and for each way out, and the first of these that fits."""
    rows = [("as asked", size, setup), *ways_out(size, setup, adapter)]
    width = max(len(name) for name, _, _ in rows)
    lines, first = [f"{'':{width}}  weights  gradients  optimizer  offloaded   (GiB a process)"], None
    for name, its_size, its_setup in rows:
        need = estimate(its_size, its_setup)
        good = fits(need, free, its_setup)
        # Rows are ordered by how much they change: the first that fits is what is advised.
        if good and first is None:
            first = name
        parts = (need.weights, need.gradients, need.optimizer, need.host)
        figures = "".join(f"{part / GIB:>{w}.1f}" for part, w in zip(parts, (9, 11, 11, 11), strict=True))
        lines.append(f"{name:{width}}{figures}   {'fits' if good else 'too much'}")
    return lines, first


def gib(count: float) -> str:
    """Bytes as GiB."""
    return f"{count / GIB:.1f} GiB"
