"""LoRA, and what is frozen."""

from hftune.arguments.names.row import alias, no_effect, refused, translated, works
from hftune.arguments.names.translators import models

_TUNERS = {"fine_tuning": "LoRA", "tuner_type": "lora", "train_type": "lora"}

ROWS = (
    works("use_peft", "train an adapter", "True"),
    alias("lora", "use_peft", "train an adapter", "True"),
    *(
        translated(name, "use_peft", "adapter, or all weights", value, {"use_peft": "True"}, models.tuner)
        for name, value in _TUNERS.items()
    ),
    no_effect("tuner_backend", "library of the adapter", "adapters are peft's", "peft"),
    works("peft_path", "adapter to continue", "a"),
    alias("lora_path", "peft_path", "adapter to continue", "a"),
    alias("adapters", "peft_path", "adapter to continue; several are folded in, but for the last", "a"),
    alias("adapter_name_or_path", "peft_path", "adapter to continue, as LLaMA-Factory has it", "a"),
    alias(
        "target_parameters", "lora_target_parameters", "parameters to adapt, as peft has it", "mlp.experts.down_proj"
    ),
    refused("mcore_adapter", "adapter in Megatron's format", "convert it to peft's; then --peft_path", "a"),
    works("lora_r", "rank", "4"),
    alias("lora_rank", "lora_r", "rank", "4"),
    translated(
        "lora_alpha",
        "lora_alpha",
        "the adapter is scaled by alpha / rank; -1: ERNIEKit's default",
        "-1",
        {"lora_alpha": "16"},
        models.strength,
    ),
    works("lora_dropout", "dropout of the adapter", "0.05"),
    works("lora_bias", "biases trained as well", "none"),
    works("use_rslora", "scale by alpha / sqrt(rank)", "True"),
    alias("rslora", "use_rslora", "scale by alpha / sqrt(rank)", "True"),
    alias("lorap_lr_ratio", "loraplus_lr_ratio", "learning rate of B over that of A", "16"),
    alias("lora_plus_scale", "loraplus_lr_ratio", "learning rate of B over that of A", "4"),
    translated(
        "rslora_plus",
        "use_rslora, loraplus_lr_ratio",
        "rsLoRA with LoRA+",
        "True",
        {"use_rslora": "True", "lora_alpha": "4", "loraplus_lr_ratio": "4"},
        models.strength,
    ),
    refused(
        "lora_dtype",
        "dtype of the adapter",
        "adapters are trained in float32",
        "bfloat16",
        harmless=("float32", "fp32", "none"),
    ),
    works("lora_target_modules", "modules to adapt", "q_proj v_proj"),
    translated(
        "lora_target",
        "lora_target_modules",
        "modules to adapt, as LLaMA-Factory has it",
        "all",
        {"lora_target_modules": "all"},
        models.targets,
    ),
    translated(
        "additional_target",
        "lora_modules_to_save",
        "modules trained in full, as LLaMA-Factory has it",
        "lm_head",
        {"lora_modules_to_save": "lm_head"},
        models.saved,
    ),
    translated(
        "target_modules",
        "lora_target_modules",
        "modules to adapt, also under Megatron's names",
        "linear_qkv",
        {"lora_target_modules": "q_proj k_proj v_proj"},
        models.targets,
    ),
    works("target_regex", "modules to adapt, as a regex", ".*q_proj"),
    translated(
        "modules_to_save",
        "lora_modules_to_save",
        "modules trained in full",
        "word_embeddings output_layer",
        {"lora_modules_to_save": "embed_tokens lm_head"},
        models.saved,
    ),
    works("freeze_parameters", "prefixes to freeze", "model.embed_tokens"),
    works("freeze_parameters_regex", "what to freeze, as a regex", "embed"),
    works("freeze_parameters_ratio", "share to freeze, from the bottom", "0.5"),
    works("trainable_parameters", "prefixes to train as well", "model.norm"),
    works("trainable_parameters_regex", "what to train as well, as a regex", "norm"),
    refused(
        "train_emb_only",
        "train the embeddings only",
        "use --freeze_parameters_ratio 1 --trainable_parameters model.embed_tokens",
        "1",
    ),
    refused(
        "train_moe_only",
        "train experts only",
        "use --freeze_parameters_ratio 1 --trainable_parameters_regex experts",
        "1",
    ),
    refused("freeze_config", "parts to freeze", "use --freeze_parameters", "freeze_lm"),
    no_effect("merge_lora", "save merged weights", "merge_peft_adapter.py merges after the run"),
    no_effect("save_missing_weights", "add weights that the checkpoint lacks", "all weights are saved"),
)
