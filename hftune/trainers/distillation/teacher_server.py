"""A teacher behind an OpenAI-compatible server, which says its most likely tokens of texts that it is given as ids.

By vLLM's `prompt_logprobs` of `/v1/completions`. What comes back is checked value by value.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from multiprocessing import TimeoutError as NotYet
from multiprocessing.pool import ThreadPool
from typing import NoReturn

import numpy as np
from transformers import PreTrainedTokenizerBase

from hftune.arguments.distill import KEY_VARIABLE, DistillArguments
from hftune.distributed import phases
from hftune.errors import shown
from hftune.logging import notice
from hftune.opening.files import MIB
from hftune.opening.json_server import ModelServer
from hftune.preflight.teachers import SERVER
from hftune.trainers.distillation.loading import GOLD, SAMPLES

USUAL_K = 20
"""As many as vLLM gives unless it is told otherwise (`--max-logprobs`)."""

Said = tuple[np.ndarray, np.ndarray]
"""Of the second token of a text on: (tokens - 1, k) int64 ids, the likeliest first, -1 where fewer are given, and their
log-probabilities, float32."""

_SIDE_BY_SIDE = 16
_PATIENCE = 5.0
"""Seconds for a server that is away when a run begins; later as long as an answer may take."""
_ENTRY_BYTES = 256
"""Of one token in an answer: id, number, rank, and its text, which may be escaped."""
# Rounding: a log-probability, and the sum of probabilities, may be a little above.
_ABOVE = 1e-2
_FIX = "give a server of the same tokenizer that returns prompt_logprobs by token ids (vllm serve)"


class TeacherServer(ModelServer):
    """What a server says of texts.

    Args:
        k: Tokens asked for at each place.

    Attributes:
        k: As many as it gives, after `check`.
    """

    def __init__(self, url: str, name: str | None, k: int, timeout: float = 300.0) -> None:
        super().__init__(url, SERVER, name, "--teacher_model", KEY_VARIABLE, timeout=timeout)
        self.k, self.patience = k, _PATIENCE

    def check(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Compare its tokenizer with the student's, and learn how many tokens it gives.

        Raises:
            ArgumentError: It is away, has another tokenizer, or gives no log-probabilities of tokens by their ids.
        """
        probe = "\n".join(SAMPLES) + str(tokenizer.eos_token or "")
        own = list(tokenizer(probe, add_special_tokens=False)["input_ids"])
        # Without further ones an entry is the token itself. The server may put a token in front.
        found = [next(iter(entry)) for entry in self._entries(probe, 0)]
        if found[1 - len(own) :] != own[1:]:
            count = len(found) + 1
            cause = f"the server has another tokenizer: of a probe text it makes {count} tokens, the student "
            raise self.error(cause + (str(len(own)) if count != len(own) else "others"), GOLD)
        ((ids, log_probs),) = self.said([own])
        self.k = int((ids >= 0).sum(axis=1).max())
        lost = float(np.clip(1 - np.where(ids >= 0, np.exp(log_probs), 0).sum(axis=1), 0, 1).mean())
        notice(
            f"the teacher is {self.name} at {self.url}: the {self.k} most likely tokens count one by one, all "
            f"others as one ({lost:.2g} of the probability of a probe text)"
        )
        self.patience = self.timeout

    def said(self, texts: Sequence[list[int]]) -> Iterator[Said]:
        """What it says of texts, each of two tokens at least, in their order; they are asked about side by side.

        Raises:
            ArgumentError: It is away, refuses one, or its answer cannot be used.
        """
        if not texts:
            return
        # Daemon threads: a process that is told to stop does not wait for them.
        with ThreadPool(min(len(texts), _SIDE_BY_SIDE)) as pool:
            answers = pool.imap(self._said, texts)
            for _ in texts:
                while True:
                    try:
                        yield answers.next(timeout=1.0)
                        break
                    except NotYet:
                        phases.keep_alive()  # how long it takes is the server's affair, and limited there

    def _said(self, ids: list[int]) -> Said:
        entries = self._entries(ids, self.k)
        if len(entries) != len(ids) - 1:
            self._unusable(f"it holds {len(entries) + 1} tokens of {len(ids)}")
        if any(token not in entry for entry, token in zip(entries, ids[1:], strict=True)):
            self._unusable("it is about other tokens than were sent")
        return self._table(entries)

    def _entries(self, prompt: str | list[int], k: int) -> list[dict[int, float]]:
        """At each place from the second on numbers by ids: of the k likeliest tokens, and of the one that stands there.

        Args:
            prompt: A text, or its ids.
        """
        body = {"model": self.name, "prompt": prompt, "temperature": 0, "add_special_tokens": False}
        # One token more than is wanted: vLLM makes no answer without any.
        body |= {"prompt_logprobs": k, "max_tokens": 1}
        limit = 4 * MIB + len(prompt) * (k + 2) * _ENTRY_BYTES
        answer = self.ask("/completions", body, limit=limit, patience=self.patience)
        try:
            entries = answer["choices"][0]["prompt_logprobs"][1:]
            found = [{_id(key): float(one["logprob"]) for key, one in entry.items()} for entry in entries]
            if all(found):
                return found
            raise ValueError("nothing is said of a token")
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            self._unusable(
                f"it holds no prompt_logprobs as vLLM gives them ({type(error).__name__} {shown(error, 80)})"
            )

    def _table(self, entries: list[dict[int, float]]) -> Said:
        """The k likeliest of each."""
        ids = np.full((len(entries), self.k), -1, dtype=np.int64)
        log_probs = np.zeros((len(entries), self.k), dtype=np.float32)
        for row, entry in enumerate(entries):
            if not all(math.isfinite(value) and value <= _ABOVE for value in entry.values()):
                self._unusable("it holds numbers that are no log-probabilities")
            chosen = sorted(entry.items(), key=lambda one: -one[1])[: self.k]
            ids[row, : len(chosen)], log_probs[row, : len(chosen)] = zip(*chosen, strict=True)
        if (np.where(ids >= 0, np.exp(log_probs.astype(np.float64)), 0).sum(axis=1) > 1 + _ABOVE).any():
            self._unusable("it holds probabilities that sum to more than 1")
        return ids, log_probs

    def _unusable(self, cause: str) -> NoReturn:
        raise self.error(f"the server's answer cannot be used: {cause}", _FIX)


def _id(key: str) -> int:
    """The id of a token, whose keys are digits alone."""
    if not (key.isascii() and key.isdigit() and len(key) < 10):
        raise ValueError(f"{key!r} is no id of a token")
    return int(key)


@functools.lru_cache(maxsize=4)
def _server(url: str, name: str | None, k: int) -> TeacherServer:
    return TeacherServer(url, name, k)


def teacher_server(args: DistillArguments, k: int | None = None) -> TeacherServer:
    """The server that the arguments name, one for the process: checked once, it is used by whoever asks after that.

    Args:
        k: Tokens asked for; None: as the arguments say.
    """
    return _server(str(args.teacher_server_url), args.served_teacher, k or args.teacher_top_k or USUAL_K)
