"""Mixture of experts."""

from hftune.arguments.names.row import OFF, alias, no_effect, refused, translated
from hftune.arguments.names.translators import models
from hftune.arguments.names.translators.common import switched

_MODEL = "the model's own routing is used"
_EXPERTS = "DeepSpeed's AutoEP sends tokens in its own way; see --expert_parallel_size"

ROWS = (
    translated(
        "moe_aux_loss_coeff",
        "router_aux_loss_coef (times expert layers / experts a token)",
        "weight of the load-balancing loss, added up over layers",
        "0.01",
        {"router_aux_loss_coef": "0.01"},
        models.megatron_balance,
    ),
    translated(
        "moe_aux_loss_lambda",
        "router_aux_loss_coef",
        "weight of the load-balancing loss of a layer",
        "0.01",
        {"router_aux_loss_coef": "0.01"},
        models.ernie_balance,
    ),
    translated(
        "moe_z_loss_coeff",
        "moe_z_loss_coef (times expert layers)",
        "weight of the routers' z-loss, added up over layers",
        "0.001",
        {"moe_z_loss_coef": "0.001"},
        models.megatron_z,
    ),
    translated(
        "moe_z_loss_lambda",
        "moe_z_loss_coef",
        "weight of the routers' z-loss of a layer",
        "0.001",
        {"moe_z_loss_coef": "0.001"},
        models.ernie_z,
    ),
    alias("experts_impl", "experts_implementation", "how experts are computed", "eager"),
    translated(
        "moe_grouped_gemm",
        "experts_implementation",
        "experts in one multiplication",
        "True",
        {"experts_implementation": "grouped_mm"},
        switched("experts_implementation", "grouped_mm", "eager"),
    ),
    *(
        no_effect(name, does, because, value)
        for name, does, because, value in (
            ("moe_token_dispatcher_type", "how tokens reach experts", _EXPERTS, "alltoall"),
            ("moe_enable_deepep", "DeepEP's communication", _EXPERTS, "True"),
            ("moe_permute_fusion", "fused permutation", _EXPERTS, "True"),
            ("moe_shared_expert_overlap", "overlap of shared experts", _EXPERTS, "True"),
            ("moe_group", "group of devices for experts", _EXPERTS, "mp"),
            ("moe_group_experts", "grouped gates", _MODEL, "True"),
            ("moe_multimodal_dispatch_use_allgather", "how tokens reach experts", _EXPERTS, "v2-alltoall-unpad"),
            ("moe_with_send_router_loss", "communication of the router's loss", _EXPERTS, "True"),
            ("moe_pad_expert_input_to_capacity", "padding of experts", "no tokens are dropped or padded", "True"),
            ("moe_token_drop_policy", "which tokens are dropped", "no tokens are dropped", "probs"),
            (
                "moe_router_dtype",
                "dtype of the router",
                "the model decides; most routers take softmax in float32",
                "fp32",
            ),
            ("moe_gate", "kind of gate", _MODEL, "top2_fused"),
            ("moe_layer_recompute", "recompute experts", "use --activation_checkpointing mlp", "True"),
            ("use_recompute_moe", "recompute experts", "use --activation_checkpointing mlp", "True"),
        )
    ),
    refused("moe_use_hard_gate", "route without a gate", "the model's own gate routes; remove it"),
    refused("moe_use_aux_free", "balancing by bias", "the bias stays as it is; use --router_aux_loss_coef"),
    refused(
        "moe_expert_capacity_factor",
        "tokens an expert takes at most",
        "no tokens are dropped; remove it",
        "1.0",
        harmless=("-1", *OFF),
    ),
    refused(
        "moe_router_load_balancing_type",
        "kind of balancing",
        "the model's aux_loss is used",
        "sinkhorn",
        harmless=("aux_loss", "none"),
    ),
    refused(
        "moe_orthogonal_loss_lambda",
        "loss that keeps experts apart",
        "use --router_aux_loss_coef",
        "0.1",
        harmless=("0", "0.0"),
    ),
    refused("use_ortho_loss_callback", "loss that keeps experts apart", "use --router_aux_loss_coef"),
    refused(
        "moe_use_aux_free_update_coef",
        "step of the balancing bias",
        "the bias stays; use --router_aux_loss_coef",
        "0.001",
        harmless=("0", "0.0"),
    ),
    refused("moe_dropout_prob", "dropout of experts", "use the model's config", "0.1", harmless=("0", "0.0")),
    refused(
        "router_replay_mode", "route as the generator did", "routing is computed anew", "R2", harmless=("disabled",)
    ),
)
