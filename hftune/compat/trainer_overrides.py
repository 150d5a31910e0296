"""Private methods of transformers' Trainer and of TRL's trainers that hftune overrides.

Those of transformers are overridden in `trainers/stage_trainer.py`, those of TRL's in the trainer of a stage.
"""

from __future__ import annotations

from hftune.compat.touched import UpstreamSymbol

_TRANSFORMERS, _TRL = ">=5.17,<5.24", ">=1.16,<1.17"
_TRAINER = "transformers.trainer.Trainer"
_TRAINER_LINK = "https://github.com/huggingface/transformers/blob/main/src/transformers/trainer.py"
_TRL_LINK = "https://github.com/huggingface/trl/blob/main/trl/trainer"

OF_TRAINER = tuple(
    UpstreamSymbol(f"{_TRAINER}.{name}", parameters, _TRANSFORMERS, why, feature, _TRAINER_LINK)
    for name, parameters, why, feature in (
        (
            "_run_epoch",
            ("...",),
            "the only place that knows an epoch's number, its loader and how much of it is done; called by keywords",
            "resuming within an epoch, epochs on several processes",
        ),
        (
            "_get_num_items_in_batch",
            ("batch_samples", "device"),
            "labels of a held-out batch are not counted over all ranks",
            "the loss of evaluations on several processes",
        ),
        (
            "_track_num_input_tokens",
            ("inputs",),
            "tensor-parallel processes have the same rows and are counted once",
            "num_input_tokens_seen with tensor parallelism",
        ),
        (
            "_maybe_log_save_evaluate",
            ("tr_loss", "grad_norm", "model", "trial", "..."),
            "between the optimizer's step and what is logged and saved of it there is no callback",
            "stopping at NaN before a checkpoint is written, stopping within an evaluation",
        ),
        (
            "_set_signature_columns_if_needed",
            (),
            "columns that samplers and collators read would be dropped",
            "lengths, packed rows, weights of turns, margins",
        ),
        (
            "_get_train_sampler",
            ("train_dataset",),
            "sources are mixed by weights, tokenised blocks have an order of their own",
            "mixtures of sources, --tokenized_dir",
        ),
        (
            "_save_checkpoint",
            ("model", "trial"),
            "a checkpoint is written under another name and renamed when it is whole",
            "checkpoints that survive a kill, --async_save",
        ),
        (
            "_get_output_dir",
            ("trial",),
            "names the folder in which checkpoints are made",
            "checkpoints that survive a kill",
        ),
        (
            "_save",
            ("output_dir", "state_dict"),
            "no pickled arguments; tied matrices once; adapters of the whole base; PPO's critic by itself",
            "saving, secrets that stay out of results",
        ),
        (
            "_load_from_checkpoint",
            ("resume_from_checkpoint", "model"),
            "the inverse of _save, without DeepSpeed",
            "resuming adapters that began with a part of the base, resuming PPO",
        ),
        (
            "_load_best_model",
            (),
            "the Trainer loads DeepSpeed's state into the live engine, which fails with adapters",
            "--load_best_model_at_end",
        ),
        (
            "_load_optimizer_and_scheduler",
            ("checkpoint",),
            "states that DeepSpeed wrote are resharded for a run without it",
            "resuming in another world",
        ),
        ("_load_rng_state", ("checkpoint",), "says which ranks draw anew", "resuming in another world"),
        ("_push_from_checkpoint", ("checkpoint_folder",), "nothing leaves before the run is done", "--push_to_hub"),
    )
)

_OF_BOTH = tuple(
    (name, parameters, why, feature)
    for name, parameters, why, feature in (
        ("_generate", ("prompts",), "a phase of its own", "--hang_timeout while answers are made"),
        (
            "_get_per_token_logps_and_entropies",
            ("model", "..."),
            "each piece of a batch of answers is a sign of life",
            "--hang_timeout while answers are read",
        ),
        (
            "_calculate_rewards",
            ("inputs", "prompts", "completions", "completion_ids_list"),
            "guards and judges see what is rewarded",
            "judges, dynamic sampling, warnings of equal rewards",
        ),
        ("_tokenize_prompts", ("prompts",), "prompts stay text", "--borders_in_text"),
        (
            "_generate_and_score_completions",
            ("inputs",),
            "groups are replaced (GRPO), values and advantages are PPO's, pairs are online DPO's",
            "--dynamic_sampling, PPO, online DPO",
        ),
    )
)

OF_TRL = (
    *(
        UpstreamSymbol(
            f"trl.trainer.{module}.{trainer}.{name}", parameters, _TRL, why, feature, f"{_TRL_LINK}/{module}.py"
        )
        for module, trainer in (("grpo_trainer", "GRPOTrainer"), ("rloo_trainer", "RLOOTrainer"))
        for name, parameters, why, feature in _OF_BOTH
    ),
    *(
        UpstreamSymbol(
            f"trl.trainer.{module}.{trainer}.{name}", parameters, _TRL, why, feature, f"{_TRL_LINK}/{module}.py"
        )
        for module, trainer, name, parameters, why, feature in (
            (
                *("grpo_trainer", "GRPOTrainer", "_get_tool_suffix_ids"),
                *(("tool_messages",), "results of tools stay text", "--borders_in_text with tools"),
            ),
            (
                *("rloo_trainer", "RLOOTrainer", "_prepare_inputs"),
                *(("generation_batch",), "answers are gone through several times", "PPO, online DPO"),
            ),
            (
                *("rloo_trainer", "RLOOTrainer", "_compute_loss"),
                *(("model", "inputs"), "another loss on TRL's loop", "PPO, online DPO"),
            ),
            (
                *("rloo_trainer", "RLOOTrainer", "_generate_single_turn"),
                *(("prompt_ids", "..."), "vLLM knows no critic", "PPO with --use_vllm"),
            ),
            (
                *("dpo_trainer", "DPOTrainer", "_prepare_dataset"),
                *(("dataset", "..."), "tokenised records stay as they are", "evaluate(dataset) of DPO"),
            ),
            (
                *("dpo_trainer", "DPOTrainer", "_precompute_ref_logps"),
                *(("dataset", "name", "batch_size"), "by hftune's cache", "evaluate(dataset) of DPO"),
            ),
            (
                *("reward_trainer", "RewardTrainer", "_prepare_dataset"),
                *(("dataset", "..."), "pairs are tokenised already", "the first step of a reward model"),
            ),
        )
    ),
)

OF_DPO = tuple(
    UpstreamSymbol(
        f"trl.trainer.dpo_trainer.DPOTrainer.{name}",
        None,
        _TRL,
        f"{why}: hftune's DPO sets what TRL's own constructor would have set",
        "what TRL's users call on DPO's trainer",
        f"{_TRL_LINK}/dpo_trainer.py",
    )
    for name, why in (
        ("_is_vlm", "text models alone"),
        ("_is_vision_dataset", "text alone"),
        ("_precompute_model_hash", "the reference's log-probabilities are cached by hftune"),
        ("_precompute_engine", "the reference's log-probabilities are cached by hftune"),
    )
)
