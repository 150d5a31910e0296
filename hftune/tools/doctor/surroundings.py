"""Folders, limits and environment variables around a run."""

from __future__ import annotations

import resource
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from huggingface_hub import constants as hub

from hftune.tools.doctor.findings import NOTE, WRONG, Finding
from hftune.user_cache import cache_folder

FOLDERS, VARIABLES = "folders", "environment"
GIB = 2**30
LITTLE = 20 * GIB
"""A 7B model in 16 bit takes 15 GB."""
# Workers of data loaders hand tensors over by file descriptors, some for every batch that waits.
FEW_FILES = 1024
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
TOLD = ("HF_HUB_OFFLINE", "HF_ENDPOINT", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "DS_ACCELERATOR", "HFTUNE_CACHE")
STARTS = ("NCCL_", "GLOO_", "TORCH_NCCL_", "PYTORCH_", "ACCELERATE_")


def folders(named: Iterable[str]) -> dict[str, Path]:
    """Folders that a run writes into, by what it keeps there; `named` are folders for results."""
    return {
        "models and data of the hub (HF_HOME)": Path(hub.HF_HOME),
        "tokenised records (HFTUNE_CACHE)": cache_folder(),
        "temporary files (TMPDIR)": Path(tempfile.gettempdir()),
        **{f"results ({name})": Path(name) for name in (named or ["."])},
    }


def check_folders(found: Mapping[str, Path]) -> Iterator[Finding]:
    """Whether a file can be written into each folder, and how much space there is. Nothing is left there."""
    for what, folder in found.items():
        # A run makes the folder itself: what counts is the nearest one that exists.
        there = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
        try:
            # Only writing shows quotas, full disks and network mounts as well as permissions.
            with tempfile.TemporaryFile(dir=there) as file:
                file.write(b"hftune")
        except OSError as error:
            said = f"{what}: {folder} cannot be written to ({error.strerror})"
            yield Finding(FOLDERS, said, WRONG, "fix its rights, or name another one")
            continue
        free = shutil.disk_usage(there).free
        said = f"{what}: {folder}, {free / GIB:.0f} GiB free"
        if free < LITTLE:
            fix = "a checkpoint of full training takes 14 bytes a parameter, a 7B model in 16 bit 15 GB"
            yield Finding(FOLDERS, said, NOTE, fix)
        else:
            yield Finding(FOLDERS, said)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FEW_FILES:
        said = f"at most {soft} open files: data loaders with workers may run out"
        yield Finding(FOLDERS, said, NOTE, "ulimit -n 65536")


def check_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Environment variables that change a run, and those of a launcher where none is at work."""
    left = [name for name in LAUNCHED if name in environment]
    if left:
        names = ", ".join(f"{name}={environment[name]}" for name in left)
        said = f"{names}: a script started by hand would take itself for one of several processes and wait"
        yield Finding(VARIABLES, said, WRONG, f"unset {' '.join(left)}")
    told = [name for name in environment if name in TOLD or name.startswith(STARTS)]
    if told:
        yield Finding(VARIABLES, "set: " + ", ".join(f"{name}={environment[name]}" for name in sorted(told)))
    # The values that huggingface_hub takes for true.
    offline = environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    if offline:
        said = "HF_HUB_OFFLINE: models and data must be folders, or in the hub's cache already"
        yield Finding(VARIABLES, said, NOTE, "unset it where the hub can be reached")
    if not told and not left:
        yield Finding(VARIABLES, "nothing is set that changes a run")
