"""Estimates the time of a step from operations and bytes; what it assumes is printed with it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from hftune.models.experts import expert_count, experts_per_token, routed_weights
from hftune.models.layer_values import attention_layers, head_size
from hftune.preflight.memory import ModelSize, Setup
from hftune.tools.planning.clusters import Cluster
from hftune.tools.planning.planner import Choice
from hftune.tools.planning.work import Generation, Work

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
    compute = (
        tokens * forward * passes / (device.tflops * 1e12 * mfu) / (choice.degrees.tensor * choice.degrees.sequence)
    )
    talk, carry = communication(size, setup, work, cluster), offloading(size, setup, work, cluster)
    drawn = generation(size, setup, work.generation, cluster)
    every = tokens * setup.processes // (choice.degrees.tensor * choice.degrees.sequence)
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
    parts = {"full": 1.0, "mlp": 0.65, "attention": 0.35, "core_attention": 0.1}
    return sum(parts[part] for part in plan.parts) * len(plan.layers(layers)) / layers


def exchanged(size: ModelSize, setup: Setup, work: Work) -> tuple[float, float]:
    """The bytes of weights that a step gathers and of gradients that it reduces, whole tensors.

    Gradients are reduced, and weights gathered, once a step; ZeRO-2 and 3 reduce in every micro step, ZeRO-3
    gathers weights forward and backward instead (arXiv:1910.02054, section 7).
    """
    if setup.processes == 1:
        return 0.0, 0.0
    kept = 2.0 if setup.half else setup.weight_bytes
    passes = work.accumulation if setup.zero_stage >= 2 else 1
    reduced = size.trained * setup.gradient_bytes * passes
    if setup.zero_stage == 3:
        return 2 * (size.weights + size.adapter) * kept * work.accumulation, reduced
    return (size.trained * kept if setup.zero_stage else 0.0), reduced


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
