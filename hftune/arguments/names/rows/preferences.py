"""DPO and its relatives, and reward models."""

from hftune.arguments.names.row import no_effect, refused, translated, works
from hftune.arguments.names.translators import training

_DPO = ("dpo",)
_LOSS = "loss_type, loss_weights"

ROWS = (
    works("beta", "how far the policy may go", "0.2", stages=("dpo", "rl")),
    translated("loss_type", "loss_type", "loss", "ipo", {"loss_type": "ipo"}, training.preference_loss, stages=_DPO),
    translated(
        "rpo_alpha",
        _LOSS,
        "weight of the SFT loss",
        "1.0",
        {"loss_type": "sigmoid sft", "loss_weights": "1 1"},
        training.preference_loss,
        stages=_DPO,
    ),
    translated(
        "sft_loss_ratio",
        _LOSS,
        "weight of the SFT loss",
        "0.5",
        {"loss_type": "sigmoid sft", "loss_weights": "1 0.5"},
        training.preference_loss,
        stages=_DPO,
    ),
    translated(
        "pref_loss_ratio",
        _LOSS,
        "weight of the preference loss",
        "2",
        {"loss_type": "sigmoid", "loss_weights": "2"},
        training.preference_loss,
        stages=_DPO,
    ),
    works("label_smoothing", "share of pairs that are the wrong way round", "0.1", stages=_DPO),
    works("f_divergence_type", "divergence from the reference", "reverse_kl", stages=_DPO),
    works("reference_free", "a uniform reference", "True", stages=_DPO),
    works("offset_alpha", "more is asked between answers whose scores differ more", "0.5", stages=_DPO),
    works("simpo_gamma", "target margin of SimPO", "0.5", stages=_DPO),
    works("dpop_lambda", "weight of DPO-Positive's penalty", "50", stages=_DPO),
    translated(
        "orpo_beta",
        "loss_type, beta",
        "weight of ORPO's odds ratio",
        "0.1",
        {"loss_type": "orpo", "beta": "0.1"},
        training.preference_loss,
        stages=_DPO,
    ),
    works("normalize_logps", "answers of a pair as if equally long", "True", stages=_DPO),
    translated(
        "ref_model_update_steps",
        "sync_ref_model, ref_model_sync_steps",
        "renew the reference",
        "100",
        {"sync_ref_model": "True", "ref_model_sync_steps": "100", "ref_model_mixup_alpha": "1.0"},
        training.reference_update,
        stages=_DPO,
    ),
    works("sync_ref_model", "renew the reference", "False", stages=("dpo", "rl")),
    works("ref_model_sync_steps", "steps between renewals", "64", stages=("dpo", "rl")),
    works("ref_model_mixup_alpha", "share of the policy in it", "0.6", stages=("dpo", "rl")),
    works("ref_model", "another model as reference", "m", stages=_DPO),
    works("ref_adapters", "adapters of the reference", "a", stages=_DPO),
    refused(
        "mcore_ref_model", "reference in Megatron's format", "give it to --ref_model in Hugging Face's format", "m"
    ),
    refused("mcore_ref_adapter", "adapter of the reference", "give it to --ref_adapters in Hugging Face's format", "a"),
    works("desirable_weight", "weight of good answers (KTO)", "2", stages=_DPO),
    works("undesirable_weight", "weight of bad answers (KTO)", "2", stages=_DPO),
    works("center_rewards_coefficient", "keep rewards around zero", "0.01", stages=("rm",)),
    no_effect("use_cls", "score from a class token", "the score is read from the last token", "True"),
    refused("mrl_dims", "sizes of embeddings", "hftune trains no embedding models", "{}"),
)
