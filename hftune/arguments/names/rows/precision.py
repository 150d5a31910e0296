"""Precision and quantised bases."""

from hftune.arguments.names.row import no_effect, refused, translated, works
from hftune.arguments.names.translators import models
from hftune.arguments.names.translators.common import switched

_FP8 = "FP8 is --fp8, which multiplies in it all three products; weights, gradients and what is gathered are in bf16"
_FP8_DETAIL = "torchao scales by each tensor or row at hand (--fp8), and keeps no history"

ROWS = (
    works("bf16", "compute in bfloat16", "True"),
    works("fp16", "compute in float16", "False"),
    translated(
        "mixed_precision", "bf16", "compute in bfloat16", "True", {"bf16": "True"}, switched("bf16", "True", "False")
    ),
    translated(
        "compute_type",
        "bf16, fp16, load_in_*bit",
        "precision of computing",
        "bf16",
        {"bf16": "True"},
        models.compute_type,
    ),
    translated(
        "weight_quantize_algo",
        "load_in_8bit, load_in_4bit",
        "quantised base",
        "weight_only_int8",
        {"load_in_8bit": "True"},
        models.compute_type,
    ),
    translated(
        "quant_bits",
        "load_in_8bit, load_in_4bit",
        "quantised base",
        "4",
        {"load_in_4bit": "True"},
        models.quant_bits,
    ),
    translated(
        "quant_method",
        "load_in_8bit, load_in_4bit",
        "how the base is quantised",
        "bnb --quant_bits 8",
        {"load_in_8bit": "True"},
        models.quant_bits,
    ),
    works("qlora", "LoRA on a 4-bit base", "True"),
    works("load_in_4bit", "4-bit base", "True"),
    works("load_in_8bit", "8-bit base", "True"),
    works("bnb_4bit_quant_type", "kind of 4 bit", "nf4"),
    works("bnb_4bit_quant_storage", "storage dtype of 4 bit", "bfloat16"),
    translated(
        "bnb_4bit_use_double_quant",
        "use_bnb_nested_quant",
        "quantise the constants, too",
        "False",
        {"use_bnb_nested_quant": "False"},
        switched("use_bnb_nested_quant", "True", "False"),
    ),
    no_effect("bnb_4bit_compute_dtype", "dtype of matrix products", "it follows --bf16 and --fp16", "bfloat16"),
    refused("hqq_axis", "axis of HQQ", "bases are quantised with bitsandbytes", "1"),
    no_effect("fp16_opt_level", "level of Paddle's AMP", "torch's mixed precision is used: float32 weights", "O2"),
    no_effect(
        "amp_master_grad", "gradients in float32", "DeepSpeed accumulates in the dtype of data_types.grad_accum_dtype"
    ),
    no_effect("amp_custom_white_list", "operators in half precision", "torch has its own list", "matmul"),
    no_effect("amp_custom_black_list", "operators in float32", "torch has its own list", "cos"),
    no_effect("scale_loss", "first loss scale of float16", "DeepSpeed's fp16.initial_scale_power is used", "8192"),
    no_effect(
        "accumulate_allreduce_grads_in_fp32",
        "gradients in float32",
        "DeepSpeed accumulates in the dtype of data_types.grad_accum_dtype",
        harmless=("false",),
    ),
    translated("use_fp8", "fp8", "FP8 products", "True", {"fp8": "tensorwise"}, switched("fp8", "tensorwise", None)),
    translated("fp8_format", "fp8", "formats of FP8", "hybrid", {"fp8": "tensorwise"}, models.fp8_format),
    *(
        refused(name, "a part in FP8 or FP4", _FP8, value)
        for name, value in (
            ("fp4_format", "e2m1"),
            ("fp8_param_gather", "True"),
            ("fp4_param_gather", "True"),
            ("quant_input_grad", "True"),
            ("quant_weight_grad", "True"),
        )
    ),
    *(
        no_effect(name, "a detail of FP8 or FP4", _FP8_DETAIL, value)
        for name, value in (
            ("fp8_recipe", "delayed"),
            ("fp8_amax_history_len", "1024"),
            ("fp8_amax_compute_algo", "max"),
            ("fp4_recipe", "nvfp4"),
            ("fp8_force_clear_state", "True"),
            ("enable_fp8_quantize_analysis", "True"),
            ("apply_hadamard", "True"),
            ("hadamard_block_size", "32"),
            ("apply_online_actscale_step", "200"),
            ("actscale_moving_rate", "0.01"),
            ("fp8_format_type", "hybrid"),
        )
    ),
)
