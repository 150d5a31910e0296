"""Experts that are sharded over processes: before the optimizer is made, and gathered for saving."""

from __future__ import annotations

from hftune.compat.installing import replace_method
from hftune.distributed.expert_parallel import expert_layers, shard_experts
from hftune.distributed.expert_weights import gathered_weights
from hftune.logging import notice
from hftune.trainers.features.feature import Feature, Run
from hftune.trainers.features.router_loss import RouterLoss


class ExpertParallel(Feature):
    """Does nothing without `--expert_parallel_size`.

    Args:
        routers: Sharded layers have routers of their own, which it must hear in the place of those before.
    """

    def __init__(self, routers: RouterLoss) -> None:
        self.routers = routers

    def before_optimizer(self, run: Run) -> None:
        """Leave to this process the experts that it keeps."""
        size = run.args.expert_parallel_size
        if size <= 1 or any(expert_layers(run.model)):
            return
        # Multiplying all experts at once needs a GPU and 16 bit.
        shard_experts(run.model, size, grouped=not run.args.use_cpu and bool(run.args.bf16))
        layers = [layer for _, layer in expert_layers(run.model)]
        notice(f"{layers[0].num_local_experts} of {layers[0].num_experts} experts in each of {size} processes")
        # accelerate knows no way to gather sharded experts; the Trainer asks it before it saves.
        replace_method(run.accelerator, "get_state_dict", lambda *_, **__: gathered_weights(run.model))
        for layer in layers:
            self.routers.hear_sharded(layer.router)
