"""What a merge begins with, from files and before a weight is read: adapters, their base, a tokenizer.

What cannot be merged is refused here, as far as configs, manifests and names tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hftune.arguments.merging import MergeArguments
from hftune.checkpoints.folder_checks import chain_problems, check_recorded, check_recorded_base
from hftune.checkpoints.inputs import inputs_of
from hftune.constants import REWARD_SCALE_FIELD, STEP_LABELS, TOKENIZER_FILES
from hftune.errors import ArgumentError, ManifestError, UserError, raise_together
from hftune.logging import notice
from hftune.merging.adapters import Adapter, read_adapter
from hftune.models.loading.config_file import check_config, check_layers
from hftune.models.vocabulary import Growth, recorded_growth
from hftune.opening.files import unsafe_entries
from hftune.path_hints import cannot_load
from hftune.publishing.places import check_place
from hftune.weight_files import weight_files, weight_shapes

FLAG, BASE_FLAG = "--peft_model_path", "--base_model_name_or_path"
LARGEST_WEIGHT = 1_000
"""Of an adapter. Beyond it the merged model says nothing, and a typing error is likelier than a wish."""
_BASE_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.py")
# Repositories hold the same weights several times over.
_OTHER_FORMATS = ["consolidated*", "original/*", "onnx/*", "gguf/*"]


@dataclass(frozen=True)
class BaseFolder:
    """A base on this machine.

    Args:
        name: As it was given.
        folder: Its files.
        unsupported: Why its weights cannot be read tensor by tensor; None: they can.
    """

    name: str
    folder: Path
    unsupported: str | None = None


@dataclass(frozen=True)
class Inputs:
    """What is merged into what.

    Args:
        base: Where the base is.
        config: Its config.json, with the positions that training gave it.
        levels: Adapters one after another, the last level being what was asked for; those of a level side by side.
        tokenizer: The folder whose tokenizer goes along.
        scores: Labels of a reward model; None: a causal LM.
        dtype: Of all merged weights, as torch names it; None: each tensor keeps the base's.
        quantised: How training saw the base, as its manifest has it, with `compute`: the dtype that it was loaded in,
            which is also what its weights are dequantised to. None: as it is on disk.
        dequantise: Fold into what quantisation left of the base.
        trust_remote_code: Run code that comes with the base.
    """

    base: BaseFolder
    config: dict[str, Any]
    levels: list[list[Adapter]]
    tokenizer: Path
    scores: int | None = None
    dtype: str | None = None
    quantised: dict[str, Any] | None = None
    dequantise: bool = False
    trust_remote_code: bool = False

    @property
    def adapters(self) -> list[Adapter]:
        """All of them, in the order in which they were trained."""
        return [adapter for level in self.levels for adapter in level]

    @property
    def names(self) -> str:
        """The adapters' folders, for messages."""
        return ", ".join(str(adapter.folder) for adapter in self.adapters)

    @property
    def last(self) -> Adapter:
        """The adapter whose tokenizer and history count."""
        return self.levels[-1][-1]

    @property
    def growth(self) -> Growth | None:
        """How the vocabulary grew before training; the first adapter of a chain that says so."""
        recorded = (recorded_growth(adapter.manifest) for adapter in self.adapters)
        return next((growth for growth in recorded if growth is not None), None)

    @property
    def rope(self) -> dict[str, Any]:
        """How training stretched the base's positions (--rope_scaling): fields of the config, mostly none."""
        return _rope(self.adapters)

    @property
    def head(self) -> str:
        """causal_lm, score or steps, as `constants.TASK_TYPES` has them."""
        if self.scores is None:
            return "causal_lm"
        return "steps" if _scores_steps(self.last) else "score"

    @property
    def reward_scale(self) -> dict[str, Any] | None:
        """Of the merged model's scores: the adapter's own, unless it is merged in part or with others."""
        return None if self.weighs else self.last.manifest.get(REWARD_SCALE_FIELD)

    @property
    def weighs(self) -> bool:
        """Whether adapters count with weights, one or several beside each other."""
        level = self.levels[-1]
        return len(level) > 1 or level[0].weight != 1.0


def read_inputs(args: MergeArguments) -> Inputs:
    """Everything that the command names, and what the adapter's manifest adds to it.

    Raises:
        UserError: A missing or damaged adapter or base, or one that is not the adapter's; an output folder that cannot
            be written.
    """
    level = _adapters_asked_for(args)
    manifest, adapter_config = level[-1].manifest, level[-1].config
    name = args.base_model_name_or_path or (manifest.get("base") or {}).get("name")
    name = name or adapter_config.get("base_model_name_or_path")
    if not name:
        raise ArgumentError("the adapter does not name its base", place=BASE_FLAG, fix="name it")
    _refuse_lost_copy(name, manifest)
    levels = [*_adapters_below(level), level]
    # An adapter records the revision of its base on the Hub.
    base = find_base(name, adapter_config.get("revision"))
    folders = [adapter.folder for each in levels for adapter in each]
    # From here on all that is wrong is said at once; nothing has been written and no weight been read.
    read = [*inputs_of(args), base.folder, *folders]
    problems = check_place(args.output_dir, read, overwrite=args.overwrite_output_dir)
    below = [str(adapter.folder) for each in levels[:-1] for adapter in each]
    for adapter in level:
        problems += chain_problems([*below, str(adapter.folder)], FLAG)
        problems += _cannot_be_weighed(adapter) if len(level) > 1 or adapter.weight != 1.0 else []
        problems += check_recorded_base(name, str(adapter.folder), FLAG)
    if args.merge_base == "dequantized" and not manifest.get("quantisation"):
        problems += [
            ArgumentError(
                "the adapter's manifest names no quantisation, so there is nothing to dequantise",
                place="--merge_base",
                fix="leave it out; QLoRA adapters trained by hftune know theirs",
            )
        ]
    raise_together(problems)
    config = read_config(base.folder)
    tokenizer = find_tokenizer(args.tokenizer_path, folders, base.folder)
    if base.unsupported is None:
        check_layers(config, weight_shapes(base.folder), base.name, BASE_FLAG)
    rope = _rope([adapter for each in levels for adapter in each])
    if rope:
        config = with_rope(config, rope)
        notice("the adapter was trained with --rope_scaling: the merged config has its positions")
    quantised, dequantise = _quantisation(level[-1]), args.merge_base == "dequantized"
    if quantised is not None:
        notice(
            f"the adapter was trained on a base in {quantised['bits']} bit; it is merged into "
            + ("what that left of the weights" if dequantise else "the original weights (--merge_base original)")
        )
    return Inputs(
        base,
        config,
        levels,
        tokenizer,
        scores=_labels(level[-1]),
        dtype=None if args.dtype == "auto" else args.dtype,
        quantised=quantised,
        dequantise=dequantise,
        trust_remote_code=args.trust_remote_code,
    )


# --- adapters --------------------------------------------------------------------------------------------------------


def _adapters_asked_for(args: MergeArguments) -> list[Adapter]:
    """The adapters of the command line with their weights."""
    if not args.adapters:
        raise ArgumentError("no adapter was named", place=FLAG, fix="give a folder with adapter_config.json")
    weights = [1.0] * len(args.adapters)
    if args.adapter_weights:
        try:
            weights = [float(weight) for weight in args.adapter_weights.split(",")]
        except ValueError as error:
            raise ArgumentError(str(error), place="--adapter_weights", fix="write numbers: 0.5,0.5") from error
        if not all(abs(weight) <= LARGEST_WEIGHT for weight in weights):  # NaN is not
            cause = f"{args.adapter_weights}: a weight lies between -{LARGEST_WEIGHT} and {LARGEST_WEIGHT}"
            raise ArgumentError(cause, place="--adapter_weights", fix="write numbers: 0.5,0.5")
    if len(weights) != len(args.adapters):
        raise ArgumentError(
            f"{len(args.adapters)} adapters and {len(weights)} weights", place="--adapter_weights", fix="one for each"
        )
    if len(weights) > 1 and not args.adapter_weights:
        notice(f"{len(weights)} adapters are added with weight 1 each; --adapter_weights gives others")
    found: list[Adapter] = []
    problems: list[UserError] = []
    for folder, weight in zip(args.adapters, weights, strict=True):
        try:
            found.append(read_adapter(folder, weight, FLAG))
        except UserError as error:
            problems.append(error)
    raise_together(problems)
    return found


def _cannot_be_weighed(adapter: Adapter) -> list[UserError]:
    """A weight is one of low-rank matrices: what was trained in full, and DoRA's lengths, are no sum."""
    whole = next(iter(adapter.replaced), None) or ("its magnitudes (DoRA)" if adapter.config.get("use_dora") else None)
    if adapter.config.get("trainable_token_indices"):
        whole = "rows of single tokens"
    if whole is None and adapter.config.get("peft_type") == "LORA":
        return []
    cause = f"{adapter.folder} is more than LoRA ({whole or adapter.config.get('peft_type')}), which has no weights"
    return [ArgumentError(cause, place="--adapter_weights", fix="merge that adapter alone, and the others after it")]


def _adapters_below(level: list[Adapter]) -> list[list[Adapter]]:
    """The adapters that lay on the base while these were trained, from their manifests."""
    chains = [(adapter.manifest.get("base") or {}).get("adapters") or [] for adapter in level]
    if any(chain != chains[0] for chain in chains):
        raise ManifestError(
            "the adapters were trained on different adapters: " + " / ".join(map(str, chains)),
            place=FLAG,
            fix="merge them one after another",
        )
    if chains[0]:
        notice(f"the adapter was trained on top of {', '.join(map(str, chains[0]))}, merged first")
    return [[read_adapter(folder, 1.0, f"{level[0].folder}/hftune.json: base.adapters")] for folder in chains[0]]


def _labels(adapter: Adapter) -> int | None:
    """How many labels a reward model's head has; None for a causal LM."""
    if adapter.config.get("task_type") not in ("SEQ_CLS", "TOKEN_CLS") and adapter.manifest.get("head") != "score":
        return None
    heads = [stored for name, stored in adapter.replaced.items() if name.endswith("score.weight")]
    # A head that was not saved is the one that transformers draws: one score, or a label for each class of a step.
    return heads[0].shape[0] if heads else len(STEP_LABELS) if _scores_steps(adapter) else 1


def _scores_steps(adapter: Adapter) -> bool:
    return adapter.config.get("task_type") == "TOKEN_CLS"


def _quantisation(adapter: Adapter) -> dict[str, Any] | None:
    """How an hftune run quantised the base, from its manifest."""
    how = adapter.manifest.get("quantisation")
    if not how:
        return None
    arguments = adapter.manifest.get("arguments", {})
    training, model = arguments.get("training", {}), arguments.get("model", {})
    # The dtype that `--dtype auto` gave the base under QLoRA: that of mixed precision.
    compute = "bfloat16" if training.get("bf16") else "float16" if training.get("fp16") else "float32"
    return {**how, "compute": compute if model.get("dtype", "auto") == "auto" else model["dtype"]}


def _rope(adapters: list[Adapter]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for adapter in adapters:
        found |= adapter.manifest.get("rope") or {}
    return found


def _refuse_lost_copy(name: str, manifest: dict[str, Any]) -> None:
    """Say what a recorded base was a copy of, where the copy is gone: on another machine, or out of the cache.

    Raises:
        ArgumentError: It is gone.
    """
    origin = (manifest.get("origins") or {}).get(name)
    if origin and not Path(name).exists():
        hub = "" if "://" in origin else " --hub modelscope"
        cause = f"the adapter was trained on a copy of {origin}, which is not here any more"
        raise ArgumentError(cause, place=BASE_FLAG, fix=f"name it once more: {BASE_FLAG} {origin}{hub}")


def with_rope(config: dict[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    """A config.json with other positions; what older configs say of them next to `rope_parameters` is left out."""
    if "text_config" in config:
        return config | {"text_config": with_rope(config["text_config"], rope)}
    return {name: value for name, value in config.items() if name not in ("rope_scaling", "rope_theta")} | rope


# --- base and tokenizer ----------------------------------------------------------------------------------------------


def find_base(name: str, revision: str | None = None) -> BaseFolder:
    """Find a base, downloading it where it is a name on the Hub.

    Raises:
        UserError: Nothing there, nothing that can be reached, or files that changed after hftune wrote them.
    """
    path = Path(name)
    if path.suffix == ".gguf" and path.is_file():
        fix = f"make weights of it: from_pretrained({str(path.parent)!r}, gguf_file={path.name!r}).save_pretrained(NEW)"
        raise ArgumentError(f"{path.name} is a GGUF file", place=BASE_FLAG, fix=fix)
    if path.is_dir():
        folder = path
        # Every byte is compared with the manifest's digests: all of them are about to be read anyhow.
        raise_together(check_recorded(folder, BASE_FLAG))
    else:
        folder = _download(name, revision, BASE_FLAG, _BASE_FILES)
    return BaseFolder(name, folder, None if weight_files(folder) else "it has no safetensors files")


def _download(name: str, revision: str | None, flag: str, files: tuple[str, ...]) -> Path:
    """A snapshot of a Hub repository on this machine.

    Raises:
        ArgumentError: It cannot be reached, or there is no such name.
    """
    from huggingface_hub import snapshot_download

    from hftune.models.loading.from_pretrained import hub_is_silent

    wanted: dict[str, Any] = {"allow_patterns": list(files), "ignore_patterns": _OTHER_FORMATS}
    try:
        found = snapshot_download(name, revision=revision, local_files_only=hub_is_silent(name), **wanted)
    except (OSError, ValueError) as error:
        raise cannot_load(name, error, flag, "model") from error
    return Path(found)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a base, as it lies there.

    Raises:
        ArgumentError: There is none, or it is none of a model.
    """
    if not (folder / "config.json").is_file():
        raise ArgumentError(
            f"no model could be loaded from {folder}: it has no config.json",
            place=BASE_FLAG,
            fix="give the folder or Hub name of the base",
        )
    return check_config(folder, BASE_FLAG)


def find_tokenizer(asked: str | None, adapters: list[Path], base: Path) -> Path:
    """Where the merged model's tokenizer is: the folder asked for, the last adapter's own, or the base's.

    Raises:
        ArgumentError: No tokenizer in the folder asked for.
    """
    if asked:
        folder = Path(asked) if Path(asked).is_dir() else _download(asked, None, "--tokenizer_path", TOKENIZER_FILES)
        if not has_tokenizer(folder):
            raise ArgumentError(f"there is no tokenizer in {asked}", place="--tokenizer_path", fix="give its folder")
        raise_together(unsafe_entries(folder))
        return folder
    return next((folder for folder in reversed(adapters) if has_tokenizer(folder)), base)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer as transformers saves one."""
    return (folder / "tokenizer_config.json").is_file()
