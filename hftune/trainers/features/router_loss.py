"""The losses of routers in the training loss of every stage, at one place.

transformers adds its load-balancing loss inside the model, where the Trainer then multiplies it by the number of
processes and of accumulated batches (5.23, where it counts tokens over both), and in evaluation as well, where it
spoils perplexity; DeepSeek's models have none. TRL has its own in four of its trainers. Here routers are listened to,
both of those are off, and all stages and architectures get the same loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from hftune.arguments.training import StageArguments
from hftune.distributed.expert_parallel import expert_layers
from hftune.distributed.sequence_parallel import SequenceGroup
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.losses.routers import balance_loss, z_loss
from hftune.models.structure import is_mixture, router_shares, routers_of
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run, plain_model
from hftune.trainers.features.sums import MetricSums


@dataclass
class _Pass:
    """One forward pass through the model: which tokens count, and what its routers said, a layer at a time."""

    mask: torch.Tensor | None
    logits: list[torch.Tensor] = field(default_factory=list)
    chosen: list[torch.Tensor] = field(default_factory=list)


class RouterListener:
    """Keeps what the routers of a model say while it is open, in passes that are trained on.

    Args:
        model: The plain model (not an adapter around it), a mixture of experts.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.passes: list[_Pass] | None = None
        config: Any = model.config
        self.top_k = int(config.get_text_config().num_experts_per_tok)
        shares = router_shares(config)
        assert shares is not None, "preflight refuses routers that are not known"
        self.shares = shares
        model.register_forward_pre_hook(self._begin, with_kwargs=True)
        self.routers = routers_of(model)
        for router, place in self.routers.items():
            router.register_forward_hook(partial(self._keep_scores, place=place))

    def listen_to_sharded(self, router: Any) -> None:
        """Listen to a router of AutoEP's, which took the place of another and gives scores in the place of logits."""
        said: list[torch.Tensor] = []

        def keep(gate: Any, args: Any, logits: torch.Tensor) -> None:
            said[:] = [logits]

        def with_logits(module: Any, args: Any, output: Any) -> None:
            self._keep_scores(module, args, (said.pop(), *output[:2]))

        router.gate.register_forward_hook(keep)
        router.register_forward_hook(with_logits)

    @contextmanager
    def open(self) -> Iterator[list[_Pass]]:
        """Passes in the block are kept; one recomputed in the backward pass after it is not."""
        self.passes = []
        try:
            yield self.passes
        finally:
            self.passes = None

    def losses(self, passes: list[_Pass], group: SequenceGroup | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The balance and z losses, each a mean over passes; of whole rows where a group of processes shares them."""
        over = None if group is None else (group.size, group.sum)
        balances, zs = [], []
        for one in passes:
            logits = torch.cat(one.logits)
            mask = None if one.mask is None else one.mask.reshape(-1).repeat(len(one.logits))
            balances.append(balance_loss(self.shares(logits), torch.cat(one.chosen), mask, over))
            zs.append(z_loss(logits, mask, over))
        return torch.stack(balances).mean(), torch.stack(zs).mean()

    def _begin(self, model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        # A reference model's or a sampling pass has no gradient.
        if self.passes is not None and torch.is_grad_enabled():
            mask = kwargs.get("attention_mask")
            shared = kwargs.get("shared_prompts")
            if shared is not None:  # a prompt counts for each of its answers, as if it were there as often
                mask = shared.counts.to(kwargs["input_ids"].device)[None]
            self.passes.append(_Pass(mask if isinstance(mask, torch.Tensor) and mask.dim() == 2 else None))

    def _keep_scores(self, router: Any, args: Any, output: Any, place: int = 0) -> None:
        if not self.passes or not torch.is_grad_enabled():
            return
        logits = output[place] if isinstance(output, tuple) else output
        logits = logits.reshape(-1, logits.shape[-1])
        # Routers give logits, weights and the experts chosen; what they choose may be biased or limited to groups.
        named = isinstance(output, tuple) and len(output) == 3 and not output[2].is_floating_point()
        # Detached: a layer that is computed again is not heard, and has to keep as many tensors for its gradient.
        chosen = output[2].reshape(len(logits), -1) if named else logits.detach().topk(self.top_k, dim=1).indices
        self.passes[-1].logits.append(logits)
        self.passes[-1].chosen.append(chosen)


class RouterLoss(Feature):
    """Adds the routers' losses in training, and logs them.

    Logged are `aux_loss` (as TRL calls the balance loss) and `z_loss`, before their coefficients: means over the steps
    since the last log and over ranks.
    """

    def __init__(self, model: Any, args: StageArguments) -> None:
        """Keep transformers' own losses and TRL's off, which would come on top, while the trainer is made."""
        plain = plain_model(model)
        asked, text = args.router_aux_loss_coef, plain.config.get_text_config()
        mixture = is_mixture(plain.config)
        own = getattr(text, "router_aux_loss_coef", None) if mixture else None
        self._balance_by = float(asked if asked is not None else own or 0.0)
        self._z_by = float(args.moe_z_loss_coef)
        if asked is None and self._balance_by and _recomputes_reentrantly(args):
            notice("the model's own load-balancing loss is off: reentrant checkpointing gives it no gradient")
            self._balance_by = 0.0
        if own and router_shares(plain.config) is None:
            notice("the model's own load-balancing loss is off: how its routers score experts is not known to hftune")
            self._balance_by = 0.0
        if hasattr(text, "output_router_logits"):
            text.output_router_logits = False
        args.router_aux_loss_coef = 0.0 if mixture else None  # TRL's own is off
        self._asked, self._own = asked, own
        self._listener: RouterListener | None = None
        self._listens_to_sharded = False
        self._passes: list[_Pass] | None = None  # of the loss that is being computed
        self._sums = MetricSums(args.device, ("aux_loss", "z_loss"))

    def on_built(self, run: Run) -> None:
        """Listen to the routers; arguments and config are again what was asked for."""
        run.args.router_aux_loss_coef = self._asked
        plain = plain_model(run.model)
        if self._own is not None:
            plain.config.get_text_config().router_aux_loss_coef = self._own  # TRL wrote its 0 here; it is saved
        if self._balance_by or self._z_by:
            self._listener = RouterListener(plain)
            if not self._listener.routers:
                # A config of experts, and no layer that has any.
                self._listener = None
                notice("router losses are off: no layer of this model has a router whose logits transformers records")
                return
            notice(f"router losses: load balancing x {self._balance_by:g}, z-loss x {self._z_by:g}")

    def listen_to_sharded(self, run: Run) -> None:
        """Listen to the routers of sharded experts, which have just taken the place of the others."""
        if self._listener is not None and not self._listens_to_sharded:
            self._listens_to_sharded = True
            for _, layer in expert_layers(run.model):
                self._listener.listen_to_sharded(layer.router)

    @contextmanager
    def listening(self, run: Run) -> Iterator[None]:
        """Listen to the routers while a training loss is computed."""
        self._passes = None
        if self._listener is None or not run.model.training:
            yield
            return
        with self._listener.open() as self._passes:
            yield

    def added(self, run: Run, loss: torch.Tensor, counted: Any) -> torch.Tensor:
        """The loss and what its passes have said of the routers.

        Args:
            counted: What the loss was divided by; None for a mean.
        """
        if self._passes is None or self._listener is None:
            return loss
        passes, self._passes = self._passes, None
        balance, z = self._listener.losses(passes, run.sequence_group)
        if not balance.requires_grad:
            raise ArgumentError(
                "the routers have no gradient: reentrant checkpointing recomputes them, or nothing below is trained",
                place="--router_aux_loss_coef / --moe_z_loss_coef",
                fix="add --gradient_checkpointing False, or set both to 0",
            )
        self._sums.add("aux_loss", balance)
        self._sums.add("z_loss", z)
        extra = self._balance_by * balance + self._z_by * z
        if is_mean_over_accumulation(run, counted):
            extra = extra / run.current_gradient_accumulation_steps
        return loss + extra

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """The routers' losses, next to the training loss."""
        if "loss" in logs and self._listener is not None:
            logs |= self._sums.means(run.accelerator)


def is_mean_over_accumulation(run: Run, counted: Any) -> bool:
    """Whether the Trainer leaves the mean over accumulated batches to the loss (`Trainer.training_step`)."""
    scaled = getattr(run, "loss_is_scaled_for_ga", None)
    if scaled is not None:
        return bool(scaled)
    return bool(run.model_accepts_loss_kwargs and counted is not None) or run.compute_loss_func is not None


def _recomputes_reentrantly(args: StageArguments) -> bool:
    plan = args.recomputation
    return bool(plan and plan.takes_routers and (args.gradient_checkpointing_kwargs or {}).get("use_reentrant"))
