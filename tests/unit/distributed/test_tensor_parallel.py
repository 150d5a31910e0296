import re

from hftune.distributed.tensor_parallel import (
    layer_specs,
    plan_of,
    unknown_styles,
    with_size,
    without_block,
    write_plan,
)
from tests.architectures import make_config


def kind_of(specs, name):
    """The partition type of a weight, by DeepSpeed's rule: the first pattern that matches its name."""
    return next((spec["partition_type"] for spec in specs if re.match(spec["patterns"][0], name)), None)


def test_what_is_split_and_what_stays_whole():
    specs = layer_specs(plan_of(make_config("qwen3")))
    assert kind_of(specs, "model.layers.11.self_attn.q_proj.weight") == "column"
    assert kind_of(specs, "model.layers.1.mlp.up_proj.weight") == "column"
    assert kind_of(specs, "model.layers.1.self_attn.o_proj.weight") == "row"
    assert kind_of(specs, "model.layers.1.mlp.down_proj.weight") == "row"
    assert kind_of(specs, "model.layers.1.self_attn.q_norm.weight") == "skip"
    for whole in ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"):
        assert kind_of(specs, whole) is None
    summed = [spec for spec in specs if spec.get("grad_allreduce")]
    assert len(summed) == 2


def test_tied_embeddings_stay_whole():
    """transformers' plans name them in some versions."""
    assert layer_specs({"embed_tokens": "embedding_rowwise"}) == []
    assert unknown_styles({"embed_tokens": "embedding_rowwise"}) == {}
    assert unknown_styles({"mlp.gate_up_proj": "colwise_gather_output"})


def test_the_block_is_written_once_the_model_is_there():
    config = with_size({"zero_optimization": {"stage": 1}}, 2)
    assert config["tensor_parallel"] == {"autotp_size": 2}
    assert config["zero_optimization"] == {"stage": 1, "stage3_gather_16bit_weights_on_model_save": True}
    live = without_block(config)
    assert "tensor_parallel" not in live
    write_plan(live, 2, make_config("llama"))
    assert live["tensor_parallel"]["autotp_size"] == 2
    assert len(live["tensor_parallel"]["partition_config"]["layer_specs"]) == 7
    assert with_size(config, 1) is config
