"""How every stage computes: precision, dropout, routers, tiling, parallel sizes; what watches and measures it."""

from __future__ import annotations

from dataclasses import dataclass

from hftune.arguments.option import option
from hftune.checks import refuse
from hftune.distributed import ranks
from hftune.distributed.ranks import Mesh, mesh_problems
from hftune.errors import raise_together
from hftune.logging import notice

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
"""torchao's names: one scale a tensor (E4M3 forward, E5M2 for gradients); one a row; the same, with the gradient of the
weights in bf16."""

# Torch's own time-out of collectives waits so many seconds longer, so that the message that names the culprit comes.
_AFTER = 300


@dataclass
class ComputationFields:
    """Mixed into every stage's arguments; a class next to it brings transformers' `ddp_timeout`."""

    # --- watching and measuring; the names of a profile's steps are Megatron's ---
    hang_timeout: float = option(
        1500.0,
        "Seconds in which training must move on from one phase (data, forward, backward, optimizer step, "
        "save, a batch of evaluation, generation) to the next. After that every process says which rank is behind, "
        "and where, and ends with exit code 76. 0: never.",
    )
    callbacks: list[str] | None = option(
        None,
        "Callbacks of yours: FILE.py:CLASS or MODULE:CLASS, subclasses of transformers' TrainerCallback; "
        "with arguments 'FILE.py:CLASS{\"after\": 3}'.",
    )
    early_stopping_patience: int | None = option(
        None,
        "Stop after so many evaluations in a row that bring --metric_for_best_model no further. It needs "
        "held-out records, --eval_strategy and --load_best_model_at_end.",
    )
    early_stopping_threshold: float = option(
        0.0, "For --early_stopping_patience: what is no more than this does not count as better."
    )
    profile: bool = option(
        False, "Write a torch.profiler trace of some steps and a table of what cost most, to output_dir/profile."
    )
    profile_step_start: int = option(4, "First step, counted from 1, of --profile.")
    profile_step_end: int = option(6, "Last step of --profile.")
    profiler_rank0_only: bool = option(True, "Profile the first process alone, not every one.")

    # --- sizes of the groups of processes that work on the same model, rows or experts; 1: no such groups ---
    tensor_parallel_size: int = option(
        1, "Processes that share the matrices of every layer (AutoTP); they see the same rows."
    )
    sequence_parallel_size: int = option(
        1, "Processes that share the tokens of every row (Ulysses); they see the same rows."
    )
    expert_parallel_size: int = option(
        1, "Processes that share the experts of every layer of a mixture (AutoEP); each sees rows of its own."
    )

    # --- precision of training in full: a frozen base in 8 or 4 bits is `load_in_8bit` and `load_in_4bit` ---
    fp8: str | None = option(
        None,
        "Multiply the linear layers' matrices in FP8 (torchao, a GPU of compute capability 8.9 or later, "
        "training in full in bf16). --torch_compile True makes it pay.",
        choices=[*RECIPES],
    )
    train_in_float32: bool = option(
        False,
        "Keep what is trained in float32 whatever --dtype says, a reward model's head too. Under "
        "DeepSpeed it is so anyway, in the optimizer's copies.",
    )
    tiled_mlp: bool = option(
        False,
        "Compute each MLP a piece of the row at a time and recompute it in the backward pass, so that the "
        "widest activations are never there for a whole row. PT and SFT; for long rows.",
    )

    # --- dropout on ERNIEKit's names, whatever the model's config calls it; losses of routers, the first TRL's name ---
    hidden_dropout_prob: float | None = option(
        None, "Dropout on what attention and MLP add to the hidden states. Left out: as the model's config says."
    )
    attention_probs_dropout_prob: float | None = option(
        None, "Dropout on attention weights. Left out: as the model's config says."
    )
    dropout_warmup_steps: int = option(0, "Steps in which both grow from 0 to their values, linearly.")
    layerwise_dropout: bool = option(
        False, "Scale both by a layer's number (from 0) over the count of layers, as ERNIEKit does."
    )
    # None is not 0: the weight in the model's config counts then.
    router_aux_loss_coef: float | None = option(
        None,
        "Weight of the routers' load-balancing loss (arXiv:2101.03961). Left out: what the model's config "
        "says, 0 where it says nothing.",
    )
    moe_z_loss_coef: float = option(
        0.0, "Weight of the routers' z-loss (arXiv:2202.08906), a mean over tokens and layers."
    )

    @property
    def asks_for_dropout(self) -> bool:
        """Whether a dropout other than the model's own was asked for."""
        return self.hidden_dropout_prob is not None or self.attention_probs_dropout_prob is not None

    @property
    def mesh(self) -> Mesh:
        """Which processes work together; of a plan: those that it is made for."""
        return Mesh(
            # Computed at each call: a plan imagines other worlds with the same arguments.
            world=ranks.world_size(),
            tensor=self.tensor_parallel_size,
            sequence=self.sequence_parallel_size,
            expert=self.expert_parallel_size,
        )

    @property
    def data_parallel_size(self) -> int:
        """Processes that see rows of their own: the factor of batches, samplers and token counts."""
        return self.mesh.data

    def check_computation(self) -> None:
        """Refuse what cannot be, and let torch's own time-out come after `hang_timeout`.

        Raises:
            ArgumentError: Steps of a profile that are none, or sizes for which the processes do not suffice.
        """
        refuse(__package__, "computation", self)
        # NCCL's own time-out aborts the process at once: the watchdog must come first to say which rank was behind.
        collectives = self.ddp_timeout
        if self.hang_timeout and collectives < self.hang_timeout + _AFTER:
            # Of the TrainingArguments alongside; annotated, since this class does not declare it.
            self.ddp_timeout: int = int(self.hang_timeout) + _AFTER
            notice(
                f"--ddp_timeout is {self.ddp_timeout}: collectives wait longer than --hang_timeout "
                f"{self.hang_timeout:g}"
            )
        raise_together(mesh_problems(self.mesh))
