"""The optimizer of every stage: transformers' classes, bitsandbytes' and DeepSpeed's Muon, on hftune's groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hftune.arguments.optimizer import MUON
from hftune.arguments.training import StageArguments
from hftune.distributed import launch
from hftune.distributed.zero import optimizer_members
from hftune.logging import notice
from hftune.on_demand import on_demand
from hftune.trainers.features.run import Run
from hftune.trainers.optimizers.parameter_groups import Group, full_shape, parameter_groups
from hftune.trainers.optimizers.schedules import make_schedule

SMALLEST_8BIT = 4096
"""bitsandbytes keeps the moments of smaller tensors in 32 bit, as `min_8bit_size` says."""


def choose_optimizer(run: Run, model: Any, upstream: Callable[[], Any]) -> Any:
    """The class, and hftune's groups as the `params` that the Trainer then hands to it; they become `run.groups`.

    Args:
        upstream: Class and arguments that the Trainer would take.
    """
    assert model is not None, "groups are made of a model's parameters"
    args = run.args
    # Options by the id of a parameter: groups are made of them below, whatever the class wants.
    chosen, kwargs, options = optimizer_class(args, upstream)
    if is_8bit(args.optim):
        chosen = bits_by_group(chosen)
        options |= kept_in_32bit(model)
    if args.expert_parallel_size > 1:
        for key, more in on_demand("hftune.distributed.expert_parallel:expert_options")(model).items():
            options.setdefault(key, {}).update(more)
    run.groups = parameter_groups(model, args, set(run.get_decay_parameter_names(model)), options)
    if args.optim == MUON:
        mark_parameters(run.groups)
    return chosen, {**kwargs, "params": [group.as_dict() for group in run.groups]}


def make_scheduler(run: Run, steps: int, optimizer: Any) -> Any:
    """hftune's schedule, made after the optimizer has been wrapped; the groups must have come through that."""
    # One that is there stays: the user's, or this one where the Trainer asks again.
    if run.lr_scheduler is None:
        used = run.optimizer if optimizer is None else optimizer
        # AutoTP shards parameters after the groups were made.
        if run.groups is not None and run.args.tensor_parallel_size > 1:
            renew_members(run.groups, run.model)
        lost = lost_groups(run.groups, used) if run.groups is not None else None
        # A group that is lost on the way trains at the rate of another, without an error.
        assert lost is None, lost
        run.lr_scheduler = make_schedule(run.args, used, steps)
        run._created_lr_scheduler = True
    return run.lr_scheduler


def optimizer_class(
    args: StageArguments, upstream: Callable[[], Any]
) -> tuple[Any, dict[str, Any], dict[int, dict[str, Any]]]:
    """The class of `--optim`, its arguments, and options of single parameters by their id."""
    if args.optim == MUON:
        notice(
            f"muon: learning rate x {args.muon_extra_scale_factor} x {args.muon_scale_mode} for the matrices of "
            "the layers, AdamW for all other weights"
        )
        return muon_class(on_cpu=args.use_cpu, compiled=args.torch_compile), {}, {}
    chosen, kwargs = upstream()
    # GaLore and APOLLO come with groups of their own, of which only the options are kept.
    return chosen, kwargs, _options(kwargs.pop("params", []))


def renew_members(groups: list[Group], model: nn.Module) -> None:
    """Have groups hold the parameters that a model has now: AutoTP puts others in the place of ZeRO-3's, in place."""
    live = dict(model.named_parameters())
    for group in groups:
        group.members = [(name, live[name]) for name, _ in group.members]


def lost_groups(groups: list[Group], optimizer: Any) -> str | None:
    """What is wrong with the groups that an optimizer really uses, before any step; None if they are `groups`.

    Args:
        optimizer: A torch optimizer, or ZeRO's around one, with accelerate's wrapper or without.
    """
    # Of ZeRO's optimizers the members are in other places than in torch's groups.
    used, members = optimizer.param_groups, optimizer_members(optimizer)
    if len(used) != len(groups) or len(members) != len(groups):
        return f"the optimizer was given {len(groups)} parameter groups and uses {len(used)}"
    for number, (group, settings, parameters) in enumerate(zip(groups, used, members, strict=True)):
        given = {"lr": group.lr, "weight_decay": group.weight_decay}
        uses = {name: settings[name] for name in given}
        if {id(one) for _, one in group.members} != {id(one) for one in parameters}:
            uses["members"] = "others"
        if uses != given:
            return f"parameter group {number} was given {given} and uses {uses}"
    return None


def is_8bit(optim: Any) -> bool:
    """Whether bitsandbytes keeps the moments in 8 bit, block by block."""
    name = str(getattr(optim, "value", optim))
    return name.endswith("8bit") and not name.startswith(("galore", "adamw_torch"))


def _options(groups: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The keys of each group but its parameters, by the id of each parameter that is in it."""
    return {
        id(parameter): {name: value for name, value in group.items() if name != "params"}
        for group in groups
        for parameter in group["params"]
    }


def kept_in_32bit(model: nn.Module) -> dict[int, dict[str, Any]]:
    """Embeddings, as the Trainer does it, and what bitsandbytes finds too small: groups of their own.

    ZeRO makes one flat tensor of a group, in which they would be quantised with the rest.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    return {
        id(parameter): {"optim_bits": 32}
        for parameter in model.parameters()
        # The whole tensor decides: under ZeRO-3 what a rank holds may be tiny.
        if id(parameter) in embeddings or full_shape(parameter).numel() < SMALLEST_8BIT
    }


def bits_by_group(optimizer: Any) -> type[torch.optim.Optimizer]:
    """One of bitsandbytes' classes that reads `optim_bits` from a group.

    Its own way, by a parameter's id or its place, is lost under ZeRO: the parameters are others, and stage 1 and 2 hand
    over one group at a time.
    """

    def get_config(self: torch.optim.Optimizer, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
        config: dict[str, Any] = optimizer.get_config(self, gindex, pindex, group)
        return config | {name: group[name] for name in ("optim_bits",) if name in group}

    # Of the same name: logs, checkpoints and ZeRO's list of known optimizers go by it.
    return type(optimizer.__name__, (optimizer,), {"get_config": get_config})


def muon_class(*, on_cpu: bool, compiled: bool = False) -> type[torch.optim.Optimizer]:
    """DeepSpeed's Muon (arXiv:2502.16982), which updates all other weights by AdamW; compiled where that is a help.

    ZeRO-1, 2 and 3 know it: they gather a whole matrix, orthogonalise it, and split it again. torch's own would
    get flat pieces.

    Args:
        compiled: Whether the model goes through torch.compile, which then works here.
    """
    from deepspeed.runtime.zero.muon import muon_optimizer

    # On a CPU compiling takes longer than it saves, and without a C++ compiler it fails at the first step.
    if not compiled and (on_cpu or not launch.has_cpp_compiler()):
        torch.compiler.set_stance("force_eager")
    chosen: type[torch.optim.Optimizer] = muon_optimizer.MuonWithAuxAdam
    return chosen


def mark_parameters(groups: list[Group]) -> None:
    """Tell ZeRO which parameters to gather whole for Muon: it reads a mark on each (0.19), not the group."""
    for group in groups:
        for _, parameter in group.members:
            marked: Any = parameter
            marked.use_muon = group.rule == MUON
