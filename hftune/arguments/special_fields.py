"""Fields of the trainers that hftune fills itself, and lists that become one text. Other tools' names: `names/`."""

from __future__ import annotations

# Fields of the trainers below whose work hftune does itself, before the trainer sees the data: a value given for them
# would be dropped in silence, so it is refused. A value that means "no" is harmless and let through. A stage has those
# of the stage that it is based on as well.
DONE_BY_HFTUNE: dict[str, dict[str, str]] = {
    "sft": {
        "assistant_only_loss": "answers alone are trained already; --train_on_inputs trains all tokens",
        "completion_only_loss": "answers alone are trained already; --train_on_inputs trains all tokens",
        "truncation_mode": "what is longer than --max_length loses its end",
        "dataset_text_field": "formats are recognised from the records; run_pt.py takes plain text",
        "shuffle_dataset": "the Trainer shuffles; --data_seed sets its seed",
        "eos_token": "turns end as the chat template says; --chat_template takes another",
    },
    "distill": {
        "max_tool_calling_iterations": "answers are drawn in one turn; run_rl.py --tools has the policy call tools",
    },
    "rm": {"eos_token": "turns end as the chat template says; --chat_template takes another"},
    "dpo": {"truncation_mode": "prompts lose their start, answers their end; see --max_prompt_length"},
}
DONE_BY_HFTUNE_EVERYWHERE: dict[str, str] = {
    "model_init_kwargs": "use --dtype, --attn_implementation, --model_revision, --load_in_4bit, ...",
    "dataset_kwargs": "records are read, masked and tokenised by hftune",
}

# Several values of one name, also from a list in a YAML file, become one text with this between them.
JOINED: dict[str, str] = {
    "train_file_dir": ",",
    "validation_file_dir": ",",
    "train_dataset_prob": ",",
    "datasets": ",",
    "weights": ",",
    "columns": " ",
    "add_tokens": ",",
    "add_special_tokens": ",",
    "peft_path": ",",
    "peft_model_path": ",",
    "adapter_weights": ",",
}
