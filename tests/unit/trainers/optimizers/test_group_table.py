"""The table of `--print_groups`."""

from __future__ import annotations

from transformers import Trainer

from hftune.arguments.entry import parse_arguments
from hftune.trainers.optimizers.parameter_groups import fold_layer_numbers, group_table, parameter_groups
from tests.unit.trainers.optimizers.test_parameter_groups import llama


def test_folded_names() -> None:
    names = [f"layers.{layer}.q.weight" for layer in (0, 1, 2, 5)] + ["norm.weight", "layers.7.experts.1.up"]
    assert fold_layer_numbers(names) == ["layers.0-2,5.q.weight", "norm.weight", "layers.7.experts.1.up"]


def test_the_table() -> None:
    argv = ["--model_name_or_path", "m", "--output_dir", "o", "--learning_rate", "1e-3", "--weight_decay", "0.1"]
    args = parse_arguments("sft", argv)[3]
    model = llama()
    groups = parameter_groups(model, args, set(Trainer.get_decay_parameter_names(None, model)))
    lines = group_table(groups, "adamw_torch").splitlines()
    # embed 32 x 16, head the same, per layer: q, o 16 x 16, k, v 16 x 8, three 16 x 24 = 1,920.
    assert lines[1].split() == ["0", "0.001", "0.1", "23", "6,784", "adamw_torch"]
    assert "model.layers.0-2.self_attn.q_proj.weight" in lines[3]
    assert lines[-1].split() == ["all", "30", "6,896"]
