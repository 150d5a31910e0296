"""Alternatives to the run as asked: ZeRO stages, offloading, recomputation, adapters, smaller micro batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.recomputation import Recomputation
from hftune.distributed import ds_config
from hftune.preflight.estimating.planner import Choice, Planner
from hftune.preflight.memory import setup_under

STAGES = ("zero1", "zero2", "zero3", "zero2_offload", "zero3_offload")
"""Names of `ds_configs/`."""


def single_changes(planner: Planner, asked: Choice) -> Iterator[Choice]:
    """The run as asked with one setting changed, for each change that makes sense here."""
    yield from stages(planner, asked)
    yield from recomputations(asked)
    yield from islice(ways(planner, asked), 1, None)
    yield from smaller(asked)


def combinations(planner: Planner, start: Choice) -> Iterator[Choice]:
    """Every combination of ZeRO stage, recomputation and micro batch; what is trained stays as in `start`.

    The least change comes first, and is what a run that does not fit is told: sharding costs less time than smaller
    micro batches, and offloading more than both.
    """
    yield start
    for offloads in (False, True):
        for sized in (start, *smaller(start)):
            for choice in (sized, *stages(planner, sized)):
                if choice.setup.offload_optimizer == offloads:
                    yield choice
                    yield from recomputations(choice)


def ways(planner: Planner, asked: Choice) -> Iterator[Choice]:
    """What may be trained, the least change first: as asked, an adapter, an adapter on a quantised base."""
    yield asked
    if not asked.adapter.use_peft:
        yield with_adapter(planner, asked, quantised=False)
    if not asked.adapter.quantised:
        yield with_adapter(planner, asked, quantised=True)


def stages(planner: Planner, choice: Choice) -> Iterator[Choice]:
    """The choice under each shipped config that shards or offloads something here."""
    several = choice.setup.processes > 1
    for name in STAGES:
        offloads = name.endswith("offload")
        # A single process has nothing to shard, and a CPU run has no second memory to offload to.
        if (not several and not offloads) or (offloads and choice.setup.on_cpu):
            continue
        if choice.adapter.load_in_8bit and name.startswith("zero3"):
            # Trains with a wrong loss (bitsandbytes issue 1451); `rules/quantisation.py` refuses it as well.
            continue
        # Every shipped *_offload config offloads the optimizer; weights follow from the stage, so they need no look.
        asked = f"zero{choice.setup.zero_stage}" + "_offload" * choice.setup.offload_optimizer
        if choice.deepspeed is not None and asked == name:
            continue
        yield staged(planner, choice, name)


def staged(planner: Planner, choice: Choice, name: str) -> Choice:
    """The choice under a config of `ds_configs/`."""
    # Its path, not its name: a file of that name in the working folder would come first.
    config = ds_config.read_ds_config(str(ds_config.CONFIGS / f"{name}.json"))
    setup = setup_under(config, planner.model_args, choice.adapter, planner.training_args)
    return _changed(choice, f"--deepspeed {name}", setup=setup, deepspeed=config)


def recomputations(choice: Choice) -> Iterator[Choice]:
    """The choice with every layer recomputed, and with none."""
    if choice.recompute is None or choice.recompute != Recomputation():
        yield _changed(choice, "--activation_checkpointing full", recompute=Recomputation())
    if choice.recompute is not None:
        yield _changed(choice, "--activation_checkpointing none", recompute=None)


def with_adapter(planner: Planner, choice: Choice, *, quantised: bool) -> Choice:
    """The choice with LoRA, or with LoRA on a 4-bit base."""
    # `replace`, so that rank and target modules given on the command line are planned with.
    adapter: AdapterArguments = replace(planner.adapter_args, use_peft=True, qlora=quantised)
    setup = setup_under(choice.deepspeed, planner.model_args, adapter, planner.training_args)
    return _changed(choice, "--qlora" if quantised else "--use_peft", adapter=adapter, setup=setup)


def smaller(choice: Choice) -> Iterator[Choice]:
    """The choice with micro batches of half, a quarter, ... at the same global batch."""
    examples = choice.work.examples
    # Halves divide the global batch exactly: the number of steps, and so the learning rate schedule, stays the same.
    while examples % 2 == 0:
        examples //= 2
        work = choice.work.with_examples(examples)
        flags = f"--per_device_train_batch_size {examples} --gradient_accumulation_steps {work.accumulation}"
        yield _changed(choice, flags, work=work)


def _changed(choice: Choice, flags: str, **changes: object) -> Choice:
    together = flags if choice.flags == "as asked" else f"{choice.flags} {flags}"
    return replace(choice, flags=together, **changes)  # type: ignore[arg-type]  # mypy cannot match ** to fields
