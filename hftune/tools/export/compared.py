"""Compares the logits of an exported model with those of the model that it was made from."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedModel

from hftune.errors import UserError
from hftune.logging import notice
from hftune.models.loading.from_pretrained import pretrained

# Two scripts and code, with brackets and a line break: wrong cuts, merges or row orders show in one of them.
TEXTS = ("Who are you?", "The capital of France is", "为什么天空是蓝色的？", "def add(a, b):\n    return")
# Of the logits' standard deviation. Rounding to 8 bits costs a few hundredths.
LARGEST_DIFFERENCE = {"f32": 0.01, "f16": 0.03, "bf16": 0.06, "q8_0": 0.2, "float32": 0.01, "bfloat16": 0.06}
_NOT_READ = ("mixtral",)  # by transformers 5.23's reader of GGUF files


def load(folder: Path, trust_remote_code: bool = False, **options: Any) -> PreTrainedModel:
    """A causal LM in float32, ready to answer."""
    # Float32, so that the difference is the export's and not that of rounding here.
    options = {"dtype": torch.float32} | options
    return pretrained(AutoModelForCausalLM, folder, trust_remote_code=trust_remote_code, **options).eval()


def compare(folder: Path, result: Path, trust_remote_code: bool = False) -> dict[str, float]:
    """The difference of two folders' logits; the second is loaded in the dtype that it is stored in."""
    before = logits_of(load(folder, trust_remote_code), folder, trust_remote_code)
    return distance(before, logits_of(load(result, trust_remote_code, dtype="auto"), folder, trust_remote_code))


def read_back(folder: Path, file: Path, trust_remote_code: bool = False) -> dict[str, Any]:
    """The difference of logits between a model and its GGUF file, or the first of several.

    The file is read by llama.cpp where `llama_cpp` is installed, else its tensors are read by transformers into the
    model that they came from, of whose config transformers' reader knows but a part.
    """
    before = logits_of(load(folder, trust_remote_code), folder, trust_remote_code)
    if importlib.util.find_spec("llama_cpp") is not None:
        return {"read_by": "llama.cpp", **distance(before, _llama_cpp_logits(file, folder, trust_remote_code))}
    config = pretrained(AutoConfig, folder, trust_remote_code=trust_remote_code)
    if config.model_type in _NOT_READ:
        notice(f"not read back: transformers reads no GGUF of {config.model_type}; install llama-cpp-python for that")
        return {}
    if config.model_type == "mistral":  # llama.cpp's name for it is llama, and so is the computation
        config = LlamaConfig.from_dict(config.to_dict() | {"model_type": "llama"})
    # Next to the file, on a disk that has just held as much; the system's folder for such may be small, or in memory.
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as room:
        whole = file if "-of-" not in file.name else join(file, Path(room) / "whole.gguf")
        model = load(whole.parent, gguf_file=whole.name, config=config)
    return {"read_by": "transformers", **distance(before, logits_of(model, folder, trust_remote_code))}


def join(first: Path, target: Path) -> Path:
    """Join several GGUF files to one, for readers that know one file only, and return it.

    Args:
        first: NAME-00001-of-0000N.gguf; the others lie next to it.
        target: The file to write.
    """
    stem = first.name.rsplit("-00001-of-", 1)[0]
    # Numbers have five digits, so names sort in the order of the files.
    readers = [gguf.GGUFReader(file) for file in sorted(first.parent.glob(f"{stem}-*-of-*.gguf"))]
    fields = [field for field in readers[0].fields.values() if not field.name.startswith(("GGUF.", "split."))]
    kind = next(field.contents() for field in fields if field.name == "general.architecture")
    writer = gguf.GGUFWriter(target, kind)
    for field in fields:
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        # The writer has put this key in itself.
        if field.name != "general.architecture":
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    for tensor in (tensor for reader in readers for tensor in reader.tensors):
        # Memory-mapped: no tensor is in memory before it is written.
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def logits_of(model: Any, tokenizer_folder: Path, trust_remote_code: bool = False) -> list[torch.Tensor]:
    """Float32 logits of every position of `TEXTS`, (length, rows) each."""
    tokenizer = pretrained(AutoTokenizer, tokenizer_folder, trust_remote_code=trust_remote_code)
    with torch.no_grad():
        ids = [torch.tensor([tokenizer(text).input_ids], device=model.device) for text in TEXTS]
        logits = [model(input_ids=row).logits[0].float().cpu() for row in ids]
    # Of NaN the likeliest token is always the first, and no distance is too large.
    if any(row.isnan().any() for row in logits):
        cause = f"{model.config._name_or_path or tokenizer_folder} gives logits that are NaN"
        raise UserError(cause, place="--verify", fix="take a checkpoint from before its weights broke")
    return logits


def distance(before: list[torch.Tensor], after: list[torch.Tensor]) -> dict[str, float]:
    """Figures of the difference of logits: largest, mean, mean in standard deviations, share of equal choices."""
    pairs = list(zip(before, after, strict=True))
    differences = torch.cat([(a - b).abs().flatten() for a, b in pairs])
    same = torch.cat([a.argmax(-1) == b.argmax(-1) for a, b in pairs])
    return {
        "logits_largest_difference": float(differences.max()),
        "logits_mean_difference": float(differences.mean()),
        # In units of the logits' spread, which differs from model to model.
        "logits_relative_difference": float(differences.mean() / torch.cat([a.flatten() for a in before]).std()),
        "same_choice": float(same.float().mean()),
    }


def check_distance(figures: dict[str, Any], kind: str) -> None:
    """Raise if a result is too far from its model.

    Args:
        figures: With `logits_relative_difference`, where the result was read back.
        kind: A key of `LARGEST_DIFFERENCE`; coarser types lose what they lose, and only say so.

    Raises:
        UserError: The result says something else than the model.
    """
    relative, largest = figures.get("logits_relative_difference"), LARGEST_DIFFERENCE.get(kind)
    if relative is not None and largest is not None and relative > largest:
        raise UserError(
            f"the {kind} result does not say what the model says: its logits are off by {relative:.2f} of their spread",
            place="--verify",
            fix="report it with the model's config.json; nothing was written",
        )


def _llama_cpp_logits(file: Path, folder: Path, trust_remote_code: bool) -> list[torch.Tensor]:
    from llama_cpp import Llama

    tokenizer = pretrained(AutoTokenizer, folder, trust_remote_code=trust_remote_code)
    model = Llama(str(file), logits_all=True, n_ctx=512, verbose=False)
    found = []
    for text in TEXTS:
        ids = tokenizer(text).input_ids
        own = model.tokenize(text.encode(), add_bos=True, special=True)
        if own != ids:
            notice(f"llama.cpp cuts {text!r} otherwise: {own} instead of {ids}")
        # Otherwise the text before stays in the cache as context.
        model.reset()
        model.eval(ids)
        found.append(torch.tensor(model.scores[: len(ids)]).float())
    return found
