"""Experts that are sharded over processes: before the optimizer is made, and gathered for saving."""

from __future__ import annotations

from hftune.compat.installing import replace_method
from hftune.distributed.expert_parallel import expert_layers, gathered_weights, shard_experts
from hftune.logging import notice
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run


class ExpertParallel(Feature):
    """For `--expert_parallel_size` above 1."""

    def before_optimizer(self, run: Run) -> None:
        """Leave to this process the experts that it keeps."""
        size = run.args.expert_parallel_size
        if any(expert_layers(run.model)):
            return
        # Multiplying all experts at once needs a GPU and 16 bit.
        shard_experts(run.model, size, grouped=not run.args.use_cpu and bool(run.args.bf16))
        layers = [layer for _, layer in expert_layers(run.model)]
        notice(f"{layers[0].num_local_experts} of {layers[0].num_experts} experts in each of {size} processes")
        # accelerate knows no way to gather sharded experts; the Trainer asks it before it saves.
        replace_method(run.accelerator, "get_state_dict", lambda *_, **__: gathered_weights(run.model))
