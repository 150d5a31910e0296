"""`hftune.json`: where an output folder came from, and what the run was before, so that nobody need be told again.

Written atomically and last: a folder whose manifest says `complete` holds a finished result.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hftune.checkpoints.file_records import result_files
from hftune.compat.checking import installed
from hftune.constants import MANIFEST_NAME
from hftune.opening.files import read_bytes
from hftune.opening.model_files import read_checked
from hftune.publishing.disk import write_file
from hftune.publishing.ownership import WRITTEN, record_written
from hftune.secrets import redacted

Manifest = dict[str, Any]

STARTED_IN = "started_in"
"""The key of the folder, relative to the result, in which the command ran: its paths are relative to that."""

RUNNING, INTERRUPTED, CHECKPOINT, COMPLETE = "running", "interrupted", "checkpoint", "complete"
"""Status of a folder: in work, or left behind by a process that was killed; stopped on demand, with a checkpoint; a
checkpoint's; a finished result."""
SETTINGS = (
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "num_train_epochs", "max_steps"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "weight_decay", "optim", "max_length"),
    *("block_size", "distill_mode", "beta", "seed"),
)
"""Arguments of training that people ask for first."""
_LIBRARIES = ("torch", "transformers", "trl", "peft", "deepspeed", "accelerate", "datasets", "bitsandbytes", "hftune")


def read_manifest(folder: str | Path | None) -> Manifest | None:
    """The manifest of a folder, or None where there is none.

    Raises:
        ManifestError: The file is there and cannot be read.
    """
    file = Path(folder or "") / MANIFEST_NAME
    if not folder or not file.is_file():
        return None
    return read_checked(file, fix="fix or delete it; without it the folder is treated like any other model")


def write_manifest(folder: str | Path, manifest: Manifest) -> Path:
    """Write the manifest alongside the weights, durably, whole or not at all; without any secret."""
    file = Path(folder) / MANIFEST_NAME
    if manifest.get("inputs"):
        # One that is written again elsewhere keeps its own; a run's is another one in each of its folders.
        manifest = {STARTED_IN: os.path.relpath(os.getcwd(), os.path.abspath(folder)), **manifest}
    # `default=str`: arguments hold paths and enumerations.
    write_file(file, json.dumps(redacted(manifest), indent=2, ensure_ascii=False, default=str) + "\n")
    return file


def from_here(path: str, folder: str | Path, manifest: Manifest) -> str:
    """A path that the manifest of a folder names, as it is reached from here; as it is where nothing is there."""
    started = manifest.get(STARTED_IN)
    if not isinstance(started, str) or Path(path).is_absolute():
        return path
    found = os.path.relpath(os.path.join(os.path.abspath(folder), started, path))
    return path if not os.path.exists(found) or os.path.realpath(found) == os.path.realpath(path) else found


def finish_manifest(folder: Path, manifest: Manifest, files: Iterable[str] | None = None) -> Manifest:
    """Write the manifest of a folder to which nothing will be added, with records of all its files.

    `written` records every file, by which hftune knows the folder as its own; `files` those that make the result.

    Args:
        files: The names of these; None: all that make a model or its data.
    """
    # Before the manifest itself is written, which cannot hold its own digest.
    manifest[WRITTEN] = record_written(folder)
    manifest["files"] = {name: manifest[WRITTEN][name] for name in files or result_files(folder)}
    write_manifest(folder, manifest)
    return manifest


def is_complete(folder: str | Path | None) -> bool:
    """Whether a folder holds a finished result of hftune."""
    manifest = read_manifest(folder)
    return manifest is not None and manifest.get("status") == COMPLETE


def text_fingerprint(text: str) -> str:
    """Sixteen hex digits of a text's sha256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def library_versions() -> dict[str, str]:
    """Versions of everything that shapes a result, Python included."""
    versions = {name: version for name in _LIBRARIES if (version := installed(name))}
    return {"python": platform.python_version(), **versions}


HISTORY = "history"
"""The key of a manifest under which the legs before the last stand, oldest first."""

_OF_A_LEG = ("command", "versions", "world_size", "machine", "data", "inputs")
# What is another one in each leg, and changes nothing of it.
_OF_A_START = {"resume_from_checkpoint", "resume_anyway", "overwrite_output_dir"}


def with_history(now: Manifest, then: Manifest, steps: int) -> Manifest:
    """The manifest of a run with the legs before it.

    Args:
        now: Of the run that resumes.
        then: Of the checkpoint.
        steps: That it has behind it.
    """
    leg = {name: then[name] for name in _OF_A_LEG if name in then} | {"until_step": steps}
    return now | {HISTORY: [*(then.get(HISTORY) or []), leg | {"changed": changed_arguments(then, now)}]}


def changed_arguments(then: Manifest, now: Manifest) -> dict[str, list[Any]]:
    """Arguments with another value than in an earlier leg: name to [then, now]."""
    # As `write_manifest` writes it: the other one was read.
    given = json.loads(json.dumps(redacted(now.get("arguments") or {}), default=str))
    return {
        name: [values[name], given[group][name]]
        for group, values in (then.get("arguments") or {}).items()
        for name in sorted((values.keys() & given.get(group, {}).keys()) - _OF_A_START)
        if values[name] != given[group][name]
    }


def same_records(then: Manifest, now: Manifest) -> bool:
    """Whether two legs train the same records, as far as their manifests say."""
    one, other = ((manifest.get("data") or {}).get("train") or {} for manifest in (then, now))
    if not one or one.get("fingerprint") == other.get("fingerprint"):
        return True
    # The fingerprint is also of hftune's version: after an update, by what the files hold and what became of them.
    return _records(then, one) == _records(now, other)


def trained_before(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Files with held-out records that an earlier stage has trained, by what they hold: file, and folder of that stage.

    Args:
        manifest: Of a run that begins; its base and its adapters are followed as far back as their manifests are there.
    """
    held = _contents(manifest, "eval")
    teachers = {str(one.get("name")) for one in manifest.get("teachers") or []}
    for folder, earlier in ancestors(manifest, teachers):
        legs = [*(earlier.get(HISTORY) or []), earlier]
        # What both splits of a leg are of was divided by the seed: the same records were held out then, most likely.
        seen = {one for leg in legs for one in {*_contents(leg, "train").values()} - {*_contents(leg, "eval").values()}}
        yield from ((file, folder) for file, digest in held.items() if digest in seen)


def ancestors(manifest: Manifest, seen: set[str] | None = None) -> Iterator[tuple[str, Manifest]]:
    """Every folder whose weights are in a run's, with its manifest, each once, the nearest first; none of `seen`."""
    seen = set() if seen is None else seen
    base = (manifest.get("base") or {}).get("name")
    for folder in [*(str(parent["folder"]) for parent in manifest.get("parents") or []), str(base or "")]:
        if folder not in seen and (found := read_manifest(folder)) is not None:
            seen.add(folder)
            yield folder, found
            yield from ancestors(found, seen)


def _records(manifest: Manifest, about: dict[str, Any]) -> list[Any]:
    """Digests of the training files in their order, their names where those are not known, and counts."""
    known = _contents(manifest, "train")
    counts = [about.get(name) for name in ("rows", "used", "dropped", "tokens", "trained_tokens", "packing")]
    return [[known.get(file, file) for file in about.get("files") or []], counts]


def _contents(manifest: Manifest, split: str) -> dict[str, str]:
    """Digests of the files of a split, of those that the manifest's inputs record."""
    known = {
        place: record[2]
        for path, recorded in (manifest.get("inputs") or {}).items()
        for name, record in (recorded.get("files") or {}).items()
        for place in (str(Path(path) / name), path if Path(path).name == name else "")
    }
    files = ((manifest.get("data") or {}).get(split) or {}).get("files") or []
    return {file: known[file] for file in files if file in known}


_CPUS = Path("/proc/cpuinfo")
_LARGEST = 16 << 20


def describe_machine() -> dict[str, Any]:
    """Processor, its widest instructions that torch uses, threads, GPU and its libraries; not the host's name."""
    import torch  # takes seconds, and reading a manifest needs none

    found: dict[str, Any] = {
        "system": platform.system(),
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        # Version of CUDA and cuDNN: they choose the kernels, and with them the order of sums.
        found |= {"gpu": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count()}
        found |= {"cuda": torch.version.cuda or torch.version.hip, "cudnn": torch.backends.cudnn.version()}
    return found


def processor(cpus: Path = _CPUS) -> str:
    """The model of the processor as the system names it."""
    if not cpus.is_file():
        return platform.processor() or platform.machine()
    for line in read_bytes(cpus, limit=_LARGEST).decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def settings(manifest: Manifest) -> dict[str, Any]:
    """The arguments that lineage, report and model card show: of training, and of the adapter."""
    groups = manifest.get("arguments") or {}
    training, adapter = groups.get("training") or {}, groups.get("adapter") or {}
    if not isinstance(training, dict):
        return {}
    # -1 is transformers' way to leave `max_steps` out.
    found = {name: training[name] for name in SETTINGS if training.get(name) not in (None, -1)}
    if found.get("max_steps"):
        found.pop("num_train_epochs", None)  # steps win
    if adapter.get("use_peft"):
        found |= {name: adapter[name] for name in ("lora_r", "lora_alpha") if name in adapter}
    if manifest.get("quantisation"):
        found["quantised"] = f"{manifest['quantisation']['bits']} bit"
    if manifest.get("world_size"):
        found["processes"] = manifest["world_size"]
    return found
