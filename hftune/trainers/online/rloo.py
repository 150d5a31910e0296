"""REINFORCE leave-one-out on TRL's trainer."""

from __future__ import annotations

import trl

from hftune.trainers.online.base import OnlineTrainer


class RLOOTrainer(OnlineTrainer, trl.RLOOTrainer):
    """REINFORCE leave-one-out (arXiv:2402.14740)."""
