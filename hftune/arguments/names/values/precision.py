"""Compute types and quantised bases."""

from __future__ import annotations

from hftune.arguments.names.row import Answer, Ask, Given
from hftune.arguments.names.values.common import cannot, mapped

_TYPES: dict[str, Given] = {
    "bf16": [("bf16", ["True"])],
    "fp16": [("bf16", ["False"]), ("fp16", ["True"])],
    "wint8": [("load_in_8bit", ["True"])],
    "nf4": [("load_in_4bit", ["True"]), ("bnb_4bit_quant_type", ["nf4"])],
}
_ALGORITHMS = {"weight_only_int8": "wint8", "nf4": "nf4"}
_INSTEAD = "use nf4 (--load_in_4bit) or wint8 (--load_in_8bit), with --use_peft; FP8 in full is --fp8"

fp8_format = mapped("fp8", {"hybrid": "tensorwise", "e4m3": "rowwise", "none": None, "null": None}, "hybrid or e4m3")
"""Megatron's: E5M2 for gradients, or E4M3 throughout, which wants a scale a row."""


def compute_type(ask: Ask) -> Answer:
    """ERNIEKit's `compute_type` and `weight_quantize_algo`: precision, and a quantised base for LoRA."""
    kind = (ask.text("compute_type") or "").lower()
    if kind and kind not in _TYPES:
        raise cannot("compute_type", kind, _INSTEAD)
    algorithm = (ask.text("weight_quantize_algo") or "").lower()
    if algorithm in ("", "none", "null") or kind in ("bf16", "fp16"):
        ignored = algorithm not in ("", "none", "null")  # ERNIEKit drops it there, too
        said = (f"--weight_quantize_algo {algorithm} has no effect beside --compute_type {kind}",) if ignored else ()
        return Answer(list(_TYPES.get(kind, [])), said)
    if algorithm not in _ALGORITHMS:
        raise cannot("weight_quantize_algo", algorithm, _INSTEAD)
    if kind and kind != _ALGORITHMS[algorithm]:
        raise cannot("weight_quantize_algo", algorithm, f"--compute_type {kind} says otherwise; give one of them")
    return Answer(list(_TYPES[_ALGORITHMS[algorithm]]))


def quant_bits(ask: Ask) -> Answer:
    """Megatron-SWIFT's `quant_method` and `quant_bits`."""
    method = (ask.text("quant_method") or "bnb").lower()
    bits = ask.text("quant_bits")
    if method != "bnb":
        raise cannot("quant_method", method, "bases are quantised with bitsandbytes (bnb)")
    if bits is None:
        raise cannot("quant_method", method, "give --quant_bits 4 or 8 as well")
    if bits not in ("4", "8"):
        raise cannot("quant_bits", bits, "use 4 or 8")
    return Answer([(f"load_in_{bits}bit", ["True"])])


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


def attention_backend(ask: Ask) -> Answer:
    """Megatron-SWIFT's `attention_backend`; flash is the newest FlashAttention that is installed, as there."""
    if (ask.text("attention_backend") or "").lower() == "flash":
        return Answer([("flash_attn", ["True"])])
    return _kernels(ask)


attn_impl = mapped("attn_implementation", {"flash_attn": "flash_attention_2", "none": None}, "")
