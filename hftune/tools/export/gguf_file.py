"""Writes a model folder as one GGUF file, a tensor at a time."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import quants
from tqdm import tqdm
from transformers import AutoConfig, AutoTokenizer

from hftune.checkpoints.template_arguments import recorded_arguments
from hftune.errors import ArgumentError, raise_together
from hftune.logging import notice
from hftune.models.loading.from_pretrained import pretrained
from hftune.opening.safetensors_file import load_tensor
from hftune.template_arguments import readable
from hftune.tools.export import architectures
from hftune.tools.export.architectures import Architecture
from hftune.tools.export.limits import check_llama_cpp
from hftune.tools.export.vocabulary import read_vocabulary
from hftune.weight_files import parse_size, read_header, weight_files

TYPES: dict[str, Type] = {
    "f32": Type.F32,
    "f16": Type.F16,
    "bf16": Type.BF16,
    "q8_0": Type.Q8_0,
    "q5_1": Type.Q5_1,
    "q5_0": Type.Q5_0,
    "q4_1": Type.Q4_1,
    "q4_0": Type.Q4_0,
}
_FILE_TYPES: dict[Type, gguf.LlamaFileType] = {
    Type.F32: gguf.LlamaFileType.ALL_F32,
    Type.F16: gguf.LlamaFileType.MOSTLY_F16,
    Type.BF16: gguf.LlamaFileType.MOSTLY_BF16,
    Type.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0,
    Type.Q5_1: gguf.LlamaFileType.MOSTLY_Q5_1,
    Type.Q5_0: gguf.LlamaFileType.MOSTLY_Q5_0,
    Type.Q4_1: gguf.LlamaFileType.MOSTLY_Q4_1,
    Type.Q4_0: gguf.LlamaFileType.MOSTLY_Q4_0,
}
_OF_DTYPE = {"F32": Type.F32, "F16": Type.F16, "BF16": Type.BF16}
Reader = Callable[[], torch.Tensor]


@dataclass
class GgufTensor:
    """One tensor of the file, read when its turn comes.

    Attributes:
        name: In GGUF.
        shape: As torch has it; GGUF counts dimensions the other way round.
        type: How it is written.
        read: Returns it, in float32.
    """

    name: str
    shape: tuple[int, ...]
    type: Type
    read: Reader

    def bytes(self) -> np.ndarray:
        """The tensor as it is written: quantised, or in the type's own dtype.

        Raises:
            ArgumentError: Numbers beyond what 16-bit floats hold.
        """
        tensor = self.read().float()
        # A bfloat16 checkpoint may hold more than 65,504, which would become infinite without a word.
        if self.type == Type.F16 and tensor.abs().max() > torch.finfo(torch.float16).max:
            raise ArgumentError(
                f"{self.name} has weights beyond the range of float16", place="--outtype f16", fix="use bf16 or q8_0"
            )
        return quants.quantize(tensor.numpy(), self.type)


def write_gguf(
    folder: Path,
    file: Path,
    outtype: str = "auto",
    *,
    max_shard_size: str | None = None,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """Write the model in `folder` to `file`; memory is that of its largest tensor, a few times.

    Args:
        folder: A full or merged model with safetensors and a tokenizer.
        file: Written whole or not at all.
        outtype: A key of `TYPES`, or auto for the checkpoint's own dtype.
        max_shard_size: Where the tensors take more bytes: several files, NAME-00001-of-00003.gguf and so on, of which
            llama.cpp is given the first.
        trust_remote_code: For the config and the tokenizer.

    Returns:
        `architecture`, `type`, `tensors`, `rows` of the embedding, `files` by name, the first one first, and `bytes`.

    Raises:
        ArgumentError: An architecture, tokenizer or tensor that hftune does not write.
    """
    config = pretrained(AutoConfig, folder, trust_remote_code=trust_remote_code).get_text_config()
    known = architectures.architecture_of(config)
    raise_together(check_llama_cpp(config))
    tokenizer = pretrained(AutoTokenizer, folder, trust_remote_code=trust_remote_code)
    chosen = TYPES[outtype] if outtype != "auto" else _checkpoint_type(folder)
    tensors = list(_gguf_tensors(folder, config, known, chosen))
    rows = next(tensor.shape[0] for tensor in tensors if tensor.name == "token_embd.weight")
    # Without a file: it is opened in `_write`, when types and shapes of all tensors are known.
    writer = gguf.GGUFWriter(None, known.name, split_max_size=parse_size(max_shard_size) if max_shard_size else 0)
    writer.add_name(folder.resolve().name)
    writer.add_file_type(_FILE_TYPES[chosen])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    architectures.add_parameters(writer, config, known, rows)
    # Observed, not read: tokenizers add the token by post-processors, whatever `add_bos_token` says.
    adds_bos = tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]
    arguments = readable(recorded_arguments(folder), tokenizer)
    read_vocabulary(folder, rows).write(writer, folder, arguments, adds_bos=adds_bos)
    files = _write(writer, tensors, file)
    _say_what_stayed_wider(tensors, chosen)
    return {
        "architecture": known.name,
        "type": chosen.name.lower(),
        "tensors": len(tensors),
        "rows": rows,
        "files": [written.name for written in files],
        "bytes": sum(written.stat().st_size for written in files),
    }


def _write(writer: gguf.GGUFWriter, tensors: list[GgufTensor], file: Path) -> list[Path]:
    """Write all files under temporary names, rename them when the last one is whole, and return them."""
    for tensor in tensors:
        dtype = _FLOATS.get(tensor.type)
        if dtype is not None:
            writer.add_tensor_info(tensor.name, tensor.shape, dtype, math.prod(tensor.shape) * dtype.itemsize)
        else:
            # gguf takes such tensors as bytes, and finds the shape in numbers from theirs and the type.
            stored = quants.quant_shape_to_byte_shape(tensor.shape, tensor.type)
            writer.add_tensor_info(tensor.name, stored, np.dtype(np.uint8), math.prod(stored), raw_dtype=tensor.type)
    aside = file.with_name(f".{file.stem}.partial.gguf")
    written, files = writer.format_shard_names(aside), writer.format_shard_names(file)
    # The order of the format. Infos hold the offset of every tensor, so no tensor can be written before them.
    writer.write_header_to_file(aside)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    # In the order of `add_tensor_info`: gguf (0.19) takes each for the first that is missing, and does not ask for its
    # name.
    for tensor in tqdm(tensors, desc="writing GGUF", unit="tensor", disable=None):
        writer.write_tensor_data(tensor.bytes())
    writer.close()
    # Only now: a file under its own name is whole.
    for partial, whole in zip(written, files, strict=True):
        partial.replace(whole)
    return files


_FLOATS: dict[Type, np.dtype] = {Type.F32: np.dtype(np.float32), Type.F16: np.dtype(np.float16)}


def _gguf_tensors(folder: Path, config: Any, known: Architecture, chosen: Type) -> Iterator[GgufTensor]:
    """The tensors of the GGUF file, the experts of a layer stacked into one."""
    names = gguf.get_tensor_name_map(known.arch, config.num_hidden_layers)
    experts: dict[str, dict[int, Reader]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape, read in _tensors(folder):
        expert = architectures.expert_of(name)
        if expert is not None:
            experts.setdefault(expert[0], {})[expert[1]] = read
            shapes[expert[0]] = shape
        elif not _is_left_out(name, config, known):
            yield _gguf_tensor(name, shape, _as_llama_cpp(name, config, known, read), names, chosen)
    for name, readers in experts.items():
        # After all files: a checkpoint may divide the experts of a layer between two. Sorted, because files list names
        # as texts, 10 before 2.
        stacked = (len(readers), *shapes[name])
        yield _gguf_tensor(name, stacked, _stack([readers[number] for number in sorted(readers)]), names, chosen)
    for name, tensor in architectures.extra_tensors(config).items():
        yield GgufTensor(name, tuple(tensor.shape), Type.F32, functools.partial(_as_it_is, tensor))


def _tensors(folder: Path) -> Iterator[tuple[str, tuple[int, ...], Reader]]:
    """Name, shape and a reader of every tensor of a checkpoint; nothing is read yet."""
    files = weight_files(folder)
    if not files:
        raise ArgumentError(
            f"{folder} has no safetensors",
            place="--model_name_or_path",
            fix="give the folder of a full or merged model",
        )
    for file in files:
        for name, entry in read_header(file).items():
            yield name, tuple(entry["shape"]), functools.partial(load_tensor, file, name)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _stack(readers: list[Reader]) -> Reader:
    return lambda: torch.stack([read() for read in readers])


def _gguf_tensor(
    name: str, shape: tuple[int, ...], read: Reader, names: gguf.TensorNameMap, chosen: Type
) -> GgufTensor:
    written = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if written is None:
        raise ArgumentError(
            f"GGUF has no name for the tensor {name}",
            place="--model_name_or_path",
            fix="use llama.cpp's convert_hf_to_gguf.py on the folder",
        )
    return GgufTensor(written, shape, _type(written, shape, chosen), read)


def _type(name: str, shape: tuple[int, ...], chosen: Type) -> Type:
    """The type that a tensor is written in."""
    # As llama.cpp's own converter: norms, biases and routers are small, and read in float32.
    if len(shape) < 2 or name.endswith(("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight")):
        return Type.F32
    block, _ = gguf.GGML_QUANT_SIZES[chosen]
    # Rows are quantised in blocks of 32 numbers, and have to fill whole ones.
    return chosen if shape[-1] % block == 0 else Type.F16


def _as_llama_cpp(name: str, config: Any, known: Architecture, read: Reader) -> Reader:
    if known.permutes and ".q_proj." in name:
        return lambda: architectures.reorder(read(), config.num_attention_heads)
    if known.permutes and ".k_proj." in name:
        return lambda: architectures.reorder(read(), config.num_key_value_heads)
    if known.norm_shift and name.endswith("norm.weight"):
        return lambda: read().float() + known.norm_shift
    return read


def _is_left_out(name: str, config: Any, known: Architecture) -> bool:
    """Whether llama.cpp needs no such tensor: a tied head is the embedding, and frequencies are computed."""
    tied = known.ignores_head or bool(config.tie_word_embeddings)
    return (tied and name == "lm_head.weight") or name.endswith("rotary_emb.inv_freq")


def _checkpoint_type(folder: Path) -> Type:
    """The type that most weights of a checkpoint have, by numbers of weights."""
    sizes: Counter[str] = Counter()
    for file in weight_files(folder):
        for entry in read_header(file).values():
            sizes[entry["dtype"]] += math.prod(entry["shape"])
    return _OF_DTYPE.get(sizes.most_common(1)[0][0], Type.F16)


def _say_what_stayed_wider(tensors: list[GgufTensor], chosen: Type) -> None:
    wider = [tensor for tensor in tensors if tensor.type == Type.F16 != chosen]
    if wider:
        block, _ = gguf.GGML_QUANT_SIZES[chosen]
        notice(f"{len(wider)} matrices stay float16: their rows are no multiple of {block} ({wider[0].name}, ...)")
