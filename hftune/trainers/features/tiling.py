"""Long rows in little memory: MLPs in pieces, for all trainers."""

from __future__ import annotations

from hftune.logging import notice
from hftune.models.kernels.tiling import longest_batch, tile_mlps, tiles_for
from hftune.models.loading.config import row_length
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run, plain_model


class Tiling(Feature):
    """For `--tiled_mlp`."""

    def on_built(self, run: Run) -> None:
        """After the stage's constructor, which sees the model as it is."""
        plain = plain_model(run.model)
        longest = row_length(run.args)
        assert longest, "preflight asks for a length"
        tokens = longest_batch(run.args, longest)
        tiles = tiles_for(tokens, plain.config.get_text_config().hidden_size)
        count = tile_mlps(plain, tiles)
        notice(f"--tiled_mlp: {count} MLPs are computed in {tiles} piece(s) of at most {-(-tokens // tiles)} tokens")
