"""Other ways to run than the one asked for: ZeRO stages, offloading, recomputing, adapters, smaller micro batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.recomputation import Recomputation
from hftune.distributed import ds_config
from hftune.preflight.memory import Setup
from hftune.preflight.sizes import adapter_bytes, packed_bytes, state_bytes
from hftune.tools.planning.planner import Choice, Planner

STAGES = ("zero1", "zero2", "zero3", "zero2_offload", "zero3_offload")
"""Names of `ds_configs/`."""


def single_changes(planner: Planner, asked: Choice) -> Iterator[Choice]:
    """The run as asked with one thing changed, each that makes sense here."""
    yield from stages(planner, asked)
    yield from recomputations(asked)
    if not asked.adapter.use_peft:
        yield with_adapter(planner, asked, quantised=False)
    if not asked.adapter.quantised:
        yield with_adapter(planner, asked, quantised=True)
    yield from smaller(asked)


def combinations(planner: Planner, start: Choice) -> Iterator[Choice]:
    """The run with any of these changed together, but for what is trained."""
    for staged in (start, *stages(planner, start)):
        for again in (staged, *recomputations(staged)):
            yield again
            yield from smaller(again)


def ways(planner: Planner, asked: Choice) -> Iterator[Choice]:
    """Starting points, what changes least first: as asked, an adapter, one on a packed base."""
    yield asked
    if not asked.adapter.use_peft:
        yield with_adapter(planner, asked, quantised=False)
    if not asked.adapter.quantised:
        yield with_adapter(planner, asked, quantised=True)


def stages(planner: Planner, choice: Choice) -> Iterator[Choice]:
    """Under the shipped configs that spread or offload something here."""
    several = choice.setup.processes > 1
    for name in STAGES:
        offloads = name.endswith("offload")
        if (not several and not offloads) or (offloads and choice.setup.on_cpu):
            continue
        if choice.adapter.load_in_8bit and name.startswith("zero3"):
            continue  # trains with a wrong loss, and is refused
        if choice.deepspeed is not None and _same_stage(choice, name):
            continue
        yield staged(planner, choice, name)


def _same_stage(choice: Choice, name: str) -> bool:
    setup = choice.setup
    asked = f"zero{setup.zero_stage}" + ("_offload" if setup.offload_optimizer else "")
    return asked == name


def staged(planner: Planner, choice: Choice, name: str) -> Choice:
    """Under a config of `ds_configs/`."""
    config = ds_config.read_ds_config(name)
    half = bool(planner.training_args.bf16 or planner.training_args.fp16)
    stage = ds_config.zero_stage(config)
    setup = replace(
        choice.setup,
        deepspeed=True,
        zero_stage=stage,
        half=half,
        adapter_bytes=adapter_bytes(choice.adapter, half=half, zero_stage=stage),
        spare_bytes=4.0 if choice.adapter.quantised and not half else None,
        offload_optimizer=ds_config.offload_device(config, "optimizer") is not None,
        offload_weights=ds_config.offload_device(config, "param") is not None,
        on_disk=False,
        state_bytes=state_bytes(planner.training_args),
        copy_bytes=4.0,
    )
    return _changed(choice, f"--deepspeed {name}", setup=setup, deepspeed=config)


def recomputations(choice: Choice) -> Iterator[Choice]:
    """With everything computed again, and with nothing."""
    if choice.recompute is None or choice.recompute != Recomputation():
        yield _changed(choice, "--activation_checkpointing full", recompute=Recomputation())
    if choice.recompute is not None:
        yield _changed(choice, "--activation_checkpointing none", recompute=None)


def with_adapter(planner: Planner, choice: Choice, *, quantised: bool) -> Choice:
    """With LoRA, or LoRA on a 4-bit base."""
    adapter: AdapterArguments = replace(planner.adapter_args, use_peft=True, qlora=quantised)
    setup: Setup = replace(
        choice.setup,
        weight_bytes=float(planner.loaded_dtype(adapter).itemsize),
        packed_bytes=packed_bytes(adapter) if quantised else None,
        adapter_bytes=adapter_bytes(adapter, half=choice.setup.half, zero_stage=choice.setup.zero_stage),
        spare_bytes=4.0 if quantised and not choice.setup.half else None,
    )
    return _changed(choice, "--qlora" if quantised else "--use_peft", adapter=adapter, setup=setup)


def smaller(choice: Choice) -> Iterator[Choice]:
    """With micro batches of half, a quarter, ... at the same global batch."""
    examples = choice.work.examples
    while examples % 2 == 0:
        examples //= 2
        work = choice.work.with_examples(examples)
        flags = f"--per_device_train_batch_size {examples} --gradient_accumulation_steps {work.accumulation}"
        yield _changed(choice, flags, work=work)


def _changed(choice: Choice, flags: str, **changes: object) -> Choice:
    together = flags if choice.flags == "as asked" else f"{choice.flags} {flags}"
    return replace(choice, flags=together, **changes)  # type: ignore[arg-type]
