"""Memory of weights, gradients and optimizer states in each process, as arithmetic: nothing is loaded.

Bytes follow the ZeRO paper (arXiv:1910.02054, section 3): with half precision 2 a weight, 2 a gradient, and for what is
trained a float32 copy (4) next to the optimizer's own states (8 for Adam). Stage 1 spreads copy and states over the
processes, stage 2 gradients as well, stage 3 weights as well. Activations, logits, communication buffers and what the
allocator wastes are not counted, so what is refused for it would fail for certain; what passes may still not fit.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from peft import LoraConfig
from torch import nn
from transformers import PreTrainedModel

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import ds_config, ranks, zero
from hftune.distributed.ds_config import DsConfig
from hftune.models.adapters.freezing import plan_freezing
from hftune.models.adapters.lora_config import inject, lora_config
from hftune.models.loading.build import weight_dtype
from hftune.models.structure import routed_weights
from hftune.on_demand import on_demand
from hftune.weight_files import weight_shapes

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
        ends: Those of `weights` in embeddings and head.
        experts: Those in routed experts.
        trained_experts: Those of them that are trained in place.
    """

    weights: int
    trained: int
    packed: int = 0
    reference: int = 0
    adapter: int = 0
    ends: int = 0
    experts: int = 0
    trained_experts: int = 0


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
    def kept_bytes(self) -> float:
        """Bytes of a weight while it is trained."""
        return 2.0 if self.half else self.weight_bytes

    @property
    def gradient_bytes(self) -> float:
        """Bytes of a gradient, which has the dtype of what is trained."""
        return self.kept_bytes if self.adapter_bytes is None else self.adapter_bytes


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
    kept = setup.kept_bytes
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


_BLOCK = 64  # weights that share a constant in bitsandbytes' 4-bit types
_NESTED_BLOCK = 256  # constants that share one where they are quantised themselves


def model_size(bare: PreTrainedModel, adapter_args: AdapterArguments, training_args: StageArguments) -> ModelSize:
    """The numbers of a run's parameters.

    Args:
        bare: The model on the meta device; not changed.
    """
    whole, adapted = list(bare.parameters()), adapter_args.use_peft
    weights = _numbers(whole)
    adapter = adapter_parameters(bare, adapter_args) if adapted else 0
    # Without an adapter all are trained, or what is not frozen.
    freezes = adapter_args.freezes and not adapted
    chosen = plan_freezing(bare, adapter_args) if freezes else {id(one) for one in whole}
    experts = routed_weights(bare, bare.config)
    modules = [module for module in (bare.get_input_embeddings(), bare.get_output_embeddings()) if module is not None]
    return ModelSize(
        weights=weights,
        trained=adapter or _numbers(one for one in whole if id(one) in chosen),
        packed=sum(linear.weight.numel() for linear in packed_linears(bare)),
        # With an adapter the reference is the model with its adapter switched off: no second copy.
        reference=weights if not adapted and training_args.keeps_reference else 0,
        adapter=adapter,
        # By id, so that a head tied to the embeddings counts once.
        ends=_numbers({id(one): one for module in modules for one in module.parameters()}.values()),
        experts=_numbers(experts),
        trained_experts=0 if adapted else _numbers(one for one in experts if id(one) in chosen),
    )


def _numbers(parameters: Iterable[torch.Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def packed_linears(bare: nn.Module) -> list[nn.Linear]:
    """The layers that bitsandbytes quantises: every linear but the head. Experts kept as 3-D tensors are none."""
    return [
        module
        for name, module in bare.named_modules()
        if isinstance(module, nn.Linear) and name.rsplit(".", 1)[-1] not in ("lm_head", "score", "embed_out")
    ]


def adapter_parameters(bare: PreTrainedModel, adapter_args: AdapterArguments) -> int:
    """Parameters of the adapter asked for: of the one that is continued, or of a fresh one."""
    if adapter_args.continued_adapter:
        shapes = weight_shapes(adapter_args.continued_adapter).values()
        return sum(torch.Size(shape).numel() for shape in shapes)
    return try_adapter(bare, lora_config(bare, adapter_args))[1]


def try_adapter(bare: PreTrainedModel, config: LoraConfig) -> tuple[nn.Module, int]:
    """A copy of a skeleton with an adapter, and how many parameters are trained in it.

    Raises:
        ArgumentError: peft cannot adapt this model so.
    """
    config.init_lora_weights = True  # the factors, some of them made from the base's values, are nothing to look at
    # On the meta device, where an adapter of any size costs no memory.
    with zero.no_partitioning(), torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns about the same things when it makes the real one
        # In a copy: what peft freezes stays frozen when the adapter is taken off again.
        adapted = inject(copy.deepcopy(bare), config, autocast_adapter_dtype=False)
    return adapted, _numbers(parameter for parameter in adapted.parameters() if parameter.requires_grad)


def run_setup(model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments) -> Setup:
    """How a run keeps its model, from its arguments and DeepSpeed config."""
    return setup_under(training_args.ds_resolved, model_args, adapter_args, training_args)


def setup_under(
    config: DsConfig | None, model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments
) -> Setup:
    """How it would keep it under another config, or with another adapter."""
    stage = ds_config.zero_stage(config)
    dtype = weight_dtype(model_args, training_args, trains_all=not adapter_args.use_peft)
    offloads = {what: ds_config.offload_device(config, what) for what in ("optimizer", "param")}
    # Without DeepSpeed autocast computes in 16 bit, and the weights stay what they were loaded as.
    half = config is not None and bool(training_args.bf16 or training_args.fp16)
    # peft makes an adapter float32 next to a base in 16 bit. DeepSpeed puts everything in 16 bit; under ZeRO-3 an
    # adapter has its base's dtype, or could not be gathered with it.
    in_float32 = adapter_args.use_peft and not half and (stage != 3 or adapter_args.quantised)
    states = float(OPTIMIZER_BYTES.get(training_args.optim_name, ADAM_BYTES))
    taught = bool(getattr(training_args, "teachers", None))
    count_teachers = on_demand("hftune.preflight.teachers:teacher_bytes") if taught else None
    return Setup(
        zero_stage=stage,
        deepspeed=config is not None,
        processes=ranks.world_size(),
        local_processes=ranks.local_world_size(),
        on_cpu=bool(training_args.use_cpu),
        half=half,
        weight_bytes=float(dtype.itemsize),
        packed_bytes=packed_bytes(adapter_args) if adapter_args.quantised else None,
        adapter_bytes=4.0 if in_float32 else None,
        # `prepare_model_for_kbit_training` (peft 0.21) casts what is not quantised to float32.
        spare_bytes=4.0 if adapter_args.quantised and not half else None,
        # DeepSpeed halves the states with bf16_optimizer_states.
        state_bytes=states / (2 if _in_bf16(config, "bf16_optimizer_states") else 1),
        copy_bytes=2.0 if _in_bf16(config, "bf16_master_weights_and_grads") else 4.0,
        offload_optimizer=offloads["optimizer"] is not None,
        offload_weights=offloads["param"] is not None,
        on_disk="nvme" in offloads.values(),
        teacher_bytes=count_teachers(model_args, training_args, half=half) if count_teachers else 0.0,
    )


def packed_bytes(adapter_args: AdapterArguments) -> float:
    """Bytes of a quantised weight with its constants: 0.5625 in 4 bit, 0.516 with nested constants, 1 in 8 bit."""
    if adapter_args.load_in_8bit:
        return 1.0
    if adapter_args.use_bnb_nested_quant:
        return 0.5 + (1.0 + 4.0 / _NESTED_BLOCK) / _BLOCK
    return 0.5 + 4.0 / _BLOCK


def _in_bf16(config: DsConfig | None, what: str) -> bool:
    """Whether DeepSpeed keeps this in bf16 instead of float32."""
    return bool(((config or {}).get("bf16") or {}).get(what))
