"""Exports a LoRA adapter for vLLM alongside its base (`--enable-lora --lora-modules NAME=FOLDER`), or says why not.

vLLM's loader (vllm/lora/peft_helper.py, lora_model.py, utils.py) reads `r`, `lora_alpha` and the low-rank matrices, and
nothing else: patterns of ranks and scales, rows, magnitudes and biases are errors there, or passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import save_file
from transformers import AutoTokenizer

from hftune.checkpoints.folder_checks import check_recorded, recorded_chain
from hftune.errors import ArgumentError, UserError
from hftune.logging import get_logger, notice
from hftune.merging.adapters import ADAPTER_WEIGHTS, PREFIX, AdaptedModule, Adapter, read_adapter
from hftune.merging.tensors import read_tensor
from hftune.models.loading.from_pretrained import pretrained
from hftune.models.vocabulary import recorded_growth
from hftune.preflight.model_folder import check_adapter_fits
from hftune.tools.export.arguments import ServedAdapterArguments
from hftune.tools.export.compared import distance, load, logits_of
from hftune.weight_files import StoredTensor, stored_tensors

LARGEST_RANK = 512
"""The largest value of vLLM's `--max-lora-rank`."""
_FLAG = "--model_name_or_path"
_TABLES = ("embed_tokens", "lm_head")


def check_served_adapter(folder: Path, args: ServedAdapterArguments) -> Iterator[UserError]:
    """Problems of serving the adapter in `folder` alongside its base."""
    try:
        adapter = read_adapter(folder, 1.0, _FLAG)
    except UserError as error:
        yield error
        return
    base = base_of(adapter, args)
    if not base:
        yield ArgumentError(
            f"the adapter in {folder} names no base", place="--base_model_name_or_path", fix="name its base"
        )
        return
    yield from check_recorded(base, "--base_model_name_or_path")
    yield from check_adapter_fits(base, str(folder), "--base_model_name_or_path")
    if reasons := list(_reasons(adapter, base)):
        yield ArgumentError(
            f"vLLM cannot take the adapter in {folder} on top of its base: {'; '.join(reasons)}",
            place=_FLAG,
            fix=f"merge it: python merge_peft_adapter.py --peft_model_path {folder} --output_dir MERGED, "
            "then hftune export vllm --model_name_or_path MERGED",
        )


def base_of(adapter: Adapter, args: ServedAdapterArguments) -> str:
    """The base that was named, else the one that the adapter names; empty without either."""
    recorded = (adapter.manifest.get("base") or {}).get("name")
    return str(args.base_model_name_or_path or recorded or adapter.config.get("base_model_name_or_path") or "")


def _reasons(adapter: Adapter, base: str) -> Iterator[str]:
    # Nothing below can be read of an adapter that is no LoRA.
    unsupported = adapter.unsupported()
    if unsupported:
        yield unsupported
        return
    config = adapter.config
    if config.get("use_dora"):
        yield "it is DoRA"
    if config.get("bias", "none") != "none":
        yield "it has trained biases"
    if config.get("target_parameters"):
        yield "it adapts parameters of experts, which vLLM reads for some models only"
    if config.get("fan_in_fan_out"):
        yield "its base stores weights as (in, out), for which vLLM has no LoRA"
    if recorded_chain(adapter.folder):
        yield "it lies upon other adapters"
    if adapter.manifest.get("rope"):
        yield "it was trained on other rotary positions than those of its base"
    yield from _reasons_of_tensors(adapter, base)


def _reasons_of_tensors(adapter: Adapter, base: str) -> Iterator[str]:
    whole = sorted(_replaced(adapter, base))
    if whole:
        yield f"it has weights trained whole ({', '.join(whole[:3])}{', ...' if len(whole) > 3 else ''})"
    if recorded_growth(adapter.manifest) is not None:
        yield "its vocabulary has grown beyond that of its base"
    tables = sorted({name for module in adapter.modules for name in _TABLES if module.name.endswith(name)})
    if tables and f"{_TABLES[1]}.weight" not in stored_tensors(base):
        yield f"it adapts {' and '.join(tables)}, which are one matrix in its base"
    rank = max((_rank(module) for module in adapter.modules if any(module.matrices)), default=0)
    if rank > LARGEST_RANK:
        yield f"its rank is {rank}, vLLM takes {LARGEST_RANK} at most"


def _replaced(adapter: Adapter, base: str) -> set[str]:
    """Parameters that the adapter brings whole and that are not those of its base (peft saves embeddings unasked)."""
    before = stored_tensors(base) if Path(base).is_dir() else {}
    found = set()
    for name, stored in adapter.replaced.items():
        # A tied head is stored under the embedding's name alone.
        same = before.get(name) or before.get(name.replace("lm_head", "model.embed_tokens"))
        if same is None or same.shape != stored.shape or not torch.equal(read_tensor(same), read_tensor(stored)):
            found.add(name)
    return found


def write_served_adapter(folder: Path, output: Path, args: ServedAdapterArguments) -> dict[str, Any]:
    """Write the adapter with one rank and one scale for all modules, all that vLLM reads, and say how to serve it.

    Returns:
        `rank`, `alpha`, `modules` (their number), `dtype` and `base`, and the difference of logits where both are here.
    """
    adapter = read_adapter(folder, 1.0, _FLAG)
    base = base_of(adapter, args)
    rank, alpha, tensors = _plain(adapter)
    output.mkdir(parents=True, exist_ok=True)
    # Full names, no patterns: peft then adapts exactly these when the result is read back.
    modules = sorted(module.name for module in adapter.modules)
    LoraConfig(
        r=rank,
        lora_alpha=int(alpha) if alpha == int(alpha) else alpha,  # peft's field says int; fractions work
        target_modules=modules,
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        inference_mode=True,
    ).save_pretrained(str(output))
    save_file(tensors, output / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    local = Path(base).is_dir()
    has_tokenizer = (folder / "tokenizer_config.json").is_file()
    if has_tokenizer or local:
        source = folder if has_tokenizer else base
        pretrained(AutoTokenizer, source, trust_remote_code=args.trust_remote_code).save_pretrained(output)
    _say(adapter, base, rank, str(args.output_dir))
    figures = {"rank": rank, "alpha": alpha, "modules": len(modules), "dtype": "float32", "base": base}
    return figures | (_difference(base, folder, output, args) if args.verify and local else {})


def _matrices(module: AdaptedModule) -> tuple[StoredTensor, StoredTensor]:
    a, b = module.matrices
    assert a is not None and b is not None, f"{module.name} has no low-rank matrices"
    return a, b


def _rank(module: AdaptedModule) -> int:
    return _matrices(module)[0].shape[0]


def _plain(adapter: Adapter) -> tuple[int, float, dict[str, torch.Tensor]]:
    """Rank, alpha and tensors that mean the same without patterns and rsLoRA: W + alpha/rank B A for every module."""
    scales = {module.name: adapter.scale(module.name, _rank(module)) for module in adapter.modules}
    ranks = {module.name: _rank(module) for module in adapter.modules}
    rank = max(ranks.values())
    # If all are alike the matrices stay bit for bit; else scale moves into B, so that alpha / rank is 1.
    alike = len(set(scales.values())) == len(set(ranks.values())) == 1
    alpha = next(iter(scales.values())) * rank if alike else float(rank)
    tensors: dict[str, torch.Tensor] = {}
    for module in adapter.modules:
        down, up = map(read_tensor, _matrices(module))
        if not alike:
            # Rows of A and columns of B that are 0 add nothing to B A. B is multiplied in float32 and rounded once.
            down = torch.nn.functional.pad(down, (0, 0, 0, rank - down.shape[0]))
            up = torch.nn.functional.pad((up.float() * scales[module.name]).to(up.dtype), (0, rank - up.shape[1]))
        suffixes = (
            ("lora_embedding_A", "lora_embedding_B") if module.is_embedding else ("lora_A.weight", "lora_B.weight")
        )
        tensors |= {f"{PREFIX}{module.name}.{name}": value for name, value in zip(suffixes, (down, up), strict=True)}
    return rank, alpha, tensors


def _say(adapter: Adapter, base: str, rank: int, output: str) -> None:
    if adapter.manifest.get("quantisation"):
        notice("the adapter was trained on a quantised base; vLLM puts it on the whole one unless it quantises as well")
    if any(module.name.endswith(_TABLES) for module in adapter.modules):
        notice("the adapter changes embeddings or head, which vLLM takes for some architectures only")
    if extra := sorted(adapter.replaced):
        notice(f"left out, as they are those of the base: {', '.join(extra)}")
    name = Path(output).name
    get_logger().info(
        # vLLM takes only these values of --max-lora-rank, and 16 if none is given.
        "serve it: vllm serve %s --enable-lora --lora-modules %s=%s --max-lora-rank %d",
        *(base, name, output, next(known for known in (8, 16, 32, 64, 128, 256, 320, 512) if known >= rank)),
    )


def _difference(base: str, folder: Path, output: Path, args: ServedAdapterArguments) -> dict[str, float]:
    said = []
    for adapter in (folder, output):
        # The base is loaded each time, for peft changes its modules in place.
        model = PeftModel.from_pretrained(load(Path(base), args.trust_remote_code), str(adapter))
        speaker = Path(output if (output / "tokenizer_config.json").is_file() else base)
        said.append(logits_of(model.eval(), speaker, args.trust_remote_code))
    return distance(*said)
