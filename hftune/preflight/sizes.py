"""From a run's arguments to the inputs of the memory arithmetic, counted on a model without weights."""

from __future__ import annotations

import copy
import warnings

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import PreTrainedModel

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.distributed import ds_config, ranks, zero
from hftune.distributed.ds_config import DsConfig
from hftune.models.adapters.freezing import plan_freezing
from hftune.models.adapters.lora_config import lora_config
from hftune.models.adapters.saved_config import usable_quantisers
from hftune.models.loading.dtype import weight_dtype
from hftune.on_demand import on_demand
from hftune.preflight.memory import ADAM_BYTES, OPTIMIZER_BYTES, ModelSize, Setup
from hftune.weight_files import weight_shapes

_BLOCK = 64  # weights that share a constant in bitsandbytes' 4-bit types
_NESTED_BLOCK = 256  # constants that share one where they are quantised themselves


def model_size(bare: PreTrainedModel, adapter_args: AdapterArguments, training_args: StageArguments) -> ModelSize:
    """The numbers of a run's parameters.

    Args:
        bare: The model on the meta device; not changed.
    """
    weights = sum(parameter.numel() for parameter in bare.parameters())
    adapter = adapter_parameters(bare, adapter_args) if adapter_args.use_peft else 0
    trained = adapter or trained_in_place(bare, adapter_args)
    packed = sum(linear.weight.numel() for linear in packed_linears(bare))
    # With an adapter the reference is the model with its adapter switched off: no second copy.
    reference = weights if not adapter_args.use_peft and training_args.keeps_reference else 0
    return ModelSize(weights=weights, trained=trained, packed=packed, reference=reference, adapter=adapter)


def trained_in_place(bare: PreTrainedModel, adapter_args: AdapterArguments) -> int:
    """The number of parameters that training without an adapter changes: all, or what is not frozen."""
    chosen = plan_freezing(bare, adapter_args) if adapter_args.freezes else None
    return sum(one.numel() for one in bare.parameters() if chosen is None or id(one) in chosen)


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
    # Counted on a model without weights, so that an adapter of any size costs no memory.
    config = lora_config(bare, adapter_args)
    config.init_lora_weights = False  # whose values, some of them made from the base's, do not matter here
    return count_adapter(bare, config)


def count_adapter(bare: PreTrainedModel, config: LoraConfig) -> int:
    """Parameters that this adapter would add to, or train in, the model, which is not changed."""
    key = adapter_key(bare, config)
    if key not in _counted:
        # On the meta device: the shapes are all that is counted.
        with zero.no_partitioning(), torch.device("meta"), warnings.catch_warnings(), usable_quantisers():
            warnings.simplefilter("ignore")  # peft warns about the same things when it makes the real one
            # In a copy: what peft freezes stays frozen when the adapter is taken off again.
            adapted = get_peft_model(copy.deepcopy(bare), config, autocast_adapter_dtype=False)
            _counted[key] = trained_parameters(adapted)
    return _counted[key]


def note_adapter(key: str, parameters: int) -> None:
    """Store the parameters of an adapter that was made elsewhere, so that `count_adapter` need not make it."""
    _counted[key] = parameters


_counted: dict[str, int] = {}
"""Parameters of the adapters that were made on a skeleton so far, by `adapter_key`: making one takes 0.2 s."""


def adapter_key(bare: PreTrainedModel, config: LoraConfig) -> str:
    """A key of all that decides how many parameters an adapter has; its initial values do not."""
    shapes = [(name, tuple(parameter.shape)) for name, parameter in bare.named_parameters()]
    return repr((shapes, sorted({**config.to_dict(), "init_lora_weights": None}.items(), key=str)))


def trained_parameters(model: nn.Module) -> int:
    """The number of parameters that require a gradient."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def run_setup(model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments) -> Setup:
    """How a run keeps its model, from its arguments and DeepSpeed config."""
    config = training_args.ds_resolved
    dtype = weight_dtype(model_args, training_args, trains_all=not adapter_args.use_peft)
    offloads = {what: ds_config.offload_device(config, what) for what in ("optimizer", "param")}
    # Without DeepSpeed autocast computes in 16 bit, and the weights stay what they were loaded as.
    half = config is not None and bool(training_args.bf16 or training_args.fp16)
    taught = bool(getattr(training_args, "teachers", None))
    count_teachers = on_demand("hftune.preflight.teachers:teacher_bytes") if taught else None
    return Setup(
        zero_stage=training_args.zero_stage,
        deepspeed=config is not None,
        processes=ranks.world_size(),
        local_processes=ranks.local_world_size(),
        on_cpu=bool(training_args.use_cpu),
        half=half,
        weight_bytes=float(dtype.itemsize),
        packed_bytes=packed_bytes(adapter_args) if adapter_args.quantised else None,
        adapter_bytes=adapter_bytes(adapter_args, half=half, zero_stage=training_args.zero_stage),
        # `prepare_model_for_kbit_training` (peft 0.21) casts what is not quantised to float32.
        spare_bytes=4.0 if adapter_args.quantised and not half else None,
        # DeepSpeed halves the states with bf16_optimizer_states.
        state_bytes=state_bytes(training_args) / (2 if _in_bf16(config, "bf16_optimizer_states") else 1),
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


def adapter_bytes(adapter_args: AdapterArguments, *, half: bool, zero_stage: int) -> float | None:
    """Bytes of an adapter's weight where it differs from the base's: float32, as peft makes it, on 16 bit.

    DeepSpeed puts everything in 16 bit; under ZeRO-3 an adapter has its base's dtype, or could not be gathered with it.
    """
    if not adapter_args.use_peft or half or (zero_stage == 3 and not adapter_args.quantised):
        return None
    return 4.0


def state_bytes(training_args: StageArguments) -> float:
    """Bytes of the optimizer's states for a trained parameter."""
    name = str(getattr(training_args.optim, "value", training_args.optim))
    return float(OPTIMIZER_BYTES.get(name, ADAM_BYTES))
