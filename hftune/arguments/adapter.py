"""LoRA adapters and the quantised bases they train on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hftune.arguments.optimizer import FreezingArguments, split_commas
from hftune.arguments.option import option
from hftune.checks import refuse
from hftune.errors import ArgumentError
from hftune.opening.json_file import parse_json


@dataclass
class AdapterArguments(FreezingArguments):
    """LoRA and QLoRA on the names of TRL's `ModelConfig` and peft's `LoraConfig`; other tools' are aliases."""

    use_peft: bool = option(False, "Train a LoRA adapter instead of the whole model.")
    peft_path: str | None = option(
        None,
        "Continue this adapter (implies --use_peft). A,B,C: A and B are folded into the base in memory, in "
        "this order, and C is trained on. What an adapter was itself trained on is known from its hftune.json.",
    )
    create_new_adapter: bool = option(
        False, "Fold all adapters of --peft_path into the base and train a fresh one on top."
    )
    lora_r: int = option(8, "Rank r of the adapter.")
    lora_alpha: int = option(16, "The adapter is scaled by lora_alpha / r.")
    lora_dropout: float = option(0.0, "Dropout on the adapter's input.")
    lora_target_modules: list[str] = option(
        ["all"],
        "Linear modules to adapt: all (every linear but the head), names, or default (those that peft chooses for the "
        "architecture).",
    )
    target_regex: str | None = option(None, "Adapt the modules whose whole name matches, instead of the names above.")
    exclude_modules: list[str] | None = option(
        None, "Names of modules that are not adapted though the flags above name them."
    )
    lora_target_parameters: list[str] | None = option(
        None,
        "Parameters to adapt that are no linear module: the experts of a mixture, such as "
        "mlp.experts.gate_up_proj,mlp.experts.down_proj.",
    )
    init_lora_weights: str = option(
        "true",
        "How a fresh adapter begins: true (A random, B zero), gaussian, orthogonal or mica.",
    )
    rank_pattern: str | None = option(None, 'Other ranks for some modules, as JSON: {"down_proj": 16}.')
    alpha_pattern: str | None = option(None, 'Other lora_alpha for some modules, as JSON: {"down_proj": 32}.')
    trainable_token_indices: list[int] | None = option(
        None, "Train the embeddings of these token ids in full, alongside the adapter."
    )
    lora_modules_to_save: list[str] | None = option(
        None, "Modules trained in full and saved with the adapter (embed_tokens lm_head)."
    )
    lora_bias: str = option("none", "Biases trained with the adapter.", choices=["none", "all", "lora_only"])
    use_rslora: bool = option(False, "Scale by lora_alpha / sqrt(r) (arXiv:2312.03732).")
    use_dora: bool = option(False, "Weight-decomposed LoRA (arXiv:2402.09353).")
    qlora: bool = option(False, "LoRA on a 4-bit NF4 base; 8-bit with --load_in_8bit.")
    load_in_4bit: bool = option(False, "Quantise the base to 4 bit.")
    load_in_8bit: bool = option(False, "Quantise the base to 8 bit.")
    bnb_4bit_quant_type: str = option("nf4", "4-bit type.", choices=["nf4", "fp4"])
    use_bnb_nested_quant: bool = option(True, "Quantise the quantisation constants too.")
    bnb_4bit_quant_storage: str | None = option(
        None,
        "Storage dtype of 4-bit weights; under ZeRO-3 equal to the compute dtype.",
        choices=["uint8", "bfloat16", "float16", "float32"],
    )
    train_new_tokens_only: bool = option(
        False,
        "Train the rows of the new tokens and nothing else. They are saved as an adapter of these rows, to "
        "be merged like LoRA (which trains them in any case).",
    )
    # None until the run is known: ZeRO-3 gathers a weight for its module's forward pass, which a fused pass goes
    # around.
    fused_lora: bool | None = option(
        None,
        "Compute LoRA layers and gated MLPs with passes written out: faster, and less is kept for the "
        "backward pass. Left out: yes, but under ZeRO-3 and with --torch_compile.",
    )

    def __post_init__(self) -> None:
        refuse(__package__, "adapter", self)
        self.use_peft = self.use_peft or self.train_new_tokens_only
        if self.qlora:
            self.use_peft = True
            # --qlora --load_in_8bit is LoRA on 8 bits, not a contradiction.
            self.load_in_4bit = self.load_in_4bit or not self.load_in_8bit
        if self.peft_path:
            self.use_peft = True
        super().__post_init__()
        # `--target_modules q_proj,v_proj` and `--target_modules q_proj v_proj` mean the same.
        self.lora_target_modules = split_commas(self.lora_target_modules)
        for name in ("lora_modules_to_save", "exclude_modules", "lora_target_parameters"):
            if getattr(self, name):
                setattr(self, name, split_commas(getattr(self, name)))
        if isinstance(self.trainable_token_indices, int):  # a list of one in a YAML file
            self.trainable_token_indices = [self.trainable_token_indices]
        # YAML's `true` and Python's True are peft's own default, which it calls True.
        self.init_lora_weights = str(self.init_lora_weights).lower()

    @property
    def quantised(self) -> bool:
        """Whether the base is loaded in 4 or 8 bit."""
        return self.load_in_4bit or self.load_in_8bit

    @property
    def adapter_chain(self) -> list[str]:
        """The folders of `--peft_path`, in the order in which they lie upon the base."""
        return split_commas(self.peft_path) if self.peft_path else []

    @property
    def folded_adapters(self) -> list[str]:
        """The adapters that become part of the frozen base in memory."""
        return self.adapter_chain if self.create_new_adapter else self.adapter_chain[:-1]

    @property
    def continued_adapter(self) -> str | None:
        """The adapter that is trained on, or None for a fresh one."""
        # The last of the chain is trained on; the ones before it can only be part of the base.
        return None if self.create_new_adapter or not self.adapter_chain else self.adapter_chain[-1]

    @property
    def starts_as_base(self) -> bool:
        """Whether the base, with the adapter switched off, is what training began from."""
        return self.use_peft and self.continued_adapter is None

    def patterns(self, name: str) -> dict[str, int]:
        """`rank_pattern` or `alpha_pattern` as a dict of module name (or regex) to a positive number.

        Raises:
            ArgumentError: It is no JSON object of positive whole numbers.
        """
        text: Any = getattr(self, name)
        values = text or {}
        if isinstance(text, str):
            values = parse_json(text, f"--{name}", kind=None, error=ArgumentError, fix=_PATTERN)
        # `type`, not `isinstance`: True is an int, and no rank.
        if not isinstance(values, dict) or not all(type(value) is int and value > 0 for value in values.values()):
            raise ArgumentError(f"{text} holds no positive numbers by name", place=f"--{name}", fix=_PATTERN)
        return values


_PATTERN = 'write {"NAME": 16}'
