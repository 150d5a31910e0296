"""DPO and its relatives, and reward models."""

from hftune.arguments.names.row import no_effect, refused, translated, works
from hftune.arguments.names.values import preferences

_DPO = ("dpo",)
_LOSS = "loss_type, loss_weights"

ROWS = (
    works("beta", "how far the policy may go", "0.2", stages=("dpo", "rl")),
    translated("loss_type", "loss_type", "loss", "ipo", {"loss_type": "ipo"}, preferences.preference_loss, stages=_DPO),
    translated(
        "rpo_alpha",
        _LOSS,
        "weight of the SFT loss",
        "1.0",
        {"loss_type": "sigmoid sft", "loss_weights": "1 1"},
        preferences.preference_loss,
        stages=_DPO,
    ),
    translated(
        "sft_loss_ratio",
        _LOSS,
        "weight of the SFT loss",
        "0.5",
        {"loss_type": "sigmoid sft", "loss_weights": "1 0.5"},
        preferences.preference_loss,
        stages=_DPO,
    ),
    translated(
        "pref_loss_ratio",
        _LOSS,
        "weight of the preference loss",
        "2",
        {"loss_type": "sigmoid", "loss_weights": "2"},
        preferences.preference_loss,
        stages=_DPO,
    ),
    translated(
        "label_smoothing",
        "label_smoothing",
        "share of wrong labels",
        "0.1 --loss_type robust",
        {"loss_type": "robust", "label_smoothing": "0.1"},
        preferences.preference_loss,
        stages=_DPO,
    ),
    works("f_divergence_type", "divergence from the reference", "reverse_kl", stages=_DPO),
    refused(
        "reference_free", "no reference model", "there always is one; with LoRA it is the base, and costs no memory"
    ),
    refused(
        "offset_alpha",
        "margin from scores of the answers",
        "use --loss_type ipo, or filter the pairs",
        "0.5",
        harmless=("0", "0.0"),
    ),
    no_effect("simpo_gamma", "margin of SimPO", "there is no SimPO loss", "0.5"),
    no_effect("dpop_lambda", "weight of DPO-positive", "there is no DPOP loss", "50"),
    refused(
        "orpo_beta", "weight of ORPO's odds ratio", "use --sft_loss_ratio with --loss_type sigmoid in run_dpo.py", "0.1"
    ),
    refused("normalize_logps", "log-probabilities a token", "use --loss_type sigmoid_norm", "True"),
    translated(
        "ref_model_update_steps",
        "sync_ref_model, ref_model_sync_steps",
        "renew the reference",
        "100",
        {"sync_ref_model": "True", "ref_model_sync_steps": "100", "ref_model_mixup_alpha": "1.0"},
        preferences.reference_update,
        stages=_DPO,
    ),
    works("sync_ref_model", "renew the reference", "False", stages=("dpo", "rl")),
    works("ref_model_sync_steps", "steps between renewals", "64", stages=("dpo", "rl")),
    works("ref_model_mixup_alpha", "share of the policy in it", "0.6", stages=("dpo", "rl")),
    refused("ref_model", "reference model", "the reference is the model before training; merge an adapter first", "m"),
    refused("ref_adapters", "adapter of the reference", "merge it into --model_name_or_path first", "a"),
    refused("mcore_ref_model", "reference in Megatron's format", "the reference is the model before training", "m"),
    refused("mcore_ref_adapter", "adapter of the reference", "merge it into --model_name_or_path first", "a"),
    refused(
        "desirable_weight",
        "weight of good answers (KTO)",
        "there is no KTO; use run_dpo.py on pairs",
        "2",
        harmless=("1", "1.0", "1."),
    ),
    refused(
        "undesirable_weight",
        "weight of bad answers (KTO)",
        "there is no KTO; use run_dpo.py on pairs",
        "2",
        harmless=("1", "1.0", "1."),
    ),
    works("center_rewards_coefficient", "keep rewards around zero", "0.01", stages=("rm",)),
    no_effect("use_cls", "score from a class token", "the score is read from the last token", "True"),
    refused("mrl_dims", "sizes of embeddings", "hftune trains no embedding models", "{}"),
)
