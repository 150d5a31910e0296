"""What one process holds under tensor, sequence and expert parallelism, from numbers of parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

from transformers import PreTrainedModel

from hftune.models.experts import routed_weights
from hftune.preflight.memory import ModelSize, Need, Setup, estimate
from hftune.tools.planning.states import Largest


@dataclass(frozen=True)
class Degrees:
    """Degrees of parallelism within one model, in addition to ZeRO.

    Args:
        tensor: Tensor-parallel processes: they share the matrices of a layer.
        sequence: Sequence-parallel processes: they share the tokens of a row.
        expert: Expert-parallel processes: they share the experts of a layer.
    """

    tensor: int = 1
    sequence: int = 1
    expert: int = 1

    @property
    def activations(self) -> float:
        """The share of activations in each process, 0 to 1."""
        # arXiv:2205.05198, equation 2: of 34 bytes a token and hidden element 10 (norms, dropouts, inputs) are not
        # split.
        return (10 + 24 / self.tensor) / 34

    def same_parts(self, setup: Setup) -> Setup:
        """The setup with those processes that ZeRO shards over: the ones with the same slices of matrices."""
        # Sequence-parallel processes hold the same weights, so ZeRO shards over them as over data-parallel ones.
        return replace(setup, processes=max(1, setup.processes // self.tensor))


ALONE = Degrees()


@dataclass(frozen=True)
class Parts:
    """Numbers of parameters by the kind of parallelism that splits them.

    Args:
        all: Every one.
        ends: Of embeddings and head, which tensor parallelism leaves whole.
        experts: Routed ones.
        trained_experts: Those of them that are trained.
    """

    all: int
    ends: int = 0
    experts: int = 0
    trained_experts: int = 0

    @classmethod
    def of(cls, bare: PreTrainedModel, chosen: set[int] | None) -> Parts:
        """Count the parameters of a model on the meta device.

        Args:
            chosen: `id` of the parameters that are trained; None: all.
        """
        modules = [bare.get_input_embeddings(), bare.get_output_embeddings()]
        # By id, so that a head tied to the embeddings counts once.
        ends = {id(one): one.numel() for module in modules if module is not None for one in module.parameters()}
        experts = routed_weights(bare, bare.config)
        return cls(
            sum(one.numel() for one in bare.parameters()),
            sum(ends.values()),
            sum(one.numel() for one in experts),
            sum(one.numel() for one in experts if chosen is None or id(one) in chosen),
        )

    def tensor_share(self, degrees: Degrees) -> float:
        """The share of the weights in each tensor-parallel process, 0 to 1."""
        outside = self.ends / max(1, self.all)
        return outside + (1 - outside) / degrees.tensor


def shared_size(size: ModelSize, parts: Parts, degrees: Degrees) -> ModelSize:
    """The numbers of parameters in each process, before ZeRO shards them."""
    share, away = parts.tensor_share(degrees), 1 - 1 / degrees.expert
    return replace(
        size,
        weights=round(size.weights * share - parts.experts * away),
        trained=round(size.trained * share - parts.trained_experts * away),
    )


def shared_need(size: ModelSize, setup: Setup, parts: Parts, degrees: Degrees) -> Need:
    """What one process needs.

    ZeRO shards experts over the processes that hold the same ones, and everything else over all.
    """
    # Every process reads the whole checkpoint and keeps its slice afterwards, so loading costs what it does without
    # parallelism.
    loading = estimate(size, setup)
    if degrees.expert == 1:
        return _loaded(estimate(shared_size(size, parts, degrees), degrees.same_parts(setup)), loading)
    experts = ModelSize(parts.experts // degrees.expert, parts.trained_experts // degrees.expert)
    others = replace(size, weights=size.weights - parts.experts, trained=size.trained - parts.trained_experts)
    # Experts are estimated as a model of their own: AutoEP gives them a smaller group of processes to be sharded over.
    alike = replace(setup, processes=max(1, setup.processes // degrees.expert))
    one, other = estimate(others, setup), estimate(experts, alike)
    both = replace(
        one,
        weights=one.weights + other.weights,
        gradients=one.gradients + other.gradients,
        optimizer=one.optimizer + other.optimizer,
        host=one.host + other.host,
    )
    return _loaded(both, loading)


def _loaded(need: Need, loading: Need) -> Need:
    return replace(need, loading=loading.loading, loads_on_host=loading.loads_on_host)


def shared_largest(largest: Largest, layer_experts: int, degrees: Degrees) -> Largest:
    """The largest weights that ZeRO-3 gathers in each process.

    Args:
        layer_experts: Parameters of a layer's experts.
    """
    layer = largest.layer - layer_experts * (1 - 1 / degrees.expert)
    return replace(largest, layer=round(layer / degrees.tensor))


def dispatched_bytes(tokens: int, chosen: int, hidden: int, itemsize: int, degrees: Degrees) -> float:
    """The bytes of tokens sent to experts and back, on top of what a layer keeps, if routing is balanced.

    AutoEP (DeepSpeed 0.19.8) has four copies of what it sends at a time: received, put in the order of experts, put
    back, and returned.

    Args:
        tokens: Of a micro batch.
        chosen: Experts that a token goes to.
        itemsize: Bytes of a number.
    """
    return 4.0 * tokens * chosen * hidden * itemsize if degrees.expert > 1 else 0.0
