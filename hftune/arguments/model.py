"""Which model and tokenizer, and how they are loaded."""

from __future__ import annotations

from dataclasses import dataclass

from hftune.arguments.option import option


@dataclass
class GrowthArguments:
    """How embeddings take new tokens."""

    add_tokens: str | None = option(
        None, "Tokens to add, with commas between, or a file with one a line. They are found whole in any text."
    )
    add_special_tokens: str | None = option(
        None, "Special tokens to add, likewise: markers that decoding with skip_special_tokens leaves out."
    )
    pad_vocab_to_multiple_of: int | None = option(
        None, "Round the rows of the embeddings up to a multiple of this, such as 64."
    )

    @property
    def adds_tokens(self) -> bool:
        """Whether tokens are named that the tokenizer is to get."""
        return bool(self.add_tokens or self.add_special_tokens)


@dataclass
class ModelArguments(GrowthArguments):
    """Names follow TRL's `ModelConfig`; those of other tools are aliases (see `names/`)."""

    model_name_or_path: str | None = option(
        None, "Model folder, Hub name (see --hub) or URL (s3://, gs://, hf://, ...)."
    )
    tokenizer_name_or_path: str | None = option(None, "Tokenizer folder or Hub name, where it is not the model's own.")
    model_revision: str = option("main", "Branch, tag or commit on the Hub.")
    cache_dir: str | None = option(None, "Where the Hub's files are kept.")
    # "auto" differs from transformers': full training keeps its weights in float32, where bf16 loses small updates.
    dtype: str = option(
        "auto",
        "Dtype of the loaded weights. auto: float32 for what is trained in full or on a CPU, else the "
        "checkpoint's own.",
        choices=["auto", "bfloat16", "float16", "float32"],
    )
    attn_implementation: str | None = option(
        None,
        "eager, sdpa, flex_attention, flash_attention_2, hftune_segments, hftune_varlen, ... Left out: the "
        "fastest that keeps documents apart where they are packed or padding-free, else transformers' choice.",
    )
    flash_attn: bool = option(False, "FlashAttention (2, 3 or 4) where it is installed and there is a GPU.")
    from_config: bool = option(
        False,
        "Train from scratch: weights drawn as the model's config says, with --seed; tokenizer and config "
        "come from the folder.",
    )
    offline: bool = option(
        False, "Take model and tokenizer from the Hub's cache only, and never reach for the network."
    )
    rope_scaling: str | None = option(
        None,
        "Stretch the positions that a model can tell apart: linear, dynamic, yarn or llama3 (see "
        "--rope_factor), or inline JSON as in a config's rope_parameters.",
    )
    # A factor below what the rows need would train positions that the model cannot tell apart.
    rope_factor: float | None = option(
        None,
        "How many times the model's context. Left out: as often as the longest row (--max_length, "
        "--block_size) needs, rounded up.",
    )
    resize_vocab: bool = option(
        False, "Give the model the rows that a larger --tokenizer_name_or_path needs; added tokens imply it."
    )
    experts_implementation: str | None = option(
        None,
        "How a mixture of experts computes them. Left out: grouped_mm where it runs.",
        choices=["eager", "batched_mm", "grouped_mm"],
    )
    ignore_memory_check: bool = option(False, "Load the model even if weights, gradients and optimizer cannot fit.")
    chat_template: str | None = option(
        None, "A Jinja file, or the name of a template that TRL ships (chatml, qwen3, ...)."
    )

    @property
    def grows(self) -> bool:
        """Whether the embeddings may get other rows than the checkpoint has."""
        return self.adds_tokens or self.resize_vocab or self.pad_vocab_to_multiple_of is not None


@dataclass
class HubFields:
    """For all that takes the name of a model or a data set."""

    hub: str | None = option(
        None,
        "Where names of models and data sets are looked up, and results are pushed to. Left out: as the "
        "variable HFTUNE_HUB says, else huggingface.",
        choices=["huggingface", "modelscope"],
    )
