"""Runs a folder's command once more in processes of its own, and says what came of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hftune import child_processes
from hftune.checkpoints.manifest import Manifest, read_manifest
from hftune.errors import ArgumentError, ManifestError, raise_together
from hftune.tools.reporting.shapes import written_by_hftune
from hftune.tools.reporting.stages import read_progress
from hftune.tools.reproducing.again import changed_inputs, stage_of_run, words_again
from hftune.tools.reproducing.compare import environment, steps_of, verdict
from hftune.tools.reproducing.trust import untrusted
from hftune.visible import say

_ROUNDING = 0.01
"""Relative: what sums in another order may make of a figure on a GPU, in bf16 and over some steps."""


def reproduced(folder: Path, output: Path, steps: int | None, tolerance: float, rest: list[str]) -> bool:
    """Whether a run gives what it gave; says so, or which step differs first and what is different now.

    Raises:
        UserError: The folder holds no run, or what the run needs is not there; or the new run fails.
    """
    manifest = read_manifest(folder)
    stage = stage_of_run(manifest, folder)
    assert manifest is not None, "`stage_of_run` has seen it"
    if output.resolve() == folder.resolve():
        raise ArgumentError("the new run needs a folder of its own", place="--output_dir", fix="name another folder")
    with written_by_hftune(folder, "the manifest or the log", "copy the folder again; nothing was started"):
        before = steps_of(lines := read_progress(folder))
        words = words_again(manifest, lines, folder, output, steps, rest) if before else []
        changed = changed_inputs(manifest, words)
        [*environment(manifest, {})]  # now, not after the run
        _processes(manifest)
    if not before:
        raise ArgumentError(f"{folder} has no log to compare with", place=str(folder), fix="there is none to reproduce")
    raise_together(untrusted(stage, words, rest))
    start(stage, manifest, words)
    now = steps_of(read_progress(output))
    same, said = verdict(before, now, tolerance)
    say("\n".join([f"{folder} and {output}: {said[0]}", *said[1:]]))
    made = read_manifest(output) or {}
    rounding = "gpu" in (made.get("machine") or {}) and not same and verdict(before, now, _ROUNDING)[0]
    _say_what_is_different([*changed, *environment(manifest, made)], same=same, rounding=rounding)
    return same


def _processes(manifest: Manifest) -> int:
    """How many processes made the run.

    Raises:
        ManifestError: More than this machine could bear.
    """
    world, most = int(manifest.get("world_size") or 1), 4 * (os.cpu_count() or 1)
    if not 1 <= world <= most:
        cause = f"the run was made by {world} processes, and this machine has {os.cpu_count()} processors"
        raise ManifestError(cause, place="world_size", fix="reproduce it where as many processes have room")
    return world


def start(stage: str, manifest: Manifest, words: list[str]) -> None:
    """Run the script on as many processes as the manifest says; its words go to the terminal."""
    world = _processes(manifest)
    processes = ["--nproc", str(world)] if world > 1 else ["--launcher", "none"]
    command = child_processes.python("-m", "hftune.cli", stage, *processes, *words)
    threads = (manifest.get("machine") or {}).get("threads")
    # How many threads share a sum decides its last bits; launchers choose one a process, a shell all of them.
    variables: dict[str, Any] = {"OMP_NUM_THREADS": str(threads)} if isinstance(threads, int) else {}
    code = child_processes.run(command, env=child_processes.environment() | variables).returncode
    if code:
        cause = f"the run ended with exit code {code} before it could be compared; its words are above"
        raise ArgumentError(cause, place=f"hftune {stage}", fix="see above; arguments can be added behind the folder")


def _say_what_is_different(found: list[str], *, same: bool, rounding: bool) -> None:
    if found:
        say("different now, without an effect on these numbers:" if same else "different now:")
        say("\n".join(f"  {line}" for line in found))
    elif rounding:
        say(f"a GPU adds up in any order, so that last bits differ: --tolerance {_ROUNDING:g} compares without them")
    elif not same:
        say("nothing that a manifest records is different: see what the run's own code, or the machine, does")
