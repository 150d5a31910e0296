"""Which attention a run uses. With documents side by side in a row, only one that keeps them apart is let through."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available, is_flash_attn_4_available
from transformers.utils.import_utils import is_torch_flex_attn_available

from hftune.arguments.model import ModelArguments
from hftune.arguments.training import PTArguments, SFTArguments, StageArguments
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.attention.segments import SEGMENTS
from hftune.models.attention.ulysses import ULYSSES, inner_name
from hftune.models.attention.varlen import MAX_HEAD_SIZE, VARLEN, has_varlen
from hftune.models.loading.config import model_config

WITHOUT_PACKING = "leave out --packing, --padding_free; for text: --packing False or --cross_document_attention True"

ISOLATED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention", "sparse", "dense", "moe"}
"""Kinds of layers, in transformers' words, in which a token's past is what its attention mask says."""


@dataclass(frozen=True)
class Machine:
    """What the choice depends on besides the model.

    Args:
        major: Of the GPU's compute capability; 0 on a CPU.
        half: Whether bf16 or fp16 is computed in.
        flash: Versions of FlashAttention that are installed.
        varlen: Whether torch's own varlen attention runs here.
        flex: Whether flex attention does.
        compiled: Whether the model goes through torch.compile.
    """

    major: int = 0
    half: bool = False
    flash: frozenset[int] = frozenset()
    varlen: bool = False
    flex: bool = False
    compiled: bool = False


def attention_for(model_args: ModelArguments, training_args: StageArguments) -> str | None:
    """The `attn_implementation` to load a model with; None leaves the choice to transformers.

    What `--attn_implementation` or `--flash_attn` asks for wins. Without documents side by side in a row (packed or
    padding-free), transformers chooses.

    Raises:
        ArgumentError: Documents side by side, and a model or an attention that would let them see each other.
    """
    machine = this_machine(training_args, dtype=model_args.dtype)
    if training_args.sequence_parallel_size > 1:
        notice(f"attention: {ULYSSES}, which is {inner_name()} over whole rows, for a share of the heads a process")
        return ULYSSES
    asked = model_args.attn_implementation or (_flash(machine) if model_args.flash_attn else None)
    if not training_args.flat_batches:
        return asked
    config = model_config(model_args, training_args)
    model_class = causal_class(config)
    refuse_unless_isolated(config, model_class)
    if asked is not None:
        refuse_attention(asked, machine)
        return asked
    choice = choose_shared if getattr(training_args, "shared_prompts", False) else choose_attention
    chosen, reason = choice(config, model_class, machine)
    notice(f"attention: {chosen} ({reason})")
    return chosen


def decide_padding_free(model_args: ModelArguments, training_args: StageArguments) -> None:
    """Whether rows are padded, where `--padding_free` was left out: only where documents cannot lie side by side.

    The losses are the same; pads, which are a quarter of a usual batch, are not computed.
    """
    if not isinstance(training_args, PTArguments | SFTArguments) or training_args.padding_free is not None:
        return
    packed = training_args.packing or bool(training_args.eval_packing)
    if training_args.sequence_parallel_size > 1:
        # What is shared is one row a batch; a block whose documents see each other is one document of it.
        training_args.padding_free = not packed or bool(getattr(training_args, "cross_document_attention", False))
        return
    training_args.padding_free = not packed and _lie_side_by_side(model_args, training_args)
    if training_args.padding_free:
        notice("the documents of a batch lie side by side in one row, without pads (--padding_free False pads them)")


def _lie_side_by_side(model_args: ModelArguments, training_args: StageArguments) -> bool:
    """Whether this machine has an attention that keeps them apart and is as quick as one over padded rows."""
    asked = model_args.attn_implementation
    machine = this_machine(training_args, dtype=model_args.dtype)
    # With a dense mask, which those others want, one long row costs more than several padded ones.
    if (asked and "flash" not in asked) or machine.compiled:
        return False
    config = model_config(model_args, training_args)
    model_class = causal_class(config)
    try:
        refuse_unless_isolated(config, model_class)
    except ArgumentError:
        return False
    return not machine.major or choose_attention(config, model_class, machine)[0] != SEGMENTS


def report_attention(model: Any, model_args: ModelArguments, training_args: StageArguments) -> None:
    """Say which attention a loaded model has, unless choosing it said so already."""
    asked = model_args.attn_implementation or model_args.flash_attn
    if asked or not training_args.flat_batches:
        reason = "as asked" if asked else "transformers' choice; rows are padded"
        notice(f"attention: {model.config._attn_implementation} ({reason})")


def this_machine(training_args: StageArguments, dtype: str = "auto") -> Machine:
    """What is installed and asked for here; `dtype` is that of the weights."""
    half = bool(training_args.bf16 or training_args.fp16) or dtype in ("bfloat16", "float16")
    if training_args.use_cpu:
        return Machine(half=half, compiled=training_args.torch_compile)
    # Asked without their fallback to kernels on the Hub: choosing must not reach for the network.
    found = {
        2: is_flash_attn_2_available(),
        3: is_flash_attn_3_available(),
        4: is_flash_attn_4_available(),
    }
    return Machine(
        major=torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else 0,
        half=half,
        flash=frozenset(version for version, there in found.items() if there),
        varlen=has_varlen(),
        flex=is_torch_flex_attn_available(),
        compiled=training_args.torch_compile,
    )


def choose_attention(config: PreTrainedConfig, model_class: Any, machine: Machine) -> tuple[str, str]:
    """The fastest attention that is exact for this model on this machine, and why it is that one."""
    text = config.get_text_config()
    softcap = getattr(text, "attn_logit_softcapping", None) is not None
    sinks = not model_class._supports_sdpa and not softcap
    dropout = bool(getattr(text, "attention_dropout", 0.0))
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    version = _flash_version(machine)
    # What both FlashAttention and torch's own take.
    flash = machine.half and not softcap and not sinks and size <= MAX_HEAD_SIZE
    if version and flash and model_class._supports_flash_attn:
        return f"flash_attention_{version}", f"FlashAttention {version} is installed"
    if machine.compiled and not sinks:
        return _compiled(model_class, machine, dropout)
    if machine.varlen and flash and not dropout:
        return VARLEN, "torch's own FlashAttention, all documents in a call"
    # Not with sinks: GPT-OSS keeps its position ids from its mask (transformers 5.23), which only our own makes good.
    if machine.major and machine.flex and model_class._supports_flex_attn and not dropout and not sinks:
        return "flex_attention", "soft caps or float32, which FlashAttention does not take"
    return SEGMENTS, "SDPA, a document at a time"


def choose_shared(config: PreTrainedConfig, model_class: Any, machine: Machine) -> tuple[str, str]:
    """As `choose_attention`, of those attentions that let several answers share a prompt."""
    chosen, reason = choose_attention(config, model_class, dataclasses.replace(machine, flash=frozenset(), flex=False))
    return chosen, f"{reason}; answers share their prompt"


def _compiled(model_class: Any, machine: Machine, dropout: bool) -> tuple[str, str]:
    if machine.major and machine.flex and model_class._supports_flex_attn and not dropout:
        return "flex_attention", "the model is compiled"
    # Both with a dense mask of tokens by tokens.
    return ("sdpa" if model_class._supports_sdpa else "eager"), "the model is compiled"


def _flash_version(machine: Machine) -> int | None:
    """The version to use: FlashAttention 3 is for Hopper, 4 for Blackwell, 2 for Ampere and later."""
    preferred = {8: (2,), 9: (3, 2, 4)}.get(machine.major, (4, 2) if machine.major > 9 else ())
    return next((version for version in preferred if version in machine.flash), None)


def _flash(machine: Machine) -> str | None:
    """What `--flash_attn` stands for."""
    version = _flash_version(machine)
    if version is not None:
        return f"flash_attention_{version}"
    notice("--flash_attn: FlashAttention is not installed, or there is no GPU for it; it has no effect")
    return None


def causal_class(config: PreTrainedConfig) -> Any:
    """The class that transformers builds from a config, or None where its code comes with the model."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple) else found


def refuse_unless_isolated(config: PreTrainedConfig, model_class: Any) -> None:
    """Refuse a model whose documents would see each other in a row, whatever the attention.

    Raises:
        ArgumentError: Layers with a state that runs on (Mamba, linear attention), positions or attention of its own.
    """
    reason = why_not_isolated(config, model_class)
    if reason:
        raise ArgumentError(
            f"documents in a row cannot be kept apart in {config.model_type}: {reason}",
            place="--packing / --padding_free",
            fix=WITHOUT_PACKING,
        )


def why_not_isolated(config: PreTrainedConfig, model_class: Any) -> str | None:
    """Why tokens of this model know of others by other ways than attention; None where they do not."""
    layers = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if model_class is None:
        return "its code comes with the model, and cannot be checked"
    if model_class._is_stateful or layers - ISOLATED_LAYERS:
        kinds = ", ".join(sorted(layers - ISOLATED_LAYERS)) or "a recurrent state"
        return f"it has layers whose past is more than the attention mask says ({kinds})"
    if not model_class._supports_attention_backend:
        return "it has an attention of its own, which no document borders reach"
    if "position_ids" not in inspect.signature(model_class.forward).parameters:
        return "it takes no position ids"
    return None


def refuse_attention(asked: str, machine: Machine) -> None:
    """Refuse an attention that is not known to keep documents apart, or that cannot run here.

    Raises:
        ArgumentError: Naming those that do.
    """
    flash = "flash" in asked
    if flash and (not machine.major or not machine.half):
        raise ArgumentError(
            f"{asked} needs a GPU and half precision",
            place="--attn_implementation",
            fix=f"add --bf16 on a GPU, or leave the flag out ({SEGMENTS} is used)",
        )
    if not flash and asked not in ("eager", "sdpa", "flex_attention", SEGMENTS, VARLEN):
        raise ArgumentError(
            f"{asked} is not known to keep packed documents apart",
            place="--attn_implementation",
            fix="leave the flag out, or give flash_attention_2, flash_attention_3, flash_attention_4, flex_attention, "
            f"sdpa, eager, {SEGMENTS} or {VARLEN}",
        )
