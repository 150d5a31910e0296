"""Whether folders hold what they are named for: a model, and an adapter that belongs to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from hftune.arguments.model import ModelArguments
from hftune.checkpoints.folder_checks import check_recorded_base, whole_chain
from hftune.checkpoints.manifest import read_manifest
from hftune.distributed import zero
from hftune.errors import ArgumentError, ManifestError, UserError
from hftune.models.adapters.folding import read_lora_config
from hftune.models.classes import causal_class
from hftune.models.loading.from_pretrained import from_config, pretrained
from hftune.models.loading.quantisation import quantisation_in
from hftune.models.loading.stored_weights import places, rules_of
from hftune.opening.model_files import read_checked
from hftune.path_hints import looks_local, missing_folder, not_an_adapter
from hftune.weight_files import weight_shapes


def check_model_folder(model_args: ModelArguments) -> Iterator[UserError]:
    """Problems of `--model_name_or_path`: none was named, or its folder holds no model, or an adapter alone."""
    name = model_args.model_name_or_path
    if not name:
        yield ArgumentError(
            "no model was named",
            place="--model_name_or_path",
            fix="add --model_name_or_path with a model folder or a Hub name, such as Qwen/Qwen3-0.6B",
        )
        return
    folder = Path(name)
    # owner/name may be a folder or a Hub name: only what looks like a path must be there.
    if (looks_local(name) or folder.exists()) and not folder.is_dir():
        yield missing_folder(name, "--model_name_or_path", "a model folder or a name on the Hub")
    elif (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        base = _base_of_adapter(folder)
        yield ArgumentError(
            f"{name} holds a LoRA adapter, not a model",
            place="--model_name_or_path",
            fix=f"merge it first: python merge_peft_adapter.py --base_model_name_or_path {base} "
            f"--peft_model_path {name} --output_dir MERGED; or continue it: --model_name_or_path {base} "
            f"--peft_path {name}",
        )
    elif folder.is_dir() and not (folder / "config.json").is_file():
        yield no_model_in(folder)


def no_model_in(folder: Path) -> ArgumentError:
    """The error for a folder without a config, which names models below it."""
    return ArgumentError(
        f"{folder} has no config.json, so it is no model folder",
        place="--model_name_or_path",
        fix=_models_below(folder) or "give a folder with config.json, weights and tokenizer, or a Hub name",
    )


def _models_below(folder: Path) -> str:
    """A phrase that names the newest models within a folder; empty for none."""
    # The likeliest is the newest: an output folder of a run holds its checkpoints.
    found = sorted(folder.glob("*/config.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    return f"give {' or '.join(str(file.parent) for file in found[:3])}" if found else ""


def base_and_adapters(name: str, flag: str) -> tuple[str, list[str]]:
    """Folder or Hub name of a model's weights, and the folders of the adapters upon them, the one next to them first.

    Raises:
        ArgumentError: An adapter whose config cannot be read.
    """
    if not (Path(name) / "adapter_config.json").is_file():
        return name, []
    # The manifest knows the base by the name that was given, PEFT's config by what it was when the adapter was saved.
    recorded = (read_manifest(name) or {}).get("base", {}).get("name")
    return str(recorded or read_lora_config(name, flag).base_model_name_or_path), whole_chain([name])


def _base_of_adapter(folder: Path) -> str:
    """The base that an adapter's config names."""
    config = read_checked(folder / "adapter_config.json")
    return str(config.get("base_model_name_or_path") or "BASE")


_PEFT_PREFIX = "base_model.model."


def check_adapter_fits(base: str, adapter: str, flag: str) -> Iterator[UserError]:
    """Problems of using the adapter in folder `adapter` on the model `base`.

    The fingerprint of the base that the adapter's manifest recorded is the strictest test. Without a manifest (an
    adapter from elsewhere, or a base on the Hub) the shapes must fit, and another name is only said.
    """
    config_file = Path(adapter) / "adapter_config.json"
    if not config_file.is_file():
        yield not_an_adapter(adapter, flag)
        return
    yield from _shape_problems(base, adapter, flag)
    yield from check_recorded_base(base, adapter, flag)


def _shape_problems(base: str, adapter: str, flag: str) -> Iterator[UserError]:
    """A problem that names the first LoRA matrix whose module the base lacks, or has in another shape."""
    base_shapes = {} if quantisation_in(base) else _by_module(base, weight_shapes(base))
    if not base_shapes:
        return  # on the Hub, packed, or in another format: peft compares when it loads
    wrong = list(_misfits(base_shapes, weight_shapes(adapter)))
    if wrong:
        yield ManifestError(
            f"the adapter in {adapter} does not fit {base}: {wrong[0]}"
            + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""),
            place=flag,
            fix="give the model that the adapter was trained on",
        )


def _by_module(base: str, stored: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Shapes under the names on disk, and under those that transformers gives modules while it reads (Mixtral's)."""
    # Code that comes with a model is not run to compare names.
    if not stored or read_checked(Path(base) / "config.json").get("model_type") not in CONFIG_MAPPING:
        return stored
    config = pretrained(AutoConfig, base, trust_remote_code=False)
    if causal_class(config) is None:
        return stored
    with zero.no_partitioning(), torch.device("meta"), no_init_weights():
        model = from_config(AutoModelForCausalLM, config, trust_remote_code=False)
    return stored | {name: stored[one] for one, name, pattern in places(model, stored, rules_of(model)) if not pattern}


def _misfits(base: dict[str, tuple[int, ...]], adapter: dict[str, tuple[int, ...]]) -> Iterator[str]:
    for name, shape in adapter.items():
        if not name.endswith((".lora_A.weight", ".lora_B.weight")):
            continue
        module, which = name.removeprefix(_PEFT_PREFIX).rsplit(".lora_", 1)
        if "expert" in module:
            continue  # files hold an expert a tensor, models all of a layer in one: peft compares when it loads
        weight = _shape_of(base, f"{module}.weight")
        if weight is None:
            yield f"{module} is not in the base"
        # A is (r, in), B is (out, r), the base's weight (out, in); embeddings are the other way round.
        elif (which.startswith("A") and shape[-1] not in weight) or (which.startswith("B") and shape[0] not in weight):
            yield f"{module} is {weight} in the base, its adapter has {shape}"


def _shape_of(base: dict[str, tuple[int, ...]], name: str) -> tuple[int, ...] | None:
    """The shape of a weight in the base's files; None without one.

    Files are saved with and without the names of outer modules: `transformer.h.0` of the model is `h.0` in GPT-2's.
    """
    parts = name.split(".")
    shorter = (".".join(parts[first:]) for first in range(max(1, len(parts) - 2)))
    found = next((part for part in shorter if part in base), None)
    return base[found] if found else next((base[one] for one in base if one.endswith(f".{name}")), None)
