"""Weights of routers' losses, which Megatron adds up over layers and hftune takes the mean of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hftune.arguments.names.row import Answer, Ask
from hftune.arguments.names.values.common import number, shortest
from hftune.errors import ArgumentError
from hftune.opening.model_files import read_checked

_ERNIE = "here it weighs a mean over layers, in ERNIEKit what the model adds"
_OF_EVERY_LAYER = ("mixtral", "olmoe")


def megatron_balance(ask: Ask) -> Answer:
    """`moe_aux_loss_coeff` c: Megatron adds c E sum(f P) / k of every expert layer; here it is the mean of E sum(f P).

    With L expert layers that choose k experts, c L / k weighs the same where layers are used alike (Megatron-LM,
    `switch_load_balancing_loss_func`).
    """
    value = number("moe_aux_loss_coeff", ask.text("moe_aux_loss_coeff") or "")
    found = expert_layers(ask.other("model_name_or_path"))
    if found is None or not value:
        return _as_it_is("router_aux_loss_coef", "moe_aux_loss_coeff", value, "expert layers / experts a token")
    layers, chosen = found
    scaled = shortest(round(value * layers / chosen, 12))
    said = (
        f"--moe_aux_loss_coeff {value:g} is {scaled} here: Megatron adds up {layers} expert layers and divides by k = "
    )
    return Answer([("router_aux_loss_coef", [scaled])], (said + str(chosen),))


def megatron_z(ask: Ask) -> Answer:
    """`moe_z_loss_coeff` c: Megatron adds c times the z-loss of every expert layer; here it is their mean."""
    value = number("moe_z_loss_coeff", ask.text("moe_z_loss_coeff") or "")
    found = expert_layers(ask.other("model_name_or_path"))
    if found is None or not value:
        return _as_it_is("moe_z_loss_coef", "moe_z_loss_coeff", value, "expert layers")
    scaled = shortest(round(value * found[0], 12))
    said = f"--moe_z_loss_coeff {value:g} is {scaled} here: Megatron adds up {found[0]} expert layers"
    return Answer([("moe_z_loss_coef", [scaled])], (said,))


def ernie_balance(ask: Ask) -> Answer:
    """`moe_aux_loss_lambda` of ERNIEKit, as it is: whose layers weigh how much is its model's own code there."""
    value = ask.text("moe_aux_loss_lambda") or ""
    said = f"--moe_aux_loss_lambda {value} is taken as it is: {_ERNIE}"
    return Answer([("router_aux_loss_coef", [value])], (said,) if number("moe_aux_loss_lambda", value) else ())


def ernie_z(ask: Ask) -> Answer:
    """`moe_z_loss_lambda` of ERNIEKit; likewise."""
    value = ask.text("moe_z_loss_lambda") or ""
    said = f"--moe_z_loss_lambda {value} is taken as it is: {_ERNIE}"
    return Answer([("moe_z_loss_coef", [value])], (said,) if number("moe_z_loss_lambda", value) else ())


def _as_it_is(to: str, name: str, value: float, factor: str) -> Answer:
    said = f"--{name} {value:g} weighs a mean over layers here; Megatron's sum over them is {factor} times as strong"
    return Answer([(to, [shortest(value)])], (said,) if value else ())


def expert_layers(model: str | None) -> tuple[int, int] | None:
    """Layers with experts and experts a token goes to, by the config of a local folder.

    Returns:
        None for a Hub name, another kind of file, or an architecture whose layers this does not know to count.
    """
    file = Path(model or "") / "config.json"
    if not model or not file.is_file():
        return None
    config: dict[str, Any] = read_checked(file, error=ArgumentError)
    kind, total = config.get("model_type", ""), int(config.get("num_hidden_layers") or 0)
    chosen = int(config.get("num_experts_per_tok") or 0)
    if kind in _OF_EVERY_LAYER:
        layers = total
    elif kind in ("qwen2_moe", "qwen3_moe"):
        step, dense = int(config.get("decoder_sparse_step") or 1), config.get("mlp_only_layers") or []
        layers = sum((layer + 1) % step == 0 and layer not in dense for layer in range(total))
    elif kind in ("deepseek_v2", "deepseek_v3") and config.get("moe_layer_freq", 1) == 1:
        layers = total - int(config.get("first_k_dense_replace") or 0)
    else:
        return None
    return (layers, chosen) if layers > 0 < chosen else None
