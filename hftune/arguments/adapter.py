"""LoRA adapters and the quantised bases they train on."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.arguments.vocabulary import NewRowsArguments
from hftune.errors import ArgumentError


@dataclass
class AdapterArguments(NewRowsArguments):
    """LoRA and QLoRA on the names of TRL's `ModelConfig`; MedicalGPT's are aliases (see `aliases.py`)."""

    use_peft: bool = field(default=False, metadata={"help": "Train a LoRA adapter instead of the whole model."})
    peft_path: str | None = field(default=None, metadata={"help": "Continue this adapter (implies --use_peft)."})
    lora_r: int = field(default=8, metadata={"help": "Rank r of the adapter."})
    lora_alpha: int = field(default=16, metadata={"help": "The adapter is scaled by lora_alpha / r."})
    lora_dropout: float = field(default=0.0, metadata={"help": "Dropout on the adapter's input."})
    lora_target_modules: list[str] = field(
        default_factory=lambda: ["all"],
        metadata={"help": "Linear modules to adapt: all (every linear but the head), or names."},
    )
    lora_modules_to_save: list[str] | None = field(
        default=None, metadata={"help": "Modules trained in full and saved with the adapter (embed_tokens lm_head)."}
    )
    lora_bias: str = field(
        default="none", metadata={"help": "Biases trained with the adapter.", "choices": ["none", "all", "lora_only"]}
    )
    use_rslora: bool = field(default=False, metadata={"help": "Scale by lora_alpha / sqrt(r) (arXiv:2312.03732)."})
    use_dora: bool = field(default=False, metadata={"help": "Weight-decomposed LoRA (arXiv:2402.09353)."})
    qlora: bool = field(default=False, metadata={"help": "LoRA on a 4-bit NF4 base; 8-bit with --load_in_8bit."})
    load_in_4bit: bool = field(default=False, metadata={"help": "Quantise the base to 4 bit."})
    load_in_8bit: bool = field(default=False, metadata={"help": "Quantise the base to 8 bit."})
    bnb_4bit_quant_type: str = field(default="nf4", metadata={"help": "4-bit type.", "choices": ["nf4", "fp4"]})
    use_bnb_nested_quant: bool = field(default=True, metadata={"help": "Quantise the quantisation constants too."})
    bnb_4bit_quant_storage: str | None = field(
        default=None, metadata={"help": "Storage dtype of 4-bit weights; under ZeRO-3 equal to the compute dtype."}
    )

    def __post_init__(self) -> None:
        if self.train_new_tokens_only and self.use_peft:
            raise ArgumentError(
                "LoRA trains more than the new rows",
                place="--use_peft, --train_new_tokens_only",
                fix="leave one out: LoRA trains the rows of tokens that are added in its run in any case",
            )
        self.use_peft = self.use_peft or self.train_new_tokens_only
        if self.qlora:
            self.use_peft = True
            self.load_in_4bit = self.load_in_4bit or not self.load_in_8bit
        if self.peft_path:
            self.use_peft = True
        # `--target_modules q_proj,v_proj` and `--target_modules q_proj v_proj` mean the same.
        self.lora_target_modules = _split_commas(self.lora_target_modules)
        if self.lora_modules_to_save:
            self.lora_modules_to_save = _split_commas(self.lora_modules_to_save)

    @property
    def quantised(self) -> bool:
        """Whether the base is loaded in 4 or 8 bit."""
        return self.load_in_4bit or self.load_in_8bit


def _split_commas(names: list[str] | str) -> list[str]:
    listed = [names] if isinstance(names, str) else names
    return [name.strip() for entry in listed for name in entry.split(",") if name.strip()]
