"""Parameter groups: which weights share a learning rate, a weight decay and an update rule."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from hftune.arguments.optimizer import MUON
from hftune.arguments.training import StageArguments
from hftune.models.structure import decoder_list

LORAPLUS_LR_EMBEDDING = 1e-6  # peft's and the LoRA+ authors' default


@dataclass
class Group:
    """Parameters that are updated alike.

    Attributes:
        lr: Peak learning rate; the schedule multiplies it.
        weight_decay: Each step takes lr * weight_decay of a weight away.
        rule: "adam", or any name of a rule that is the same for the whole optimizer; "muon" for orthogonal updates.
        options: What else the optimizer reads from a group, such as GaLore's rank.
        members: Names and parameters, in the model's order.
    """

    lr: float
    weight_decay: float
    rule: str
    options: dict[str, Any] = field(default_factory=dict)
    members: list[tuple[str, nn.Parameter]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """As torch's optimizers take it."""
        group = {"params": [parameter for _, parameter in self.members], "lr": self.lr}
        return group | {"weight_decay": self.weight_decay} | self.options


class Layers:
    """Where a parameter stands in a model: the depth of its layer, embeddings, or above all layers.

    Args:
        model: A causal LM or sequence classifier, adapted or not.
    """

    def __init__(self, model: Any) -> None:
        found = decoder_list(model)
        self.count = len(model.get_submodule(found)) if found else 0
        self.prefix = f"{found}." if found else None
        embeddings = model.get_input_embeddings()
        self.embeddings = next((f"{name}." for name, module in model.named_modules() if module is embeddings), None)

    def layer(self, name: str) -> int | None:
        """Index of the decoder layer that holds a parameter; None outside of all."""
        if self.prefix is None or not name.startswith(self.prefix):
            return None
        return int(name[len(self.prefix) :].split(".", 1)[0])

    def is_embedding(self, name: str) -> bool:
        """Whether a parameter belongs to the input embeddings, an adapter on them included."""
        return self.embeddings is not None and name.startswith(self.embeddings)

    def depth(self, name: str) -> int:
        """0 for embeddings, i for layer i = 0, 1, ..., count + 2 for the final norm, head and all else."""
        if self.is_embedding(name):
            return 0
        layer = self.layer(name)
        return self.count + 2 if layer is None else layer


def layerwise_rate(depth: int, layers: int, bound: float) -> float:
    """ERNIEKit's layer-wise decay, a share of the learning rate: bound + depth / (layers + 2) * (1 - bound).

    Embeddings (depth 0) and layer 0 get `bound`, layer i gets i / (layers + 2) of the way up to 1, the final norm and
    the head (depth layers + 2) 1. From `_get_layer_lrs` in ERNIEKit's trainers.
    """
    return bound + depth / (layers + 2) * (1.0 - bound)


def parameter_groups(
    model: nn.Module, args: StageArguments, decayed: Collection[str], options: dict[int, dict[str, Any]] | None = None
) -> list[Group]:
    """All trained parameters of `model` in groups; those at --learning_rate come first, since the log shows the first.

    Args:
        model: Its parameters may be partitioned by ZeRO-3.
        args: `learning_rate`, `weight_decay`, LoRA+, layer-wise decay, and Muon.
        decayed: Names of the parameters with weight decay, as `Trainer.get_decay_parameter_names` gives them.
        options: Further keys of a parameter's group by its `id`, which GaLore and APOLLO need.
    """
    layers = Layers(model)
    found: dict[str, Group] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        group = _group_of(name, parameter, args, layers, name in decayed)
        group.options |= (options or {}).get(id(parameter), {})
        # By all that an optimizer reads of a group: parameters that agree in it share one.
        key = (group.lr, group.weight_decay, group.rule, *sorted(group.options.items(), key=str))
        found.setdefault(str(key), group).members.append((name, parameter))
    # Stable: the other groups stay in the model's order.
    return sorted(found.values(), key=lambda group: group.lr != args.learning_rate)


def _group_of(name: str, parameter: nn.Parameter, args: StageArguments, layers: Layers, decays: bool) -> Group:
    """An empty group with what holds for this parameter."""
    lr = base_rate(name, full_shape(parameter), args)
    lr *= layerwise_rate(layers.depth(name), layers.count, args.layerwise_lr_decay_bound)
    decay = args.weight_decay if decays else 0.0
    shape = full_shape(parameter)
    if args.optim != MUON:
        return Group(lr, decay, "")
    # Embeddings, heads and vectors have no spectrum that is worth orthogonalising (Keller Jordan's Muon).
    if len(shape) < 2 or layers.layer(name) is None:
        betas = (args.adam_beta1, args.adam_beta2)
        return Group(lr, decay, "adam", {"use_muon": False, "betas": betas, "eps": args.adam_epsilon})
    # The factor on Muon's update is put into its rate, and taken out of the decay, which is not scaled.
    scale = muon_scale(shape, args.muon_scale_mode) * args.muon_extra_scale_factor
    return Group(lr * scale, decay / scale, MUON, {"use_muon": True, "momentum": args.muon_momentum})


def base_rate(name: str, shape: torch.Size, args: StageArguments) -> float:
    """Learning rate before layer-wise decay: LoRA+ (arXiv:2402.12354) raises that of B.

    As in the authors' code and peft's: B and everything one-dimensional times the ratio, adapters on embeddings at
    their own rate, A and all else at --learning_rate.
    """
    # PPO's, which is a child of the policy under this name.
    if name.startswith("critic.") and getattr(args, "critic_learning_rate", None) is not None:
        return args.critic_learning_rate
    if args.loraplus_lr_ratio is None:
        return args.learning_rate
    if "lora_embedding_" in name:
        return LORAPLUS_LR_EMBEDDING if args.loraplus_lr_embedding is None else args.loraplus_lr_embedding
    if "lora_B." in name or len(shape) == 1:
        return args.learning_rate * args.loraplus_lr_ratio
    return args.learning_rate


def muon_scale(shape: Sequence[int], mode: str) -> float:
    """Factor on the learning rate that turns DeepSpeed's scaled update of an (out, in) matrix into that of `mode`.

    DeepSpeed multiplies the orthogonal matrix by sqrt(max(1, out/in)) (Keller Jordan's Muon; Megatron's
    shape_scaling). Megatron's spectral wants sqrt(max(out, in)) instead, unit_rms_norm sqrt(out/in). Stacked experts,
    (experts, out, in), are updated matrix by matrix.
    """
    rows, columns = shape[-2], shape[-1]
    wanted = {
        "shape_scaling": max(1.0, rows / columns),
        "spectral": float(max(rows, columns)),
        "unit_rms_norm": rows / columns,
    }[mode]
    return math.sqrt(wanted / max(1.0, rows / columns))


def full_shape(parameter: torch.Tensor) -> torch.Size:
    """Shape of the whole parameter; ZeRO-3 leaves an empty vector in its place."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))
