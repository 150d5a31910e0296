"""What merging an adapter needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class MergeArguments:
    """Both generations of MedicalGPT's names work: `base_model`/`lora_model` are aliases of these."""

    peft_model_path: str | None = field(default=None, metadata={"help": "Folder of the adapter."})
    output_dir: str | None = field(default=None, metadata={"help": "Folder for the merged model."})
    base_model_name_or_path: str | None = field(
        default=None, metadata={"help": "Its base; left out: the one that the adapter was trained on."}
    )
    tokenizer_path: str | None = field(
        default=None, metadata={"help": "Tokenizer to carry along; left out: the adapter's, else the base's."}
    )
    dtype: str = field(
        default="auto",
        metadata={
            "help": "Dtype of the merged weights; auto: the base's. Folding itself is computed in float32.",
            "choices": ["auto", "bfloat16", "float16", "float32"],
        },
    )
    verify: bool = field(
        default=True, metadata={"help": "Compare logits of base + adapter with those of the merged model."}
    )
    max_shard_size: str = field(default="5GB", metadata={"help": "Largest weight file."})
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace what is in the output folder."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with the base."})
    hf_hub_model_id: str | None = field(default=None, metadata={"help": "Push the merged model to this Hub name."})
    hf_hub_token: str | None = field(default=None, metadata={"help": "Token for that; never written to disk."})


MERGE_ALIASES = {
    "base_model": "base_model_name_or_path",
    "lora_model": "peft_model_path",
    "peft_path": "peft_model_path",
    "model_name_or_path": "base_model_name_or_path",
    "tokenizer_name_or_path": "tokenizer_path",
    "torch_dtype": "dtype",
}
