"""Models and tokenizers for benchmarks: the sizes of published models, and random weights. Nothing is downloaded.

python benchmarks/made_up.py qwen3-4b FOLDER
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import children

CAP = 240.0
"""Seconds that drawing and writing a model may take: 8 billion weights are 16 GB on a disk."""

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6,
             "num_attention_heads": 8, "num_key_value_heads": 4},
    "smollm2-135m": {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
                     "num_attention_heads": 9, "num_key_value_heads": 3},
    "smollm2-360m": {"vocab_size": 49152, "hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32,
                     "num_attention_heads": 15, "num_key_value_heads": 5},
    "llama-3.2-1b": {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
                     "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64},
    "qwen3-4b": {"vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
                 "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "model_type": "qwen3"},
    "qwen3-8b": {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
                 "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "model_type": "qwen3",
                 "tie_word_embeddings": False},
}  # fmt: skip
"""Sizes of published models; the weights are drawn."""


def make_in_own_process(shape: str, folder: Path, clock: children.Clock) -> dict[str, Any] | None:
    """Make a model of that shape unless it is there; how that failed, if it did.

    A process that starts others must not hold memory of the GPU itself, and a full disk must end one case alone.
    """
    if (folder / shape).is_dir():
        return None
    command = [sys.executable, __file__, shape, str(folder / shape)]
    ended = clock.run(command, children.environment(folder), CAP)
    if ended.code == 0:
        return None
    shutil.rmtree(folder / f"{shape}.part", ignore_errors=True)
    return ended.failure


def make_weights(sizes: dict[str, Any], folder: Path, tokenizer: Any) -> None:
    """A model of such sizes, saved in 16 bit; the folder is there when all of it is."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    given = {"tie_word_embeddings": True, "max_position_embeddings": 131072} | sizes | ends
    config = AutoConfig.for_model(given.pop("model_type", "llama"), **given)
    torch.manual_seed(0)
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # drawing 8 billion numbers takes a CPU minutes
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(part)
    del model
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    tokenizer.save_pretrained(part)
    part.rename(folder)


def make_tokenizer() -> Any:
    """A byte-level tokenizer of 2,000 tokens, with ChatML."""
    from hftune.data.sources import dummy_chunks
    from hftune.tools.doctor import tiny

    texts = (row.value["text"] for chunk in dummy_chunks(200, "text") for row in chunk.rows())  # type: ignore[union-attr]
    return tiny.make_tokenizer(texts, 2000)


if __name__ == "__main__":
    make_weights(SHAPES[sys.argv[1]], Path(sys.argv[2]), make_tokenizer())
