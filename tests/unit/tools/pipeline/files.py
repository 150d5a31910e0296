"""Finished results made by hand, so that no stage has to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hftune
from hftune.checkpoints.file_records import record_result
from hftune.checkpoints.inputs import record_inputs
from hftune.checkpoints.manifest import COMPLETE, read_manifest, write_manifest
from hftune.tools.pipeline.spec import read_spec
from hftune.tools.pipeline.steps import COMMANDS, MERGE, Step, steps_of
from hftune.weight_files import fingerprint


def steps(folder: Path, text: str) -> list[Step]:
    """Steps of a pipeline file with this text."""
    file = folder / "pipeline.yaml"
    file.write_text(text, encoding="utf-8")
    return steps_of(read_spec(file))


def by_name(found: list[Step]) -> dict[str, Step]:
    return {step.name: step for step in found}


def finish(step: Step, status: str = COMPLETE, **more: Any) -> None:
    """What a run of the step leaves: a weight that depends on its arguments, and the manifest."""
    step.folder.mkdir(parents=True, exist_ok=True)
    (step.folder / "config.json").write_text("{}")
    (step.folder / "model.safetensors").write_text(str(step.argv))
    arguments: dict[str, Any] = {"training": {}, "adapter": {}}
    if step.script == MERGE:
        from hftune.arguments.merging import parse_merge_arguments

        arguments = vars(parse_merge_arguments(step.argv))
    adapter = step.arguments.get("peft_model_path", [None])[0]
    under = (read_manifest(adapter) or {}).get("base", {}).get("name") if adapter else None
    base = step.arguments.get("model_name_or_path", [under])[0]
    manifest = {
        "hftune": hftune.__version__,
        "stage": step.script,
        "status": status,
        "command": _command(step),
        "arguments": arguments,
        "inputs": record_inputs(step.argv),
        "base": {"name": base, "fingerprint": fingerprint(base)} if base else {},
        "parents": [{"folder": adapter, "fingerprint": fingerprint(adapter)}] if adapter else [],
        "files": record_result(step.folder),
        **more,
    }
    write_manifest(step.folder, manifest)


def _command(step: Step) -> list[str]:
    if step.script in COMMANDS:
        return ["hftune", step.script, *step.argv]
    return [f"run_{step.script}.py", "--local_rank=0", *step.argv, "--resume_from_checkpoint", "auto"]


def model(folder: Path) -> Path:
    """Something that looks like a model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text("base")
    return folder
