"""Names that transformers 5 has removed."""

from hftune.arguments.names.row import alias, no_effect, refused, translated
from hftune.arguments.names.translators.common import switched

_DROPPED = "transformers has dropped it"
_TORCH = "torch's own mixed precision is used"

ROWS = (
    alias("no_cuda", "use_cpu", "train on the CPU", "True"),
    translated("adafactor", "optim", "Adafactor", "True", {"optim": "adafactor"}, switched("optim", "adafactor", None)),
    translated(
        "include_inputs_for_metrics",
        "include_for_metrics",
        "inputs for metrics",
        "True",
        {"include_for_metrics": "inputs"},
        switched("include_for_metrics", "inputs", None),
    ),
    alias("per_gpu_train_batch_size", "per_device_train_batch_size", "rows of a micro batch", "2"),
    alias("per_gpu_eval_batch_size", "per_device_eval_batch_size", "rows in evaluation", "8"),
    alias("push_to_hub_model_id", "hub_model_id", "name on the Hub", "me/model"),
    alias("push_to_hub_token", "hub_token", "token of the Hub", "t"),
    refused("push_to_hub_organization", "owner on the Hub", "write it into --hub_model_id OWNER/NAME", "me"),
    no_effect("fp16_backend", "mixed precision", _TORCH, "amp"),
    no_effect("half_precision_backend", "mixed precision", _TORCH, "amp"),
    refused("sharded_ddp", "sharding of fairscale", "use --deepspeed ds_configs/zero2.json", "simple"),
    no_effect("xpu_backend", "communication on XPU", "torch finds the backend", "ccl"),
    refused("torchdynamo", "compile the model", "use --torch_compile", "inductor"),
    refused(
        "fsdp_min_num_params", "smallest unit of FSDP", "use --deepspeed, or min_num_params in --fsdp_config", "1000"
    ),
    refused(
        "fsdp_transformer_layer_cls_to_wrap", "unit of FSDP", "use --deepspeed, or --fsdp_config", "LlamaDecoderLayer"
    ),
    refused("tpu_metrics_debug", "debug output on TPU", "use --debug tpu_metrics_debug"),
    *(
        no_effect(name, does, _DROPPED, value)
        for name, does, value in (
            ("use_ipex", "Intel's extension", "True"),
            ("jit_mode_eval", "compiled evaluation", "True"),
            ("tpu_num_cores", "cores of a TPU", "8"),
            ("past_index", "states of Transformer-XL", "0"),
            ("ray_scope", "scope of a search", "last"),
            ("use_mps_device", "Apple's devices", "True"),
            ("include_tokens_per_second", "tokens a second", "True"),
            ("mp_parameters", "SageMaker", "x"),
            ("dispatch_batches", "one process loads for others", "True"),
            ("split_batches", "batches are split", "True"),
        )
    ),
)
