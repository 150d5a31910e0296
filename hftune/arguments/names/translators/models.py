"""Adapters, precision, quantised bases, attention, sharding and recomputation in other tools' words."""

from __future__ import annotations

from hftune.arguments.names.row import (
    NamedValues,
    Request,
    Translated,
    Translation,
    cannot,
    each,
    mapped,
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
        given: NamedValues = [("use_rslora", ["True"]), ("lora_alpha", ["4"]), ("loraplus_lr_ratio", ["4"])]
        return Translated(given, ("--rslora_plus: rsLoRA with alpha 4, and LoRA+ with ratio 4",))
    alpha = request.text("lora_alpha")
    if alpha is None:
        return Translated()
    # ERNIEKit computes alpha from the rank for -1; everybody else gives the number.
    if number("lora_alpha", alpha) != -1:
        return Translated([("lora_alpha", [shortest(number("lora_alpha", alpha))])])
    if (request.other("use_rslora") or "").lower() in ("true", "1"):
        return Translated([("lora_alpha", ["4"])], ("--lora_alpha -1 is 4 with rsLoRA, as in ERNIEKit",))
    rank = int(number("lora_r", request.other("lora_r") or "8"))
    return Translated(
        [("lora_alpha", [str(2 * rank)])], (f"--lora_alpha -1 is twice the rank, {2 * rank}, as in ERNIEKit",)
    )


_TYPES: dict[str, NamedValues] = {
    "bf16": [("bf16", ["True"])],
    "fp16": [("bf16", ["False"]), ("fp16", ["True"])],
    "wint8": [("load_in_8bit", ["True"])],
    "nf4": [("load_in_4bit", ["True"]), ("bnb_4bit_quant_type", ["nf4"])],
}
_ALGORITHMS = {"weight_only_int8": "wint8", "nf4": "nf4"}
_BASES = "use nf4 (--load_in_4bit) or wint8 (--load_in_8bit), with --use_peft; FP8 in full is --fp8"


def compute_type(request: Request) -> Translated:
    """ERNIEKit's `compute_type` and `weight_quantize_algo`: precision, and a quantised base for LoRA."""
    kind = (request.text("compute_type") or "").lower()
    if kind and kind not in _TYPES:
        raise cannot("compute_type", kind, _BASES)
    algorithm = (request.text("weight_quantize_algo") or "").lower()
    if algorithm in ("", "none", "null") or kind in ("bf16", "fp16"):
        ignored = algorithm not in ("", "none", "null")  # ERNIEKit drops it there, too
        said = (f"--weight_quantize_algo {algorithm} has no effect beside --compute_type {kind}",) if ignored else ()
        return Translated(list(_TYPES.get(kind, [])), said)
    if algorithm not in _ALGORITHMS:
        raise cannot("weight_quantize_algo", algorithm, _BASES)
    if kind and kind != _ALGORITHMS[algorithm]:
        raise cannot("weight_quantize_algo", algorithm, f"--compute_type {kind} says otherwise; give one of them")
    return Translated(list(_TYPES[_ALGORITHMS[algorithm]]))


def quant_bits(request: Request) -> Translated:
    """Megatron-SWIFT's `quant_method` and `quant_bits`."""
    method, bits = (request.text("quant_method") or "bnb").lower(), request.text("quant_bits")
    if method != "bnb":
        raise cannot("quant_method", method, "bases are quantised with bitsandbytes (bnb)")
    if bits is None:
        raise cannot("quant_method", method, "give --quant_bits 4 or 8 as well")
    if bits not in ("4", "8"):
        raise cannot("quant_bits", bits, "use 4 or 8")
    return Translated([(f"load_in_{bits}bit", ["True"])])


_kernels = mapped(
    "attn_implementation",
    {
        "flash_2": "flash_attention_2",
        "flash_3": "flash_attention_3",
        "flash_4": "flash_attention_4",
        "fused": "sdpa",
        "unfused": "eager",
        "local": "eager",
        "auto": None,
    },
    "use --attn_implementation",
)


def attention_backend(request: Request) -> Translated:
    """Megatron-SWIFT's `attention_backend`; flash is the newest FlashAttention that is installed, as there."""
    if (request.text("attention_backend") or "").lower() == "flash":
        return Translated([("flash_attn", ["True"])])
    return _kernels(request)
