"""The optimizer of every stage: transformers' classes and Muon, on hftune's parameter groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from hftune.arguments.optimizer import MUON
from hftune.arguments.training import StageArguments
from hftune.distributed import ranks
from hftune.distributed.zero import optimizer_members
from hftune.logging import notice
from hftune.on_demand import on_demand
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run
from hftune.trainers.optimizers.parameter_groups import Group, parameter_groups
from hftune.trainers.optimizers.schedules import make_schedule
from hftune.visible import say


class Optimizers(Feature):
    """Parameter groups, optimizer and schedule in the places where the Trainer makes its own.

    Attributes:
        groups: None where an optimizer was handed to the trainer.
    """

    def __init__(self) -> None:
        self.groups: list[Group] | None = None

    def choose_optimizer(self, run: Run, model: Any, upstream: Callable[[], Any]) -> Any:
        """The class, and hftune's groups as the `params` that the Trainer then hands to it."""
        assert model is not None, "groups are made of a model's parameters"
        args = run.args
        # Options by the id of a parameter: groups are made of them below, whatever the class wants.
        chosen, kwargs, options = optimizer_class(args, upstream)
        if is_8bit(args.optim):
            chosen, more = on_demand("hftune.trainers.optimizers.eight_bit:by_group")(chosen, model)
            options |= more
        if args.expert_parallel_size > 1:
            for key, more in on_demand("hftune.distributed.expert_parallel:expert_options")(model).items():
                options.setdefault(key, {}).update(more)
        self.groups = parameter_groups(model, args, set(run.get_decay_parameter_names(model)), options)
        if args.optim == MUON:
            on_demand("hftune.trainers.optimizers.muon:mark_parameters")(self.groups)
        if args.print_groups and ranks.is_main():
            group_table = on_demand("hftune.trainers.optimizers.group_table:group_table")
            say(group_table(self.groups, str(getattr(args.optim, "value", args.optim))), flush=True)
        return chosen, {**kwargs, "params": [group.as_dict() for group in self.groups]}

    def make_scheduler(self, run: Run, steps: int, optimizer: Any) -> Any:
        """hftune's schedule, made after the optimizer has been wrapped; the groups must have come through that."""
        # One that is there stays: the user's, or this one where the Trainer asks again.
        if run.lr_scheduler is None:
            used = run.optimizer if optimizer is None else optimizer
            # AutoTP shards parameters after the groups were made.
            if self.groups is not None and run.args.tensor_parallel_size > 1:
                renew_members(self.groups, run.model)
            lost = lost_groups(self.groups, used) if self.groups is not None else None
            # A group that is lost on the way trains at the rate of another, without an error.
            assert lost is None, lost
            run.lr_scheduler = make_schedule(run.args, used, steps)
            run._created_lr_scheduler = True
        return run.lr_scheduler

    def before_save(self, run: Run) -> None:
        """Save the weights that are evaluated, and with them an optimizer state of the same mode.

        Schedule-free optimizers (arXiv:2405.15682) train at one point and mean another, to which they switch here.
        The Trainer does so for an evaluation, but not to save; each training step switches back.
        """
        if str(run.args.optim_name).startswith("schedule_free") and run.optimizer is not None:
            run.optimizer.eval()


def optimizer_class(
    args: StageArguments, upstream: Callable[[], Any]
) -> tuple[Any, dict[str, Any], dict[int, dict[str, Any]]]:
    """The class of `--optim`, its arguments, and options of single parameters by their id."""
    if args.optim == MUON:
        notice(
            f"muon: learning rate x {args.muon_extra_scale_factor} x {args.muon_scale_mode} for the matrices of "
            "the layers, AdamW for all other weights"
        )
        return on_demand("hftune.trainers.optimizers.muon:muon_class")(on_cpu=args.use_cpu), {}, {}
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
        if {id(parameter) for _, parameter in group.members} != {id(parameter) for parameter in parameters}:
            return f"parameter group {number} has other members than it was given"
        for name, value in (("lr", group.lr), ("weight_decay", group.weight_decay)):
            if settings[name] != value:
                return f"parameter group {number} was given {name} {value} and uses {settings[name]}"
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
