"""Lengths, packing, what is trained, templates and batches."""

from hftune.arguments.names.row import alias, no_effect, refused, translated, works
from hftune.arguments.names.translators import data

_PAIR = {"rm": "max_prompt_length", "dpo": "max_prompt_length", "rl": "max_prompt_length"}
_ANSWER = {"rm": "max_completion_length", "dpo": "max_completion_length", "rl": "max_completion_length"}
_ROW = {"pt": "block_size", "sft": "max_length", "rm": "max_length", "dpo": "max_length"}
_BATCH = {"per_device_train_batch_size": "2", "per_device_eval_batch_size": "2"}

ROWS = (
    # lengths
    works("block_size", "tokens of a row", "256", stages=("pt",)),
    works("max_length", "tokens of a conversation", "256", stages=("sft", "rm", "dpo")),
    alias("max_seq_len", _ROW, "tokens of a row", "256"),
    alias("seq_length", _ROW, "tokens of a row", "256"),
    alias("model_max_length", {"pt": "block_size", "sft": "max_length"}, "tokens of a row", "256"),
    alias("max_source_length", _PAIR, "tokens of a prompt", "128"),
    alias("max_target_length", _ANSWER, "tokens of an answer", "128"),
    alias("max_prompt_len", _PAIR, "tokens of a prompt", "128"),
    works("max_prompt_length", "tokens of a prompt", "128", stages=("rm", "dpo", "rl")),
    works("max_completion_length", "tokens of an answer", "128", stages=("rm", "dpo", "rl")),
    no_effect("min_target_length", "shortest answer", "answers of any length are trained", "4"),
    refused(
        "packing_length", "tokens of a packed row", "packed rows are as long as --max_length or --block_size", "512"
    ),
    refused("packing_size", "records of a packed row", "rows are filled by tokens", "2", harmless=("1",)),
    refused("pad_to_max_seqlen", "pad rows to a length", "batches are padded to their longest row", "8192"),
    no_effect("padding", "pad rows to the longest length", "batches are padded to their longest row"),
    no_effect(
        "padding_side", "where padding goes", "the trainer of the stage decides; no token of it is trained", "right"
    ),
    works("pad_to_multiple_of", "round padded lengths up", "8", stages=("sft", "dpo")),
    translated(
        "truncation_strategy",
        "packing_strategy",
        "what becomes of long records",
        "split",
        {"packing_strategy": "wrapped"},
        data.truncation,
        stages=("pt",),
    ),
    works("packing", "several records in a row", "False", stages=("pt", "sft")),
    alias("greedy_intokens", {"pt": "packing", "sft": "packing"}, "fill rows greedily", "False"),
    no_effect("in_tokens_batching", "batches counted in tokens", "use --packing"),
    works("padding_free", "rows without padding", "False", stages=("pt", "sft")),
    no_effect("mlp_padding_free", "no padding in MLPs", "use --padding_free", harmless=("false",)),
    translated(
        "use_global_causal_attn",
        "cross_document_attention",
        "see earlier documents of a row",
        "True",
        {"cross_document_attention": "True"},
        data.causal_over_documents,
        stages=("pt",),
    ),
    # what is trained
    works("train_on_inputs", "train all tokens", "True", stages=("sft",)),
    translated(
        "loss_scale",
        "train_on_last_turn, train_on_inputs",
        "which tokens are trained",
        "last_round",
        {"train_on_last_turn": "True"},
        data.loss_scale,
        stages=("sft",),
    ),
    no_effect("is_binary_loss_scale", "weights of 0 and 1", "weights of turns are read from the records"),
    refused("disable_ignore_empty_think", "train empty thoughts", "what the template renders of an answer is trained"),
    no_effect("ignore_pad_token_for_loss", "padding is not trained", "it never is"),
    refused("encode_one_turn", "turns one by one", "conversations are rendered whole, by the template"),
    refused("mask_out_eos_token", "leave out the end of text", "the end of an answer is trained", harmless=("false",)),
    no_effect("num_comparisons", "answers of a pair record", "a pair is one chosen and one rejected answer", "6"),
    # templates
    works("chat_template", "a Jinja file, or a name of TRL's", "chatml"),
    alias("template", "chat_template", "a Jinja file, or a name of TRL's", "chatml"),
    alias("template_name", "chat_template", "a Jinja file, or a name of TRL's", "chatml"),
    alias("chat_template_path", "chat_template", "a Jinja file, or a name of TRL's", "chatml"),
    no_effect("template_backend", "who renders", "the tokenizer's Jinja template does, with exact masks", "jinja"),
    *(
        refused(
            name,
            "conversations or text",
            "run_pt.py trains text, the others conversations",
            "False",
            harmless=("true",),
        )
        for name in ("use_chat_template", "use_template")
    ),
    no_effect(
        "tool_format",
        "how tools and calls are written into MedicalGPT's own conversation templates",
        "the model's chat template writes them here; where it has no tools, --chat_template qwen3 does the same",
        "default",
    ),
    no_effect("agent_template", "how tools are shown", "tools are rendered by the tokenizer's chat template", "hermes"),
    refused("system", "system message", "put it into the records, as a message of role system", "Be kind."),
    no_effect("response_prefix", "start of generated answers", "the template decides", "x"),
    refused("add_non_thinking_prefix", "mark answers without thoughts", "put it into the template or the records"),
    refused(
        "preserve_thinking", "keep thoughts of earlier turns", "the template decides; give another --chat_template"
    ),
    refused("add_sys_token", "mark the system message", "the template decides; give another --chat_template"),
    no_effect("model_name", "name in a demo data set", "records are taken as they are", "x"),
    no_effect("model_author", "author in a demo data set", "records are taken as they are", "x"),
    no_effect("keep_linebreaks", "line breaks of text files", "a paragraph a line; line breaks separate documents"),
    works("remove_unused_columns", "drop other columns", "False"),
    # batches
    works("per_device_train_batch_size", "rows of a micro batch", "2"),
    works("per_device_eval_batch_size", "rows of a batch in evaluation", "2", stages=("pt", "sft", "rm", "dpo")),
    works("gradient_accumulation_steps", "micro batches of a step", "4"),
    translated(
        "micro_batch_size",
        "per_device_*_batch_size",
        "rows of a micro batch",
        "2",
        _BATCH,
        data.batches,
        stages=("pt", "sft", "rm", "dpo"),
    ),
    translated(
        "batch_size",
        "per_device_*_batch_size",
        "rows of a micro batch",
        "2",
        _BATCH,
        data.batches,
        stages=("pt", "sft", "rm", "dpo"),
    ),
    translated(
        "global_batch_size",
        "gradient_accumulation_steps",
        "rows of a step, over all processes",
        "16 --micro_batch_size 2",
        {**_BATCH, "gradient_accumulation_steps": "8"},
        data.batches,
        stages=("pt", "sft", "rm", "dpo"),
    ),
    works("dataloader_num_workers", "processes that load", "0"),
    alias("num_workers", "dataloader_num_workers", "processes that load", "0"),
    works("dataloader_pin_memory", "pinned memory", "False"),
    works("dataloader_persistent_workers", "keep loading processes", "False"),
    works("dataloader_prefetch_factor", "batches loaded ahead", "2 --dataloader_num_workers 1"),
    alias("prefetch_factor", "dataloader_prefetch_factor", "batches loaded ahead", "2 --dataloader_num_workers 1"),
    no_effect(
        "distributed_dataloader",
        "one process loads for others",
        "every process reads its own rows",
        harmless=("false", "0"),
    ),
)
