"""Optimizers, learning rates and regularisation."""

from hftune.arguments.names.row import alias, no_effect, refused, translated, works
from hftune.arguments.names.translators import data, training
from hftune.arguments.names.translators.common import switched

_NONE = ("none", "null")

ROWS = (
    translated("optim", "optim", "optimizer", "adamw_custom", {"optim": "adamw_torch"}, training.optimizer),
    translated(
        "optimizer",
        "optim",
        "optimizer; adam is AdamW",
        "sgd",
        {"optim": "sgd", "sgd_momentum": "0.9"},
        training.megatron_optimizer,
    ),
    works("learning_rate", "peak learning rate", "1e-4"),
    alias("lr", "learning_rate", "peak learning rate", "1e-4"),
    works("weight_decay", "decoupled weight decay", "0.1"),
    works("adam_beta1", "first moment's decay", "0.9"),
    works("adam_beta2", "second moment's decay", "0.95"),
    works("adam_epsilon", "epsilon", "1e-8"),
    alias("adam_eps", "adam_epsilon", "epsilon", "1e-8"),
    alias("clip_grad", "max_grad_norm", "largest norm of the gradient", "1.0"),
    alias("grad_clip_thresh", "max_grad_norm", "largest norm of the gradient", "1.0"),
    refused("adaptive_norm_clip", "clipping that adapts", "use --max_grad_norm"),
    works("sgd_momentum", "momentum of SGD", "0.9 --optim sgd"),
    works("muon_momentum", "momentum of Muon", "0.9"),
    works("muon_scale_mode", "scale of Muon's update", "spectral"),
    works("muon_extra_scale_factor", "further scale of Muon's update", "0.2"),
    refused(
        "muon_use_nesterov",
        "Nesterov's momentum",
        "DeepSpeed's Muon always has Nesterov momentum",
        "False",
        harmless=("true",),
    ),
    refused(
        "muon_num_ns_steps",
        "Newton-Schulz steps",
        "DeepSpeed's Muon takes five steps of Newton-Schulz",
        "6",
        harmless=("5",),
    ),
    refused(
        "muon_coefficient_type",
        "Newton-Schulz coefficients",
        "DeepSpeed's Muon has the quintic coefficients",
        "aol",
        harmless=("quintic",),
    ),
    refused(
        "muon_scalar_optimizer",
        "optimizer of vectors and embeddings",
        "DeepSpeed's Muon has AdamW beside it",
        "lion",
        harmless=("adam", "adamw"),
    ),
    refused(
        "muon_split_qkv",
        "split fused projections",
        "Hugging Face's models have them apart",
        "False",
        harmless=("true",),
    ),
    no_effect("muon_fp32_matmul_prec", "precision of Newton-Schulz", "DeepSpeed iterates in half precision", "medium"),
    no_effect("muon_tp_mode", "Muon under tensor parallelism", "DeepSpeed gathers whole matrices", "blockwise"),
    works("lr_scheduler_type", "schedule", "cosine"),
    alias("lr_scheduler", "lr_scheduler_type", "schedule", "cosine"),
    translated(
        "lr_decay_style",
        "lr_scheduler_type",
        "schedule",
        "WSD",
        {"lr_scheduler_type": "warmup_stable_decay", "lr_wsd_decay_style": "exponential"},
        training.schedule,
    ),
    alias("lr_decay_iters", "lr_decay_steps", "step at which the schedule has ended", "20"),
    alias("decay_steps", "lr_decay_steps", "step at which the schedule has ended", "20"),
    works("lr_wsd_decay_style", "how WSD decays", "cosine"),
    alias("lr_wsd_decay_iters", "lr_wsd_decay_steps", "steps of WSD's decay", "10"),
    refused("decay_function", "how WSD decays", "use --lr_wsd_decay_style", "half_life"),
    works("warmup_steps", "steps of warm-up", "5"),
    alias("lr_warmup_iters", "warmup_steps", "steps of warm-up", "5"),
    alias("lr_warmup_fraction", "warmup_steps", "share of warm-up", "0.1"),
    alias("warmup_ratio", "warmup_steps", "share of warm-up", "0.1"),
    refused(
        "lr_warmup_init",
        "learning rate at the start",
        "warm-up starts at 0; cosine_warmup_with_min_lr has warmup_lr_rate in --lr_scheduler_kwargs",
        "1e-6",
        harmless=("0", "0.0", "0."),
    ),
    works("min_lr", "learning rate at the end", "1e-6"),
    works("lr_end", "learning rate at the end of polynomial", "1e-7 --lr_scheduler_type polynomial"),
    works("num_cycles", "waves of cosine", "0.5 --lr_scheduler_type cosine"),
    works("power", "exponent of polynomial", "2 --lr_scheduler_type polynomial"),
    works("layerwise_lr_decay_bound", "share of the rate at the bottom", "0.5"),
    refused(
        "moe_gate_lr_ratio", "rate of routers", "one rate for all but LoRA's B and --layerwise_lr_decay_bound", "0.1"
    ),
    refused(
        "weight_decay_incr_style", "weight decay that grows", "it stays the same", "linear", harmless=("constant",)
    ),
    *(
        refused(name, does, "it stays the same; use --weight_decay", "0.1", harmless=_NONE)
        for name, does in (
            ("start_weight_decay", "weight decay at the start"),
            ("end_weight_decay", "weight decay at the end"),
        )
    ),
    refused("apply_wd_to_qk_layernorm", "weight decay of norms", "norms are not decayed"),
    alias("neft_alpha", "neftune_noise_alpha", "noise on embeddings (NEFTune)", "5"),
    refused("use_precision_aware_optimizer", "moments in low precision", "use --optim adamw_bnb_8bit"),
    *(
        refused(name, does, "use --optim adamw_bnb_8bit for smaller moments", value, harmless=("fp32", "float32"))
        for name, does, value in (
            ("main_grads_dtype", "dtype of gradients", "bf16"),
            ("main_params_dtype", "dtype of weights", "fp16"),
            ("exp_avg_dtype", "dtype of the first moment", "bf16"),
            ("exp_avg_sq_dtype", "dtype of the second", "bf16"),
        )
    ),
    refused("use_lowprecision_moment", "moments in bfloat16", "use --optim adamw_bnb_8bit for smaller moments"),
    no_effect("optimizer_cuda_graph", "the step as a CUDA graph", "torch and DeepSpeed decide"),
    no_effect("record_optimizer_stat", "log moments", "use --print_groups"),
    translated(
        "enable_dft_loss",
        "loss_type",
        "dynamic fine-tuning (arXiv:2508.05629)",
        "True",
        {"loss_type": "dft"},
        switched("loss_type", "dft", None),
        stages=("sft",),
    ),
    translated(
        "calculate_per_token_loss",
        "as it is",
        "every token has the same weight",
        "True",
        {},
        data.per_token,
        stages=("pt", "sft"),
    ),
)
