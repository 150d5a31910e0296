"""Writes a folder that an inference server takes as it is: 16-bit weights, template, tokens that end an answer.

The template is as the model was trained with it, for programs that give templates no arguments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hftune.checkpoints.template_arguments import recorded_arguments
from hftune.constants import PROCESSOR_FILES
from hftune.errors import UserError
from hftune.inference.prompts import write_generation_config
from hftune.logging import notice
from hftune.merging.plan import Output
from hftune.merging.tensors import FLOATS, NAMES, nbytes
from hftune.merging.verify import answer, compare, judge
from hftune.merging.write import write_weights
from hftune.models.loading.from_pretrained import pretrained
from hftune.opening.files import copy_file
from hftune.template_arguments import TemplateArguments, readable, with_defaults
from hftune.tools.export.arguments import ServingArguments
from hftune.weight_files import stored_tensors


def write_serving_folder(folder: Path, output: Path, args: ServingArguments) -> dict[str, Any]:
    """Copy a model for serving; one tensor is in memory at a time.

    Returns:
        `dtype`, `ends` (the tokens that end an answer) and `bytes` of the weights.
    """
    output.mkdir(parents=True, exist_ok=True)
    tokenizer = exported_tokenizer(folder, trust_remote_code=args.trust_remote_code)
    tokenizer.save_pretrained(output)
    config = pretrained(AutoConfig, folder, trust_remote_code=args.trust_remote_code)
    dtype = None if args.dtype == "auto" else getattr(torch, args.dtype)
    tensors = _outputs(folder, dtype)
    write_weights(output, tensors, args.max_shard_size)
    if dtype is not None:
        config.dtype = dtype
    # Training with recomputation turns it off, and generation without it computes the whole prefix for every token.
    config.use_cache = True
    config.save_pretrained(output)
    # Of what makes images and sounds into inputs, where the model has parts for these.
    for file in folder.glob(PROCESSOR_FILES):
        copy_file(file, output / file.name, within=folder)
    ends = write_generation_config(folder, output, tokenizer)
    return {"dtype": args.dtype, "ends": ends, "bytes": sum(nbytes(one.dtype, one.shape) for one in tensors)}


def load(folder: Path, trust_remote_code: bool = False) -> PreTrainedModel:
    """A causal LM in float32, ready to answer: a difference is then the export's, and not that of rounding here."""
    loaded = pretrained(AutoModelForCausalLM, folder, trust_remote_code=trust_remote_code, dtype=torch.float32)
    return loaded.eval()


def compared(folder: Path, result: Path, args: ServingArguments) -> dict[str, float]:
    """How far the logits and greedy answers of a result are from those of its model.

    Raises:
        UserError: Further than rounding explains, or the model's are NaN.
    """
    tokenizer = pretrained(AutoTokenizer, folder, trust_remote_code=args.trust_remote_code)
    before, after = (answer(load(place, args.trust_remote_code), tokenizer) for place in (folder, result))
    for logits in before.logits:
        check_numbers(logits, folder)
    found = compare(before, after)
    judge(found, half=args.dtype != "float32", result="the exported folder", model="the model")
    return found.to_dict()


def check_numbers(logits: torch.Tensor, folder: Path) -> None:
    """Refuse a model that says nothing: of NaN the likeliest token is always the first."""
    if logits.isnan().any():
        cause = f"{folder} gives logits that are NaN"
        raise UserError(cause, place="--verify", fix="take a checkpoint from before its weights broke")


def _outputs(folder: Path, dtype: torch.dtype | None) -> list[Output]:
    """All tensors of a model, in a dtype; packed weights and counters are integers, and stay what they are."""
    found = stored_tensors(folder)
    return [
        Output(name, NAMES[dtype] if dtype and one.dtype in FLOATS else one.dtype, one.shape, one)
        for name, one in found.items()
    ]


def exported_tokenizer(folder: Path, *, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, whose template has the arguments of the model's training as its defaults."""
    tokenizer: PreTrainedTokenizerBase = pretrained(AutoTokenizer, folder, trust_remote_code=trust_remote_code)
    if tokenizer.chat_template:
        arguments = readable(recorded_arguments(folder), tokenizer)
        if arguments:
            said = ", ".join(f"{name} {str(value).lower()}" for name, value in arguments.items())
            notice(f"{folder} was trained with {said} for its chat template: the exported one has that as its default")
        tokenizer.chat_template = exported_template(tokenizer.chat_template, arguments)
    return tokenizer


def exported_template(template: Any, arguments: TemplateArguments) -> Any:
    """A template, or several by name, with arguments as defaults."""
    if not arguments or not template:
        return template
    if isinstance(template, dict):
        return {name: with_defaults(text, arguments) for name, text in template.items()}
    return with_defaults(template, arguments)
