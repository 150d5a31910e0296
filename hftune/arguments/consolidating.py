"""What `hftune consolidate` needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ConsolidateArguments:
    """Whole weights from a DeepSpeed checkpoint of any ZeRO stage."""

    checkpoint: str | None = field(default=None, metadata={"help": "Checkpoint folder (checkpoint-N)."})
    output_dir: str | None = field(default=None, metadata={"help": "Folder for the weights."})
    dtype: str = field(
        default="float32",
        metadata={"help": "Dtype of the weights.", "choices": ["float32", "bfloat16", "float16"]},
    )
    max_shard_size: str = field(default="5GB", metadata={"help": "Largest weight file."})
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace a finished result of hftune's there."})
