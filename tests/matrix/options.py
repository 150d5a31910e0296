"""Arguments of a stage that a case can have beside its own: whatever the schema has with a switch or a choice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from hftune.tools.schema.stages import stage_schema
from tests.matrix.cases import DIMENSIONS, ONLINE, Case, all_cases
from tests.matrix.commands import script_of

LEFT_OUT = {
    "nothing but words": ("log_", "disable_tqdm", "print_"),
    "another machine, or a service": ("push_to_hub", "hub", "use_vllm", "vllm_", "trust_remote_code", "ddp_backend"),
    "another program, or minutes": ("torch_compile", "use_liger_kernel", "profile", "use_transformers_", "debug"),
    "the matrix's own": ("rl_algorithm", "train_sampling_strategy", "save_strategy", "logging_strategy", "bf16"),
    "does what must matter": ("ignore_data_skip", "save_only_model", "average_tokens_across_devices", "do_"),
    "dropout of an adapter, drawn anew by each process": ("defaults",),
    "counts the padding of a layout": ("include_num_input_tokens_seen",),
    "TRL's mean over a micro batch, which is said": ("use_adaptive_entropy",),
}
"""How names begin that no case gets, by why."""


def options(stage: str) -> Iterator[tuple[str, str]]:
    """Name and value of each switch that is turned, and of each choice that is not the default."""
    for name, schema in _properties(stage).items():
        if schema.get("deprecated") or name.startswith(tuple(each for names in LEFT_OUT.values() for each in names)):
            continue
        forms = schema.get("anyOf", [schema])
        default = schema.get("default")
        if any(form.get("type") == "boolean" for form in forms):
            yield f"--{name}", str(default is not True)
        else:
            chosen = [value for form in forms for value in form.get("enum", ()) if isinstance(value, str)]
            yield from ((f"--{name}", value) for value in chosen if value != default)


def _properties(stage: str) -> dict[str, Any]:
    schema = stage_schema(script_of(stage))
    found: dict[str, Any] = (schema["$defs"][stage] if stage in ONLINE else schema)["properties"]
    return found


def cases_with_options(seed: int) -> Iterator[Case]:
    """Each option of any stage in one case, whose own arguments do not hold it."""
    having: dict[tuple[str, str], list[str]] = {}
    for stage in DIMENSIONS["stage"]:
        for option in options(stage):
            having.setdefault(option, []).append(stage)
    of_stage = {stage: list(all_cases(stage, seed)) for stage in DIMENSIONS["stage"]}
    for option, stages in having.items():
        # By itself: another argument in the schema changes no case but its own.
        drawn = random.Random(f"{option} {seed}")
        yield drawn.choice(of_stage[drawn.choice(stages)]).with_option(option)
