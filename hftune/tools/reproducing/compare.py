"""Two runs next to each other: the first step at which their logs differ, and what was different when they ran."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hftune.checkpoints.manifest import Manifest
from hftune.errors import shown

FIGURES = {
    "batch": "data order",
    "loss": "loss",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
    "reward": "reward",
}
"""What is compared, by its name in the log; in the order in which one thing leads to the next."""
_OWN = {
    *("output_dir", "overwrite_output_dir", "resume_from_checkpoint", "callbacks", "report_to", "push_to_hub"),
    *("logging_dir", "run_name", "hub_model_id", "hub_token", "deepspeed_plugin", "distributed_state"),
}
"""Arguments that `hftune reproduce` sets, and those that follow the output folder; no number depends on them."""

Steps = dict[int, dict[str, float]]
"""Step to name to value."""


@dataclass(frozen=True)
class Difference:
    """Where two logs part."""

    step: int
    name: str
    before: float
    now: float

    @property
    def size(self) -> float:
        """Relative to the larger one; of digests, which have no size, and of what is not finite, infinite."""
        if self.name == "batch" or not math.isfinite(self.before - self.now):
            return math.inf
        return abs(self.before - self.now) / max(abs(self.before), abs(self.now))

    def __str__(self) -> str:
        if self.name == "batch":
            return f"step {self.step}: other records, or in another order"
        size = f" ({self.size:.1e} relative)" if math.isfinite(self.size) else ""
        return f"step {self.step}: {FIGURES[self.name]} was {self.before!r}, is {self.now!r}{size}"


def steps_of(lines: Iterable[Mapping[str, Any]]) -> Steps:
    """What is compared of a log's lines; of a step that was made again after a kill, the last."""
    return {
        int(line["step"]): {name: line[name] for name in FIGURES if isinstance(line.get(name), int | float)}
        for line in lines
        if "loss" in line
    }


def differences(before: Steps, now: Steps, tolerance: float) -> Iterator[Difference]:
    """Step by step, and in a step in the order of `FIGURES`; what one log lacks cannot be compared."""
    for step in sorted({*before} & {*now}):
        for name in FIGURES:
            if name in before[step] and name in now[step]:
                found = Difference(step, name, before[step][name], now[step][name])
                # Two that are both NaN are the same as well.
                if repr(found.before) != repr(found.now) and found.size > tolerance:
                    yield found


def verdict(before: Steps, now: Steps, tolerance: float) -> tuple[bool, list[str]]:
    """Whether the logs agree, and what there is to say of it."""
    common = sorted({*before} & {*now})
    if not common:
        return False, ["no step was logged by both runs: --logging_steps is larger than the steps that were made"]
    found = list(differences(before, now, tolerance))
    how = "to the last bit" if not tolerance else f"within {tolerance:g}"
    said = [f"{len(common)} logs compared, of steps {common[0]} to {common[-1]}"]
    if found:
        said.append(f"first difference: {found[0]}")
    for name, title in FIGURES.items():
        both = [step for step in common if name in before[step] and name in now[step]]
        apart = [each for each in found if each.name == name]
        if not both and name == "batch":
            said.append(f"  {title}: not logged by the version of hftune that made the run")
        elif apart:
            largest = max(each.size for each in apart)
            size = f", by {largest:.1e} at most" if math.isfinite(largest) else ""
            said.append(f"  {title}: {len(apart)} of {len(both)} differ{size}")
        elif both:
            said.append(f"  {title}: the same {how}")
    return not found, said


def environment(before: Manifest, now: Manifest) -> Iterator[str]:
    """What was different when a run was made: versions, machine, processes, arguments, data, weights."""
    for kind in ("versions", "machine"):
        yield from _changed(kind, before.get(kind) or {}, now.get(kind) or {})
    if not before.get("machine"):
        yield "machine: not recorded by the version of hftune that made the run"
    yield from _changed("processes", *({"": each.get("world_size")} for each in (before, now)))
    yield from _changed("arguments", _arguments(before), _arguments(now))
    yield from _changed("data", _data(before), _data(now))
    base, tokenizer = ([(each.get(part) or {}) for each in (before, now)] for part in ("base", "tokenizer"))
    yield from _changed("model", *({"fingerprint": each.get("fingerprint")} for each in base))
    yield from _changed("tokenizer", *tokenizer)


def _arguments(manifest: Manifest) -> dict[str, Any]:
    """The arguments as decided, by name; paths below the output folder are written alike for both runs."""
    groups = manifest.get("arguments") or {}
    output = str((groups.get("training") or {}).get("output_dir") or "\0")
    merged = {name: value for group in groups.values() if isinstance(group, dict) for name, value in group.items()}
    named = {name: value for name, value in merged.items() if name not in _OWN and not name.startswith("_")}
    return {name: str(value).replace(output, "OUTPUT") for name, value in named.items()}


def _data(manifest: Manifest) -> dict[str, Any]:
    named = ("fingerprint", "rows", "used", "trained_tokens")
    return {
        f"{split} {name}": about[name]
        for split, about in (manifest.get("data") or {}).items()
        for name in named
        if isinstance(about, dict) and name in about
    }


def _changed(kind: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    # An argument that one version has and the other lacks is no difference that somebody made.
    for name in before:
        if (name in now and before[name] != now[name]) or (kind == "versions" and name not in now):
            yield f"{kind}{' ' * bool(name)}{name}: was {shown(before[name])}, is {shown(now.get(name, 'missing'))}"
