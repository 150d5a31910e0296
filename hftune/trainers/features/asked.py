"""What few runs ask for: dropout that grows, MLPs in pieces, experts on several processes, a profile.

A profile is a trace for a viewer, and a table to read at once: `output_dir/profile/trace-rank0.json.gz` opens in
Perfetto or chrome://tracing; `operators-rank0.txt` lists what cost most, by operator and, under it, by operator and
shape.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile
from transformers import TrainerCallback, TrainerControl, TrainerState

from hftune.arguments.training import StageArguments
from hftune.compat.installing import replace_method
from hftune.distributed import ranks
from hftune.distributed.expert_parallel import expert_layers, gathered_weights, shard_experts
from hftune.logging import get_logger, notice
from hftune.models.kernels.dropout import Dropouts, Probabilities, find_dropouts, outside_config
from hftune.models.kernels.tiling import longest_batch, tile_mlps, tiles_for
from hftune.models.loading.config import row_length
from hftune.trainers.features.run import Run, plain_model

FOLDER = "profile"
ROWS = 40


def set_up(run: Run) -> None:
    """What is asked for, in a trainer that is made: the stage's own constructor may switch dropout off."""
    args = run.args
    if args.asks_for_dropout:
        notice(describe_dropout(args))
        # Adapters have a dropout of their own, which these flags do not mean.
        plain = plain_model(run.model)
        if left := outside_config(plain.config, args):
            run.add_callback(DropoutWarmup(find_dropouts(plain, left), left, args))
    if args.tiled_mlp:
        tile(run)
    if args.profile and (ranks.is_main() or not args.profiler_rank0_only):
        run.add_callback(ProfileSteps(args.profile_step_start, args.profile_step_end))


def tile(run: Run) -> None:
    """Compute MLPs in pieces of a long batch: long rows in little memory."""
    plain = plain_model(run.model)
    longest = row_length(run.args)
    assert longest, "preflight asks for a length"
    tokens = longest_batch(run.args, longest)
    tiles = tiles_for(tokens, plain.config.get_text_config().hidden_size)
    count = tile_mlps(plain, tiles)
    notice(f"--tiled_mlp: {count} MLPs are computed in {tiles} piece(s) of at most {-(-tokens // tiles)} tokens")


def shard_experts_once(run: Run) -> None:
    """Leave to this process the experts that it keeps, before the optimizer is made; gathered again for saving."""
    size = run.args.expert_parallel_size
    if any(expert_layers(run.model)):
        return
    # Multiplying all experts at once needs a GPU and 16 bit.
    shard_experts(run.model, size, grouped=not run.args.use_cpu and bool(run.args.bf16))
    layers = [layer for _, layer in expert_layers(run.model)]
    notice(f"{layers[0].num_local_experts} of {layers[0].num_experts} experts in each of {size} processes")
    # accelerate knows no way to gather sharded experts; the Trainer asks it before it saves.
    replace_method(run.accelerator, "get_state_dict", lambda *_, **__: gathered_weights(run.model))


class DropoutWarmup(TrainerCallback):
    """Let dropout grow from 0 at step 0 to its full value at step `--dropout_warmup_steps`, in proportion to steps.

    ERNIEKit (its `LayerwiseDropoutCallback`) does the same, and always scales layer l of L (from 0) by l / L as well,
    which is `--layerwise_dropout` here. A resumed run has the value of its step.

    Args:
        layers: The places of each decoder layer.
        full: The probabilities in the end; those that the model's config takes care of are None.
        args: The steps, and whether layers differ.
    """

    def __init__(self, layers: list[Dropouts], full: Probabilities, args: StageArguments) -> None:
        self.layers, self.full = layers, full
        self.steps, self.layerwise = args.dropout_warmup_steps, args.layerwise_dropout

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Set what holds for the step that begins."""
        self.set(state.global_step)

    def set(self, step: int) -> None:
        """Set what holds after `step` optimizer steps."""
        # 0 steps are no growth, and no divisor.
        share = 1.0 if step >= self.steps else step / self.steps
        for number, places in enumerate(self.layers):
            places.set(self.full.scaled(share * (number / len(self.layers) if self.layerwise else 1.0)))


def describe_dropout(args: StageArguments) -> str:
    """One line that says which dropout a run has."""
    asked = {"hidden states": args.hidden_dropout_prob, "attention weights": args.attention_probs_dropout_prob}
    values = ", ".join(f"{value:g} on {name}" for name, value in asked.items() if value is not None)
    growth = f", from 0 over {args.dropout_warmup_steps} steps" if args.dropout_warmup_steps else ""
    depth = "growing with depth (layer l of L: l / L of it)" if args.layerwise_dropout else "the same in every layer"
    return f"dropout: {values}{growth}, {depth}"


class ProfileSteps(TrainerCallback):
    """Profiles the steps `first` to `last` of those that this process takes, counted from 1."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.taken = 0
        self.profiler: profile | None = None

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Start before the first step that is profiled."""
        self.taken += 1
        if self.taken == self.first:
            self.profiler = profile(record_shapes=True, profile_memory=True, acc_events=True)
            self.profiler.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write after the last one."""
        if self.profiler is not None and self.taken == self.last:
            self._write(self.profiler, Path(str(args.output_dir)) / FOLDER)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A run that ends sooner has the profile of what there was."""
        if self.profiler is not None:
            self._write(self.profiler, Path(str(args.output_dir)) / FOLDER)
        elif self.taken < self.first:
            notice(f"nothing was profiled: --profile_step_start is {self.first}, and {self.taken} steps were taken")

    def _write(self, profiler: profile, folder: Path) -> None:
        profiler.stop()
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / f"trace-rank{ranks.rank()}.json.gz"))
        order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        by_name, by_shape = (
            profiler.key_averages(group_by_input_shape=shapes).table(
                sort_by=order, row_limit=ROWS, max_name_column_width=60, max_shapes_column_width=80
            )
            for shapes in (False, True)
        )
        file = folder / f"operators-rank{ranks.rank()}.txt"
        file.write_text(f"{by_name}\n\nBy shape\n{by_shape}\n", encoding="utf-8")
        get_logger().info("profile of steps %s to %s: %s", self.first, self.taken, file)
        self.profiler = None
