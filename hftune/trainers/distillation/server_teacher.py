"""What a server says of a batch, in the place of teachers."""

from __future__ import annotations

import torch

from hftune.models.kernels.divergences import TopTargets
from hftune.trainers.distillation.on_policy import spans_of
from hftune.trainers.distillation.teacher_server import TeacherServer
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run


class ServerTeacher(Feature):
    """Asks for the targets of each batch; each process for those of its own documents, all of them side by side."""

    def __init__(self, server: TeacherServer) -> None:
        self.server = server
        self._lost = self._tokens = 0.0

    def targets(self, run: Run, inputs: Inputs, at: torch.Tensor) -> TopTargets:
        """What is said of the tokens whose predictions are at places `at` (tokens,) of the flattened batch, ascending.

        Raises:
            ArgumentError: The server is away, or its answer cannot be used.
        """
        flat, length = inputs["input_ids"].reshape(-1).cpu(), inputs["input_ids"].shape[1]
        places, starts = at.cpu(), torch.tensor([row * length + span.start for row, span in spans_of(inputs)])
        # Of each document with labels the text up to the last of them; a label is never the first token of one.
        of = torch.searchsorted(starts, places, right=True) - 1
        documents, counts = torch.unique_consecutive(of, return_counts=True)
        ends = counts.cumsum(0) - 1
        firsts, lasts = starts[documents].tolist(), places[ends].tolist()
        texts = [flat[first : last + 2].tolist() for first, last in zip(firsts, lasts, strict=True)]
        parts = list(zip(texts, places.split(counts.tolist()), firsts, strict=True))
        ids = torch.full((len(places), self.server.k), -1)
        log_probs = torch.zeros(len(places), self.server.k)
        begin = 0
        for said, (_, wanted, first) in zip(self.server.said(texts), parts, strict=True):
            rows = slice(begin, begin + len(wanted))
            # At its place in a text the token after it is predicted, of which the table has one row less.
            ids[rows], log_probs[rows] = (torch.from_numpy(one)[wanted - first] for one in said)
            begin = rows.stop
        if run.model.training:
            known = log_probs.double().exp().masked_fill(ids < 0, 0).sum(dim=1)
            self._lost += float((1 - known).clamp(0, 1).sum())
            self._tokens += len(places)
        return TopTargets(ids.to(at.device), log_probs.to(at.device))

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """Probability outside the k tokens, as a mean over the trained tokens of all processes since the last log."""
        if "loss" not in logs:
            return
        own = torch.tensor([self._lost, self._tokens], dtype=torch.float64, device=run.args.device)
        lost, tokens = run.accelerator.reduce(own, "sum").tolist()
        logs["teacher_lost_mass"] = round(lost / max(tokens, 1.0), 6)
        self._lost = self._tokens = 0.0
