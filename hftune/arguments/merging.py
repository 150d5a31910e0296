"""What merging an adapter needs to know."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import cast

from hftune.arguments.model import HubFields
from hftune.arguments.names.translate import MERGE
from hftune.arguments.option import option
from hftune.arguments.parser import HftuneParser


@dataclass
class MergeArguments(HubFields):
    """Both generations of MedicalGPT's names work: `base_model`/`lora_model` are aliases of these."""

    peft_model_path: str | None = option(None, "Folder of the adapter; several with commas between: A,B.")
    output_dir: str | None = option(None, "Folder for the merged model.")
    base_model_name_or_path: str | None = option(None, "Its base; left out: the one that the adapter was trained on.")
    adapter_weights: str | None = option(
        None, "Weights of several adapters: 0.5,0.5. W becomes W + sum of weight * (what it does to W)."
    )
    tokenizer_path: str | None = option(None, "Tokenizer to carry along; left out: the adapter's, else the base's.")
    dtype: str = option(
        "auto",
        "Dtype of the merged weights; auto: each keeps the base's. Folding is computed in float32.",
        choices=["auto", "bfloat16", "float16", "float32"],
    )
    merge_base: str = option(
        "original",
        "For QLoRA: fold into the original weights, or into what quantisation left of them (what training "
        "saw). --verify prints how far the merge is from it.",
        choices=["original", "dequantized"],
    )
    verify: str = option(
        "auto",
        "Compare logits of base + adapter with those of the merged model; auto: below a billion parameters "
        "and where they fit in memory.",
        choices=["auto", "true", "false"],
    )
    max_shard_size: str | None = option(None, "Largest weight file (5GB); left out: the files of the base.")
    overwrite_output_dir: bool = option(False, "Replace a finished result of hftune's there.")
    trust_remote_code: bool = option(False, "Run code that comes with the base.")
    hf_hub_model_id: str | None = option(None, "Push the merged model to this Hub name.")
    hf_hub_token: str | None = field(
        default=None, repr=False, metadata={"help": "Token for that; never written to disk."}
    )

    def __post_init__(self) -> None:
        # `--verify`, `--verify True` and `verify: false` in a YAML file.
        self.verify = {"yes": "true", "1": "true", "no": "false", "0": "false"}.get(
            str(self.verify).lower(), str(self.verify).lower()
        )

    @property
    def adapters(self) -> list[str]:
        """The adapters' folders."""
        return [folder.strip() for folder in (self.peft_model_path or "").split(",") if folder.strip()]


MERGE_ALIASES = {
    "base_model": "base_model_name_or_path",
    "lora_model": "peft_model_path",
    "peft_path": "peft_model_path",
    "model_name_or_path": "base_model_name_or_path",
    "tokenizer_name_or_path": "tokenizer_path",
    "torch_dtype": "dtype",
    "model": "base_model_name_or_path",
    "adapters": "peft_model_path",
    "adapter_name_or_path": "peft_model_path",
    "export_dir": "output_dir",
}


class MergeParser(HftuneParser):
    """The parser of `merge_peft_adapter.py`."""

    def __init__(self) -> None:
        super().__init__([MergeArguments], stage=MERGE, aliases=MERGE_ALIASES)
        for action in self._actions:
            if action.choices:  # `--verify False`
                action.type = str.lower
            other = [f"--{alias}" for alias, name in MERGE_ALIASES.items() if name == action.dest]
            action.help = f"{action.help} Also {', '.join(other)}." if other else action.help
        self.switches |= {"verify"}


def parse_merge_arguments(argv: list[str] | None = None) -> MergeArguments:
    """The arguments of `merge_peft_adapter.py`.

    Args:
        argv: The command line; left out: the process's own.

    Raises:
        ArgumentError: Everything that is wrong with them, in one message.
    """
    (found,) = MergeParser().parse(list(sys.argv[1:] if argv is None else argv))
    return cast(MergeArguments, found)
