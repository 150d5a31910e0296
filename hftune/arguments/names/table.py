"""All rows by name."""

from __future__ import annotations

from hftune.arguments.names.row import Row
from hftune.arguments.names.rows import (
    adapters,
    checkpoints,
    data,
    lengths,
    logging,
    models,
    moe,
    multimodal,
    older,
    optimizers,
    paddle,
    parallel,
    precision,
    preferences,
    reinforcement,
    serving,
    tasks,
)

TOPICS: dict[str, tuple[Row, ...]] = {
    "Runs and stages": tasks.ROWS,
    "Models and tokenizers": models.ROWS,
    "Mixture of experts": moe.ROWS,
    "Records and mixing": data.ROWS,
    # Before batches, which are shared by groups of processes: values are translated in this order.
    "Parallelism, sharding and recomputation": parallel.ROWS,
    "Lengths, packing, templates and batches": lengths.ROWS,
    "Adapters and freezing": adapters.ROWS,
    "Optimizers and schedules": optimizers.ROWS,
    "Precision and quantisation": precision.ROWS,
    "Checkpoints": checkpoints.ROWS,
    "Logging, evaluation and profiling": logging.ROWS,
    "Preferences and reward models": preferences.ROWS,
    "Reinforcement learning and distillation": reinforcement.ROWS,
    "Serving and generation": serving.ROWS,
    "Images and video": multimodal.ROWS,
    "PaddleFormers, beneath ERNIEKit": paddle.ROWS,
    "Removed from transformers 5": older.ROWS,
}


def _by_name() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for row in (row for topic in TOPICS.values() for row in topic):
        assert row.name not in rows, f"{row.name} is in the table twice"
        rows[row.name] = row
    return rows


TABLE = _by_name()
