"""Adapters, precision, quantised bases, attention, sharding and recomputation in other tools' words."""

from __future__ import annotations

import json
import re

from hftune.arguments.names.row import (
    NamedValues,
    Request,
    Translated,
    Translation,
    cannot,
    each,
    made,
    number,
    shortest,
)

# Megatron's fused layers -> those of Hugging Face's models.
_MODULES = {
    "all-linear": ["all"],
    "linear_qkv": ["q_proj", "k_proj", "v_proj"],
    "linear_proj": ["o_proj"],
    "linear_fc1": ["gate_proj", "up_proj"],
    "linear_fc2": ["down_proj"],
    "word_embeddings": ["embed_tokens"],
    "output_layer": ["lm_head"],
}


def modules(to: str) -> Translation:
    """`target_modules` and `modules_to_save`: names of Megatron's layers become those of Hugging Face's models."""

    def one(name: str, request: Request) -> NamedValues:
        names = [part for value in request.given[name] for part in str(value).replace(",", " ").split()]
        if "all-router" in names:
            raise cannot(name, "all-router", "name the routers, such as mlp.gate")
        found = [module for part in names for module in _MODULES.get(part, [part])]
        return [(to, found)] if found else []

    return each(one)


targets, saved = modules("lora_target_modules"), modules("lora_modules_to_save")


def strength(request: Request) -> Translated:
    """`lora_alpha`, `rslora_plus`: ERNIEKit's -1 is twice the rank, or 4 with rsLoRA."""
    if request.flag("rslora_plus"):
        said = "--rslora_plus: rsLoRA with alpha 4, and LoRA+ with ratio 4"
        return made(said, use_rslora="True", lora_alpha="4", loraplus_lr_ratio="4")
    if request.text("lora_alpha") is None:
        return made()
    # ERNIEKit computes alpha from the rank for -1; everybody else gives the number.
    if request.number("lora_alpha") != -1:
        return made(lora_alpha=shortest(request.number("lora_alpha")))
    if (request.other("use_rslora") or "").lower() in ("true", "1"):
        return made("--lora_alpha -1 is 4 with rsLoRA, as in ERNIEKit", lora_alpha="4")
    alpha = 2 * int(number("lora_r", request.other("lora_r") or "8"))
    return made(f"--lora_alpha -1 is twice the rank, {alpha}, as in ERNIEKit", lora_alpha=str(alpha))


_TYPES = {
    "": made(),
    "bf16": made(bf16="True"),
    "fp16": made(bf16="False", fp16="True"),
    "wint8": made(load_in_8bit="True"),
    "nf4": made(load_in_4bit="True", bnb_4bit_quant_type="nf4"),
}
_ALGORITHMS = {"weight_only_int8": "wint8", "nf4": "nf4"}
_BASES = "use nf4 (--load_in_4bit) or wint8 (--load_in_8bit), with --use_peft; FP8 in full is --fp8"


def compute_type(request: Request) -> Translated:
    """ERNIEKit's `compute_type` and `weight_quantize_algo`: precision, and a quantised base for LoRA."""
    kind, algorithm = request.word("compute_type"), request.word("weight_quantize_algo")
    if kind not in _TYPES:
        raise cannot("compute_type", kind, _BASES)
    if algorithm in ("", "none", "null"):
        return _TYPES[kind]
    if kind in ("bf16", "fp16"):  # ERNIEKit drops it there, too
        said = f"--weight_quantize_algo {algorithm} has no effect beside --compute_type {kind}"
        return Translated(_TYPES[kind].given, (said,))
    if algorithm not in _ALGORITHMS:
        raise cannot("weight_quantize_algo", algorithm, _BASES)
    if kind and kind != _ALGORITHMS[algorithm]:
        raise cannot("weight_quantize_algo", algorithm, f"--compute_type {kind} says otherwise; give one of them")
    return _TYPES[_ALGORITHMS[algorithm]]


_FSDP = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_FMS = {"ddp": 0, "fsdp": 3, "hsdp": 3}
_ERNIE = {"": 0, "none": 0, "stage1": 1, "stage2": 2, "stage3": 3}
_DEGREES = ("sharding_parallel_degree", "sharding_parallel_size", "sharding_degree")
_OFFLOADS = ("offload_optim", "tensorwise_offload_optimizer", "optimizer_cpu_offload")


def sharding(request: Request) -> Translated:
    """ERNIEKit's `sharding`, Megatron's distributed optimizer and FSDP, fms-fsdp's `sharding_strategy`, and offload.

    Raises:
        ArgumentError: A group of processes that ZeRO cannot shard over, an unknown stage, or a share that is offloaded.
    """
    if request.other("deepspeed") is not None:
        named = " ".join(f"--{name}" for name in request.given)
        return made(f"{named} not used: --deepspeed says how the states are sharded")
    stage, words = _stage(request)
    offload = "offload" in words or any(request.flag(name) for name in _OFFLOADS)
    if not stage and not offload:
        return made()
    for name in _DEGREES:
        # ZeRO shards over all processes; with degree 1 the numbers are the same and more memory is left.
        if int(request.number(name, "1")) not in (-1, 0, 1, request.world_size):
            fix = "ZeRO shards over all processes; for groups use ZeRO-3 with zero_hpz_partition_size in --deepspeed"
            raise cannot(name, request.text(name), fix)
    if request.number("optimizer_offload_fraction", "1") != 1:
        fix = "a share is the key offload_optimizer.ratio of a config of ZeRO-3 in --deepspeed; use 1"
        raise cannot("optimizer_offload_fraction", request.text("optimizer_offload_fraction"), fix)
    hybrid = request.word("sharding_strategy") == "hsdp" and request.local_world_size != request.world_size
    # The shipped configs that offload are those of stages 2 and 3.
    config = f"zero{max(stage, 2)}_offload" if offload else "zero3_hpz" if hybrid else f"zero{stage}"
    return made(f"ZeRO as in ds_configs/{config}.json", deepspeed=config)


def _stage(request: Request) -> tuple[int, list[str]]:
    """ZeRO stage, and the words after it ("offload")."""
    words = request.word("sharding").split()
    stages = [
        _looked_up("sharding", words[0] if words else "", _ERNIE),
        int(bool(request.flag("use_distributed_optimizer"))),
    ]
    if request.flag("use_megatron_fsdp"):
        name = "data_parallel_sharding_strategy"
        stages.append(_looked_up(name, request.word(name, "optim_grads_params"), _FSDP))
    if request.text("sharding_strategy"):
        stages.append(_looked_up("sharding_strategy", request.word("sharding_strategy"), _FMS))
    return max(stages), words


def _looked_up(name: str, value: str, table: dict[str, int]) -> int:
    if value not in table:
        raise cannot(name, value, f"it is one of {', '.join(key for key in table if key)}; or use --deepspeed")
    return table[value]


ATTENTION, MLP = "attention", "mlp"  # parts of --activation_checkpointing
_RECOMPUTED = {"core_attn": ATTENTION, "mlp": MLP, "moe": MLP}
_DETAILS = ("recompute_use_reentrant", "offload_recompute_inputs", "no_recompute_layers")
_IDLE = "--{} has no effect: nothing is recomputed"


def recompute(request: Request) -> Translated:
    """ERNIEKit's and Megatron's `recompute_*`.

    Raises:
        ArgumentError: Parts of a layer that cannot be chosen.
    """
    if not _wanted(request):
        idle = [_IDLE.format(name) for name in _DETAILS if request.flag(name)]
        switched_off = request.text("recompute", "recompute_granularity") is not None
        return made(*idle, **({"gradient_checkpointing": "False"} if switched_off else {}))
    which, said = _which(request)
    return Translated([*_parts(request), *which, *_how(request)], said)


def _wanted(request: Request) -> bool:
    """`recompute` decides where it is given (ERNIEKit); without it the granularity does (Megatron)."""
    if request.text("recompute") is not None:
        return bool(request.flag("recompute"))
    return request.word("recompute_granularity", "none") != "none"


def _parts(request: Request) -> NamedValues:
    granularity = request.word("recompute_granularity", "full")
    if granularity == "full":
        return [("gradient_checkpointing", ["True"])]
    if granularity == "full_attn":
        return [("activation_checkpointing", [ATTENTION])]
    if granularity not in ("selective", "core_attn"):
        raise cannot("recompute_granularity", granularity, "use full, full_attn, core_attn, selective or none")
    # Megatron's selective recomputation without a list recomputes the core of the attention.
    modules = (request.text("recompute_modules") or "core_attn").split()
    for module in modules:
        if module not in _RECOMPUTED:
            raise cannot("recompute_modules", module, f"use {', '.join(_RECOMPUTED)}; or --recompute_granularity full")
    return [("activation_checkpointing", [",".join(dict.fromkeys(_RECOMPUTED[module] for module in modules))])]


def _which(request: Request) -> tuple[NamedValues, tuple[str, ...]]:
    """Some of the layers: Megatron's `block` takes the first ones, ERNIEKit leaves some out."""
    # A list or numbers with commas: files have it either way.
    left_out = re.findall(r"\d+", request.text("no_recompute_layers") or "")
    if left_out:
        return [("activation_checkpointing_layers", [f"not {','.join(left_out)}"])], ()
    count, method = int(request.number("recompute_num_layers", "1")), request.word("recompute_method")
    if method == "block":
        return [("activation_checkpointing_layers", [f"0-{count - 1}" if count > 1 else "0"])], ()
    if method not in ("", "none", "uniform"):
        raise cannot("recompute_method", method, "use uniform or block")
    return [], ("--recompute_num_layers has no effect: layers are recomputed one by one",) if count != 1 else ()


def _how(request: Request) -> NamedValues:
    given: NamedValues = []
    if request.flag("offload_recompute_inputs"):
        given.append(("activation_checkpointing_offload", ["True"]))
    if request.flag("recompute_use_reentrant"):
        given.append(("gradient_checkpointing_kwargs", [json.dumps({"use_reentrant": True})]))
    return given
