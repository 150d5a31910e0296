"""What surrounds a run: GPUs and what torch makes of them, processors, memory, folders, limits and variables."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from huggingface_hub import constants as hub

from hftune import child_processes
from hftune.distributed import launch
from hftune.distributed.launch import supports_bf16
from hftune.models.attention.machine import has_varlen
from hftune.preflight.free_memory import cgroup_free
from hftune.tools.doctor.findings import NOTE, WRONG, Finding
from hftune.user_cache import cache_folder

GPU, HOST = "GPU", "machine"
GIB = 2**30
BUSY = 0.1
"""Share of a GPU's memory in use by others that is worth a word."""
FOLDERS, VARIABLES = "folders", "environment"
LITTLE = 20 * GIB
"""A 7B model in 16 bit takes 15 GB."""
# Workers of data loaders hand tensors over by file descriptors, some for every batch that waits.
FEW_FILES = 1024
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
TOLD = ("HF_HUB_OFFLINE", "HF_ENDPOINT", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "DS_ACCELERATOR", "HFTUNE_CACHE")
STARTS = ("NCCL_", "GLOO_", "TORCH_NCCL_", "PYTORCH_", "ACCELERATE_")


@dataclass(frozen=True)
class Gpu:
    """One GPU as torch sees it; memory in bytes."""

    name: str
    capability: tuple[int, int]
    total: int
    free: int


@dataclass(frozen=True)
class Gpus:
    """GPUs, driver and torch's build, as found on this machine.

    Args:
        driver: The version of NVIDIA's driver; None without one.
        built_for: The CUDA version that torch was built for; None for a CPU build.
        error: Why torch sees none, in torch's words.
        seen: Those that torch sees.
        bf16: Whether they compute in it.
        varlen: Whether torch's own FlashAttention for rows of several documents runs here.
        visible: CUDA_VISIBLE_DEVICES, where it is set.
    """

    driver: str | None = None
    built_for: str | None = None
    error: str | None = None
    seen: list[Gpu] = field(default_factory=list)
    bf16: bool = True
    varlen: bool = True
    visible: str | None = None


def gpus() -> Gpus:
    """What the driver and torch say of the GPUs."""
    driver = _driver()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    error = None
    if torch.version.cuda and not torch.cuda.is_available():
        try:
            # `is_available` hides why there is no GPU; `init` raises with the reason.
            torch.cuda.init()
        except (RuntimeError, AssertionError) as caught:
            error = " ".join(str(caught).split())[:200]
    if not torch.cuda.is_available():
        return Gpus(driver, torch.version.cuda, error, visible=visible)
    seen = []
    for number in range(torch.cuda.device_count()):
        about, (free, total) = torch.cuda.get_device_properties(number), torch.cuda.mem_get_info(number)
        seen.append(Gpu(about.name, (about.major, about.minor), total, free))
    return Gpus(driver, torch.version.cuda, None, seen, supports_bf16(), has_varlen(), visible)


def _driver() -> str | None:
    """The version of NVIDIA's driver."""
    if child_processes.program("nvidia-smi"):
        # With a broken driver nvidia-smi may hang; its version is not worth waiting for.
        with suppress(OSError, child_processes.TimeoutExpired):
            asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            done = child_processes.run(asked, capture_output=True, timeout=30)
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout.split()[0]
    return None


def check_gpus(found: Gpus) -> Iterator[Finding]:
    """A finding for each GPU, and for what limits them together."""
    if not found.seen:
        yield _none_seen(found)
        return
    for number, gpu in enumerate(found.seen):
        major, minor = gpu.capability
        size = f"{gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB free"
        said = f"{number}: {gpu.name}, {size}, compute capability {major}.{minor}"
        used = 1 - gpu.free / gpu.total
        if used > BUSY:
            fix = "see who with nvidia-smi, or name other GPUs in CUDA_VISIBLE_DEVICES or --include"
            yield Finding(GPU, f"{said}: {used:.0%} is in use by others", NOTE, fix)
        else:
            yield Finding(GPU, said)
    # Each process of ZeRO has a shard of the same size and waits for all others at each step.
    if len({(gpu.name, gpu.total) for gpu in found.seen}) > 1:
        fix = "train on those that are alike: all wait for the slowest, and the smallest memory decides"
        yield Finding(GPU, "the GPUs are not alike", NOTE, fix)
    if not found.bf16:
        fix = "use --fp16, or float32 with 4-bit bases; --bf16 is refused"
        yield Finding(GPU, "no bf16 before compute capability 8.0", NOTE, fix)
    if not found.varlen:
        said = "torch's FlashAttention does not run here: rows of several documents are computed a document at a time"
        yield Finding(GPU, said, NOTE, "a torch of 2.11 or newer for this GPU, or flash-attn")


def _none_seen(found: Gpus) -> Finding:
    if found.driver is None:
        return Finding(GPU, "none; everything runs on the CPU")
    here = f"NVIDIA's driver {found.driver} is here"
    # From the surest cause to the weakest: a CPU build sees no GPU whatever the variables say.
    if found.built_for is None:
        said = f"{here}, and torch {torch.__version__} is a build without CUDA"
        return Finding(GPU, said, WRONG, "install torch's build for CUDA")
    if found.visible is not None:
        said = f"{here}, and CUDA_VISIBLE_DEVICES={found.visible!r} hides the GPUs"
        return Finding(GPU, said, WRONG, "unset CUDA_VISIBLE_DEVICES")
    said = f"{here}, and torch (for CUDA {found.built_for}) sees no GPU: {found.error or 'no reason given'}"
    return Finding(GPU, said, WRONG, "a newer driver, or a torch for an older CUDA; in a container: --gpus all")


def check_host(*, has_gpu: bool) -> Iterator[Finding]:
    """Findings about processors and memory that this process may use, and about what DeepSpeed can compile here."""
    # `cpu_count` counts the machine's cores; containers, taskset and SLURM bind a process to fewer.
    usable, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    memory = psutil.virtual_memory()
    # psutil reads the whole machine's figures, also in a container that may use less.
    free = min([memory.available, *cgroup_free()])
    cores = f"{usable} core(s)" if usable == there else f"{usable} of {there} cores"
    limited = f"; a limit on this process or container leaves {free / GIB:.1f}" if free < memory.available else ""
    yield Finding(HOST, f"{cores}, {memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free{limited}")
    if not launch.can_build_operators():
        said = "no C++ compiler, or no ninja: DeepSpeed cannot compile what offloading to the CPU or NVMe needs"
        yield Finding(HOST, said, NOTE, "install g++ and ninja, for ds_configs/*_offload.json")
    # Where torch looks for the toolkit: CUDA_HOME, else nvcc on PATH.
    elif has_gpu and shutil.which("nvcc") is None and "CUDA_HOME" not in os.environ:
        said = "no nvcc: DeepSpeed cannot compile its operators for GPUs (ZeRO++, NVMe, DeepCompile)"
        fix = "install the CUDA toolkit and set CUDA_HOME, for zero3_zeropp, zero3_nvme and zero3_deepcompile"
        yield Finding(HOST, said, NOTE, fix)
    # Docker gives a container 64 MiB there unless it is told otherwise.
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).total < GIB:
        size = shutil.disk_usage(shared).total / 2**20
        said = f"/dev/shm has {size:.0f} MiB: NCCL and data loaders with workers want more"
        yield Finding(HOST, said, NOTE, "start the container with --shm-size 8g or --ipc host")


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
