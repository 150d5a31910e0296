"""Makes plans from the arguments of a run and changes of them. The model is on the meta device; nothing is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.recomputation import Recomputation
from hftune.arguments.training import StageArguments
from hftune.distributed import ranks
from hftune.distributed.ds_config import DsConfig
from hftune.distributed.ranks import Mesh
from hftune.models.structure import checkpointed_layers, experts_per_token
from hftune.preflight.estimating.parts import (
    PARTS,
    Buffers,
    Head,
    Largest,
    Moment,
    answer_head,
    buffers,
    cache_bytes,
    same_parts,
    shared_largest,
    shared_need,
    shared_size,
    step_extra,
    weights_of,
)
from hftune.preflight.estimating.plan import Plan, highest, moments
from hftune.preflight.estimating.profiles import Batch, Profile, formula_profile, marks, offloaded, scaled
from hftune.preflight.estimating.work import ANSWERS, WEIGHTED, Numerics, Work, numerics_of, work_of
from hftune.preflight.facts import Facts
from hftune.preflight.memory import ModelSize, Setup, estimate, model_size, packed_linears, run_setup

CONTEXT = 0.55 * 2**30
"""Bytes of a CUDA context with its kernels: a round figure of H100 and H200 under CUDA 12 and 13."""

COMMUNICATOR = 0.35 * 2**30
"""Bytes of NCCL's buffers, which a run of one process does not have; likewise a round figure."""

LIBRARIES = 0.25 * 2**30
"""Bytes of libraries imported after the checks (DeepSpeed, bitsandbytes, trainers): resident memory, measured."""


@dataclass(frozen=True)
class Choice:
    """One way to run.

    Args:
        flags: What to add to the command line for it.
        adapter: `AdapterArguments` of it.
        setup: How the model is kept.
        deepspeed: The DeepSpeed config, or None.
        work: The micro step.
        recompute: What is computed again; None: nothing.
        mesh: Processes that share the work of one model, in addition to ZeRO.
    """

    flags: str
    adapter: AdapterArguments
    setup: Setup
    deepspeed: DsConfig | None
    work: Work
    recompute: Recomputation | None
    mesh: Mesh


class Untraceable(Exception):
    """A model cannot be run on tensors without data; the message says why."""


Tracer = Callable[["Planner", Choice, Numerics, Batch], tuple[Profile, int]]
"""The profile of a step, and the bytes of a forward pass without gradients. Raises `Untraceable`."""


class Planner:
    """Plans for one model and one command line, and for changes of it.

    Args:
        facts: Of the run: rows, attention and the model on the meta device are as decided there.
        tracer: What traces the layers, which takes seconds (`traced_step`); None: their activations are by formula.
    """

    def __init__(self, facts: Facts[StageArguments], tracer: Tracer | None = None) -> None:
        assert facts.skeleton is not None and facts.build is not None, "without a model there is nothing to plan"
        self.facts, self.bare = facts, facts.skeleton
        self.model_args, self.adapter_args = facts.model_args, facts.adapter_args
        self.training_args = facts.training_args
        self._profiles: dict[Any, tuple[Profile, int, str | None]] = {}
        self._sizes: dict[Any, ModelSize] = {}
        self._tracer = tracer
        # What is left to transformers is SDPA wherever a model has it (5.23).
        decided = facts.build.attention
        self.attention = decided or ("sdpa" if getattr(facts.model_class, "_supports_sdpa", False) else "eager")

    def asked(self) -> Choice:
        """The run as it was asked for."""
        training_args = self.training_args
        return Choice(
            "as asked",
            self.adapter_args,
            run_setup(self.model_args, self.adapter_args, training_args),
            training_args.ds_resolved,
            work_of(training_args, self.attention, adapted=self.adapter_args.use_peft),
            training_args.recomputation,
            training_args.mesh,
        )

    def size(self, adapter_args: AdapterArguments) -> ModelSize:
        """The numbers of parameters with an adapter of these arguments."""
        key = _method(adapter_args)
        if key not in self._sizes:
            self._sizes[key] = model_size(self.bare, adapter_args, self.training_args)
        return self._sizes[key]

    def plan(self, choice: Choice) -> Plan:
        """The memory that a choice needs in each process."""
        size, setup, work = self.size(choice.adapter), choice.setup, choice.work
        numerics = self.numerics(choice)
        profile, reference, untraced = self.profile(choice, numerics)
        away = 0.0
        if choice.recompute is not None and choice.recompute.offload and not setup.on_cpu:
            profile, away = offloaded(profile, marks(choice.recompute, len(profile.kinds)))
        mesh = choice.mesh
        # `need` is for weights and states; `held`, not yet sharded by ZeRO, sizes the buffers that gather and reduce.
        need, held = shared_need(size, setup, mesh), shared_size(size, mesh)
        alike = same_parts(setup, mesh)
        largest = shared_largest(self.largest, size.experts // max(1, len(profile.kinds)), mesh)
        extra = buffers(held, alike, choice.deepspeed, largest)
        later, other = self._generation(choice, size, extra, numerics)
        standing = dict.fromkeys(PARTS, 0.0) | {"weights": need.weights, "gradients": need.gradients, "other": other}
        standing |= {"optimizer": need.optimizer, "buffers": extra.standing + extra.gathered}
        # Layers alike have alike gradients; in full training head and embeddings have theirs as well.
        outside = self.largest.module if not choice.adapter.use_peft else 0
        found = moments(
            standing,
            profile,
            self._head(choice, numerics, profile),
            layer_gradients=max(0.0, (size.trained - outside) / max(1, len(profile.kinds))) * setup.gradient_bytes,
            tail_gradients=outside * setup.gradient_bytes,
            # The Trainer sets gradients to None after a step; DeepSpeed keeps its own, and accumulation needs them.
            grows=not setup.deepspeed and work.accumulation == 1,
            reference=reference if work.reference else None,
            at_work=self._at_work(choice, numerics),
            optimizer_extra=extra.step + step_extra(held, alike, self.training_args.optim_name, largest),
        )
        return highest([*found, *later], need, setup, extra.pinned + away, self.context(setup), untraced)

    def least(self, choice: Choice) -> Plan:
        """The memory that weights, gradients and optimizer take: what a choice needs for certain."""
        need = shared_need(self.size(choice.adapter), choice.setup, choice.mesh)
        parts = {"weights": need.weights, "gradients": need.gradients, "optimizer": need.optimizer}
        return highest([Moment("training", parts)], need, choice.setup, pinned=0.0, context=0.0, untraced=None)

    def _generation(
        self, choice: Choice, size: ModelSize, extra: Buffers, numerics: Numerics
    ) -> tuple[list[Moment], float]:
        """The moment in which RL samples completions, and the bytes of reward models, which are always there."""
        drawn, setup, args = choice.work.generation, choice.setup, cast(Any, self.training_args)
        if drawn is None:
            return [], 0.0
        config, dtype = self.bare.config.get_text_config(), self.model_args.dtype
        # `auto` is the checkpoint's dtype, which is not read for a plan: float32 is the most that it can be.
        itemsize = 4.0 if dtype == "auto" else float(getattr(torch, dtype).itemsize)
        judges = sum(map(weights_of, args.reward_model_path or [])) * itemsize
        need = estimate(size, setup)
        # Without --ds3_gather_for_generation False, ZeRO-3 puts the whole model together to generate.
        whole = setup.zero_stage == 3 and args.ds3_gather_for_generation
        parts = {
            "weights": need.weights + (size.weights + size.adapter) * setup.kept_bytes * whole,
            "optimizer": need.optimizer,
            "buffers": extra.standing,
            "activations": cache_bytes(config, drawn, numerics.compute.itemsize),
            # 16-bit logits of a token a row, and three in float32: cast, sorted (top-p), and as probabilities.
            "loss": drawn.rows * config.vocab_size * (2.0 + 3 * 4.0),
            "other": judges,
        }
        return [Moment("generation", parts)], judges

    def context(self, setup: Setup) -> float:
        """The bytes on a GPU that no allocator counts; on a CPU those of libraries not imported yet."""
        if setup.on_cpu:
            return LIBRARIES
        # What a run measures as free has lost the context of this process already.
        context = 0.0 if ranks.planned_world() is None else CONTEXT
        return context + (COMMUNICATOR if setup.processes > 1 else 0.0)

    def numerics(self, choice: Choice) -> Numerics:
        """The dtypes of a choice."""
        return numerics_of(self.model_args, choice.adapter, self.training_args, choice.setup)

    @cached_property
    def largest(self) -> Largest:
        """The largest weights that are gathered at a time."""
        found = checkpointed_layers(self.bare)
        layers = getattr(*found) if found else []
        every = [sum(one.numel() for one in layer.parameters()) for layer in layers]
        modules = [one.numel() for one in self.bare.get_input_embeddings().parameters()]
        return Largest(max(every, default=0), max(modules, default=0), self.bare.config.get_text_config().hidden_size)

    def profile(self, choice: Choice, numerics: Numerics) -> tuple[Profile, int, str | None]:
        """The profile of a step, the bytes of a forward pass without gradients, and why neither was traced."""
        work = choice.work
        batch = Batch(*((1, work.rows * work.tokens) if work.flat else (work.rows, work.tokens)), work.masked)
        if choice.mesh.sequence > 1:
            # All rows end to end, of which rank 0 has the longest slice: rounded up.
            batch = Batch(1, -(-work.rows * work.tokens // choice.mesh.sequence))
        # A trace takes seconds and knows nothing of sharding or the optimizer: most choices of a table share one.
        key = (
            _method(choice.adapter),
            numerics,
            batch,
            str(choice.recompute),
            self.older_checkpoint(choice),
            work.head,
        )
        if key not in self._profiles:
            try:
                if self._tracer is None:
                    raise Untraceable("nothing is traced before a run")
                self._profiles[key] = (*self._tracer(self, choice, numerics, batch), None)
            except Untraceable as problem:
                rough = formula_profile(self.bare, batch, numerics, choice.recompute, work)
                self._profiles[key] = (*rough, str(problem))
        profile, reference, untraced = self._profiles[key]
        if choice.mesh.tensor > 1:
            # arXiv:2205.05198, equation 2: of 34 bytes a token and hidden element 10 (norms, dropouts, inputs) are not
            # split.
            return scaled(profile, (10 + 24 / choice.mesh.tensor) / 34), reference, untraced
        return profile, reference, untraced

    def older_checkpoint(self, choice: Choice) -> bool:
        """Whether layers are recomputed by torch's reentrant checkpoint, which adapters under ZeRO-3 need."""
        return choice.adapter.use_peft and choice.setup.zero_stage == 3

    def _head(self, choice: Choice, numerics: Numerics, profile: Profile) -> Head:
        work = choice.work
        if work.head not in (ANSWERS, WEIGHTED):
            return Head()
        config = self.bare.config.get_text_config()
        # An adapter trains the head only where it is saved whole, or tied to embeddings that are.
        named = {"lm_head", "embed_tokens"} & {*(choice.adapter.lora_modules_to_save or [])}
        return answer_head(
            tokens=work.scored_tokens // choice.mesh.sequence,
            hidden=config.hidden_size,
            words=config.vocab_size,
            hidden_bytes=profile.hidden_bytes,
            weight_bytes=numerics.head.itemsize,
            trained=bool(named) if choice.adapter.use_peft else True,
            on_cpu=choice.setup.on_cpu,
            weighted=work.head == WEIGHTED,
        )

    def _at_work(self, choice: Choice, numerics: Numerics) -> float:
        """The bytes while a layer is at work, on top of what it keeps."""
        found = 0.0
        if numerics.packed is not None:
            # A quantised linear is made whole for its product, one at a time: the largest counts.
            found += max(linear.weight.numel() for linear in packed_linears(self.bare)) * numerics.packed.itemsize
        if choice.mesh.expert > 1:
            # AutoEP (DeepSpeed 0.19.8) has four copies of the tokens that it sends to experts at a time: received, put
            # in the order of experts, put back, and returned; about as many in each process if routing is balanced.
            config = self.bare.config.get_text_config()
            sent = choice.work.tokens_per_micro_step * experts_per_token(config) * config.hidden_size
            found += 4.0 * sent * numerics.compute.itemsize
        return found


def _method(adapter_args: AdapterArguments) -> tuple[bool, bool, bool]:
    return adapter_args.use_peft, adapter_args.load_in_4bit, adapter_args.load_in_8bit
