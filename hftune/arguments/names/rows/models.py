"""Models, tokenizers, attention and kernels."""

from hftune.arguments.names.row import alias, no_effect, refused, translated, works
from hftune.arguments.names.translators import models
from hftune.arguments.names.translators.common import switched

_READ = "read from the model's own config"
_NEW = "a model's shape is read from its config; for another one write a config.json and use --from_config"
_LOSS = "the loss is computed without all logits in every stage"
_KERNEL = "torch and the kernels of the attention choose; --use_liger_kernel fuses more"
_NONE = ("none", "null")

ROWS = (
    works("model_name_or_path", "model folder or Hub name", "m"),
    alias("model", "model_name_or_path", "model folder or Hub name", "m"),
    alias("model_path", "model_name_or_path", "model folder", "m"),
    alias("ckpt_load_path", "model_name_or_path", "weights to start from", "m"),
    works("tokenizer_name_or_path", "tokenizer where it is not the model's", "t"),
    alias("tokenizer", "tokenizer_name_or_path", "tokenizer where it is not the model's", "t"),
    alias("tokenizer_name", "tokenizer_name_or_path", "tokenizer where it is not the model's", "t"),
    alias("tokenizer_path", "tokenizer_name_or_path", "tokenizer where it is not the model's", "t"),
    works("model_revision", "branch, tag or commit", "v1"),
    works("cache_dir", "where the Hub's files are kept", "c"),
    works("trust_remote_code", "run code that comes with a model", "True"),
    works("dtype", "dtype of the weights", "bfloat16"),
    alias("torch_dtype", "dtype", "dtype of the weights", "bfloat16"),
    works("attn_implementation", "attention", "sdpa"),
    works("flash_attn", "FlashAttention where there is one", "True"),
    alias("use_flash_attention", "flash_attn", "FlashAttention", "True"),
    translated(
        "attention_backend",
        "flash_attn, attn_implementation",
        "attention",
        "unfused",
        {"attn_implementation": "eager"},
        models.attention_backend,
    ),
    translated(
        "attn_impl",
        "attn_implementation",
        "attention",
        "flash_attn",
        {"attn_implementation": "flash_attention_2"},
        models.attn_impl,
    ),
    refused("shift_attn", "shifted sparse attention (LongLoRA)", "use --packing, or ZeRO-3 with checkpointing"),
    no_effect("use_mem_eff_attn", "memory-efficient attention", "SDPA chooses its kernel"),
    no_effect("use_flash_attn_with_mask", "FlashAttention with a mask", "SDPA chooses its kernel"),
    no_effect("use_sparse_flash_attn", "FlashMask", "packed documents are kept apart by the attention chosen"),
    no_effect(
        "use_attn_mask_start_row_indices", "sparse mask", "packed documents are kept apart by the attention chosen"
    ),
    no_effect("use_attn_mask_startend_row_indices", "sparse mask", "documents are kept apart by the attention chosen"),
    no_effect("attention_softmax_in_fp32", "softmax in float32", "the attention's kernels do that"),
    refused("apply_query_key_layer_scaling", "scale scores by the layer", "use --bf16, which needs no scaling"),
    works("rope_scaling", "stretched rotary embeddings", "linear"),
    refused("max_model_len", "longest sequence", "use --rope_factor with --rope_scaling; else --max_length", "8192"),
    refused("rope_3d", "positions of images", "hftune trains on text; remove it"),
    refused("max_position_embeddings", "longest position", _NEW, "4096", harmless=("none", "null")),
    no_effect("model_type", "architecture", _READ, "qwen3"),
    no_effect("use_moe", "the model has experts", _READ),
    no_effect("use_huggingface_model", "a model in Hugging Face's format", "all are"),
    no_effect("use_fast_tokenizer", "tokenizer in Rust", "transformers 5 has fast tokenizers only"),
    refused("model_variant", "size of a Llama", _NEW, "7b"),
    refused("model_arch", "architecture for a speculator", _NEW, "embedllama"),
    refused("model_kwargs", "settings of single models", "put them into the model's config.json", "{}"),
    refused("vocab_size", "rows of the vocabulary", "read from the weights; remove it", "32000"),
    refused("hidden_size", "width", _NEW, "1280"),
    refused("hidden_act", "activation", _NEW, "silu"),
    refused("num_heads", "attention heads", _NEW, "16"),
    refused("embed_dim", "width", _NEW, "1280"),
    refused("depth", "layers", _NEW, "32"),
    refused("mlp_ratio", "width of the MLP", _NEW, "4"),
    refused("bos_token_id", "first token", "read from the tokenizer; remove it", "2", harmless=_NONE),
    refused("eos_token_id", "last token", "read from the tokenizer; remove it", "2", harmless=_NONE),
    refused("num_labels", "classes", "run_rm.py trains one score; remove it", "3", harmless=("1",)),
    refused("problem_type", "kind of classification", "run_rm.py trains one score", "regression"),
    alias("new_special_tokens", "add_special_tokens", "special tokens to add", "<a>"),
    alias("make_vocab_size_divisible_by", "pad_vocab_to_multiple_of", "round the vocabulary up", "64"),
    *(
        refused(name, does, instead, value, harmless=("none", ""))
        for name, does, value, instead in (
            ("new_special_tokens_config", "special tokens with descriptions", "f.yaml", "use --add_special_tokens"),
            ("init_special_tokens", "first rows of new tokens", "desc_init", "use --init_new_embeddings pieces"),
        )
    ),
    no_effect("resize_emb", "resize the vocabulary when merging", "a merge takes the rows that were trained"),
    refused("init_strategy", "how weights that are missing are made", "use a complete checkpoint", "zero"),
    refused("local_repo_path", "source code of a model", "use --trust_remote_code with a model folder", "r"),
    refused(
        "device_map", "where layers go", "DeepSpeed places the model; start one process a GPU", "auto", harmless=_NONE
    ),
    refused("max_memory", "limit of each device", "use ZeRO-3, which shards over all processes", "{}"),
    no_effect("low_cpu_fsdp", "load with little memory", "ZeRO-3 loads each weight into its shard"),
    no_effect("use_cpu_initialization", "initialise on the CPU", "weights are loaded, not initialised"),
    no_effect("perform_initialization", "initialise weights", "weights are loaded, not initialised"),
    no_effect("data_parallel_random_init", "different weights per process", "processes start from the same weights"),
    works("from_config", "train from scratch", "True"),
    translated(
        "continue_training",
        "from_config",
        "start from trained weights",
        "False",
        {"from_config": "True"},
        switched("from_config", None, "True"),
    ),
    translated(
        "from_scratch",
        "from_config",
        "start from random weights",
        "1",
        {"from_config": "True"},
        switched("from_config", "True", None),
    ),
    refused("mergekit_task_config", "merge several models", "use mergekit on Hugging Face folders", "f.yaml"),
    no_effect("copy_tokenizer", "save the tokenizer as well", "it always is"),
    no_effect("cross_entropy_loss_fusion", "fused loss", _LOSS),
    no_effect("cross_entropy_fusion_impl", "kernel of the loss", _KERNEL, "native"),
    no_effect("use_sparse_head_and_loss_fn", "logits of trained tokens only", _LOSS),
    no_effect("use_fused_head_and_loss_fn", "head and loss in one", _LOSS),
    no_effect("loss_subbatch_seqlen", "tokens of a piece of the loss", "TRL chooses the pieces", "32768"),
    no_effect("use_recompute_loss_fn", "compute logits again", _LOSS),
    *(
        no_effect(name, does, _KERNEL)
        for name, does in {
            "masked_softmax_fusion": "fused softmax",
            "bias_dropout_fusion": "fused bias and dropout",
            "bias_activation_fusion": "fused bias and activation",
            "apply_rope_fusion": "fused rotary embedding",
            "gradient_accumulation_fusion": "fused accumulation",
            "fuse_linear": "fused linear layers",
            "fuse_rope": "fused rotary embedding",
            "fuse_softmax_mask": "fused softmax",
            "fuse_rms_norm": "fused norm",
            "fuse_swiglu": "fused SwiGLU",
            "fuse_gate_detach_matmul": "fused gate",
        }.items()
    ),
    alias("use_torch_compile", "torch_compile", "compile the model", "False"),
    works("hidden_dropout_prob", "dropout of hidden states", "0.1"),
    works("attention_probs_dropout_prob", "dropout of attention weights", "0.1"),
    works("dropout_warmup_steps", "steps over which dropout grows", "100"),
    refused("mtp_num_layers", "heads for further tokens", "one token ahead is trained; remove it", "1"),
    no_effect("mtp_loss_scaling_factor", "weight of further tokens", "one token ahead is trained", "0.1"),
    no_effect("mtp_decoder_input_detach", "gradient of further tokens", "one token ahead is trained"),
    no_effect("mtp_shared_weights", "shared heads", "one token ahead is trained"),
    refused("num_nextn_predict_layers", "heads for further tokens", "one token ahead is trained; remove it", "1"),
    no_effect("multi_token_pred_lambda", "weight of further tokens", "one token ahead is trained", "0.3"),
    no_effect("use_recompute_mtp", "recompute those heads", "one token ahead is trained"),
    no_effect("enable_mtp_magic_send", "communication of those heads", "one token ahead is trained"),
    refused("n_speculator_heads", "heads of a speculator", "hftune trains no speculators", "3"),
    *(
        no_effect(name, "a speculator's setting", "hftune trains no speculators", value)
        for name, value in {
            "speculator_width": "4096",
            "speculator_tie_weights": "True",
            "speculator_scale_input": "True",
            "stage2_start_step": "15000",
            "stage2_prompt_length": "64",
            "stage2_batch_size": "96",
            "stage2_seq_length": "256",
        }.items()
    ),
    *(
        no_effect(name, does, "the model's own code decides", value)
        for name, does, value in (
            ("dsa_indexer_use_sparse_loss", "DeepSeek's sparse attention", "True"),
            ("apply_dsa_kernel_fusion", "DeepSeek's sparse attention", "True"),
            ("use_fused_mhc", "DeepSeek's hyper-connections", "True"),
            ("mhc_recompute_layer_num", "DeepSeek's hyper-connections", "2"),
            ("linear_decoupled_in_proj", "linear attention's projection", "True"),
        )
    ),
    refused("csa_dense_mode", "DeepSeek's compressed attention", "set it in the model's config.json"),
    refused(
        "dsa_indexer_loss_coeff",
        "loss of DeepSeek's indexer",
        "the indexer is not trained; use 0",
        "0.1",
        harmless=("0", "0.0", "0."),
    ),
)
