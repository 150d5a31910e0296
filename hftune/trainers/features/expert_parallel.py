"""Experts that are dealt out to processes: before the optimizer is made, and gathered for saving."""

from __future__ import annotations

from typing import Any

from hftune.distributed.expert_parallel import deal_out_experts, expert_layers
from hftune.distributed.expert_weights import gathered_weights
from hftune.logging import notice


class ExpertParallelMixin:
    """Put before a `Trainer` subclass. Does nothing without `--expert_parallel_size`."""

    def create_optimizer(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's, for the experts that this process keeps."""
        size = self.args.expert_parallel_size
        if size > 1 and not any(expert_layers(self.model)):
            # Multiplying all experts at once needs a GPU and 16 bit.
            deal_out_experts(self.model, size, grouped=not self.args.use_cpu and bool(self.args.bf16))
            layers = [layer for _, layer in expert_layers(self.model)]
            notice(f"{layers[0].num_local_experts} of {layers[0].num_experts} experts in each of {size} processes")
            # accelerate knows no way to gather dealt-out experts; the Trainer asks it before it saves.
            self.accelerator.get_state_dict = lambda *_, **__: gathered_weights(self.model)
            if self._listener is not None:
                for layer in layers:
                    self._listener.listen_to_dealt(layer.router)
        return super().create_optimizer(*args, **kwargs)  # type: ignore[misc]
