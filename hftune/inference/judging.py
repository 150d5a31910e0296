"""Models behind an OpenAI-compatible server that answer, and what scores answers: such models, and reward models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from multiprocessing.pool import ThreadPool
from typing import Any

import torch

from hftune.arguments.asking import JUDGE_KEY
from hftune.data.counts import FIX, Context
from hftune.data.encode_rewards import Scored, ScoringEncoder
from hftune.data.files import Row
from hftune.data.messages import Message
from hftune.data.turn_tokens import mode_for_answers
from hftune.inference.generate import Answer
from hftune.inference.questions import Question, asked
from hftune.logging import notice
from hftune.opening.files import MIB
from hftune.opening.json_server import ModelServer
from hftune.trainers.rewards.loading import load_reward_model, scores_steps, step_separator
from hftune.trainers.rewards.score_batches import run_batches

_SIDE_BY_SIDE = 16
# Of one token in an answer, escaped.
_TOKEN_BYTES = 64
# Of what a judge says.
_JUDGE_TOKENS = 1024
_COMPARING = """Compare two answers to the last turn of a conversation. Judge whether they are right, helpful and \
clear; neither their order nor their length counts.

[conversation]
{conversation}

[answer A]
{first}

[answer B]
{second}

End with one line: "Verdict: A", "Verdict: B", or "Verdict: tie"."""
# A small "a" may be an article, as in "a tie": it names an answer only where nothing but a mark follows.
_VERDICT = re.compile(
    r"(?i:verdict)\W*(?:(?i:is|it is|it's|an?|the|answer|response|option)\W+)*?"
    r"((?i:tie|draw)\b|[ABab](?=[^\w\s]|\s*$|\s+(?i:is|wins|because|since)\b))",
    re.MULTILINE,
)


class ChatServer(ModelServer):
    """Answers of a model."""

    def __call__(
        self, questions: Sequence[Question], *, max_new_tokens: int, seed: int | None = None, **options: Any
    ) -> list[Answer]:
        """An answer to each question; they are asked side by side.

        Args:
            seed: Of the first, those after it count on: the same question asked twice gets two answers.
            options: Of the request, such as `temperature`.

        Raises:
            ArgumentError: It is away, refuses one, or its answer cannot be used.
        """
        if not questions:
            return []
        body = {"model": self.name, "max_tokens": max_new_tokens, **options}
        bodies = [body if seed is None else {**body, "seed": seed + at} for at in range(len(questions))]
        with ThreadPool(min(len(questions), _SIDE_BY_SIDE)) as pool:
            return pool.starmap(self._answer, zip(questions, bodies, strict=True))

    def _answer(self, question: Question, body: dict[str, Any]) -> Answer:
        body = {**body, "messages": question.messages, **({"tools": question.tools} if question.tools else {})}
        if question.arguments:
            body["chat_template_kwargs"] = question.arguments
        limit = MIB + _TOKEN_BYTES * int(body["max_tokens"])
        found = self.ask("/chat/completions", body, limit=limit, patience=self.patience)
        choices = found.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        message = choice.get("message")
        if not isinstance(message, dict) or not _is_message(message):
            raise self.error("its answer holds no message", "give a server with OpenAI's API")
        said = {"role": "assistant", "content": (message.get("content") or "").strip()}
        said |= {name: message[name] for name in ("reasoning_content", "tool_calls") if message.get(name)}
        return Answer(said, choice.get("finish_reason") != "length")


def _is_message(found: dict[str, Any]) -> bool:
    """Whether the parts of a message are of the kinds that templates, rewards and files of data expect."""
    texts = all(isinstance(found.get(name), str | None) for name in ("content", "reasoning_content"))
    calls = found.get("tool_calls") or []
    return texts and isinstance(calls, list) and all(map(_is_call, calls))


def _is_call(found: Any) -> bool:
    function = found.get("function") if isinstance(found, dict) else None
    if not isinstance(function, dict):
        return False
    return isinstance(function.get("name"), str) and isinstance(function.get("arguments"), str | dict)


class Judge:
    """A model that is asked what answers of others are worth.

    Args:
        url: Of its server.
        name: Of the model there; None: the only one.
    """

    def __init__(self, url: str, name: str | None) -> None:
        self.server = ChatServer(url, "--judge_url", name, "--judge_model", JUDGE_KEY)

    def wins(self, questions: Sequence[Question], said: Sequence[Message]) -> list[float | None]:
        """1 where an answer is better than the record's, 0.5 for a tie, else 0; None for a record without one.

        Both orders are asked, since judges favour a place; a verdict that changes with the order is a tie.
        """
        prompts = []
        for one, message in zip(questions, said, strict=True):
            if one.right is not None:
                ours, talk = message.get("content") or "", one.transcript()
                prompts.append(_COMPARING.format(conversation=talk, first=ours, second=one.right))
                prompts.append(_COMPARING.format(conversation=talk, first=one.right, second=ours))
        answers = self.server([asked(text) for text in prompts], max_new_tokens=_JUDGE_TOKENS, temperature=0)
        texts = [str(one.message["content"]) for one in answers]
        if none := sum(not _VERDICT.search(text) for text in texts):
            notice(f"{none} of {len(texts)} answers of the judge hold no verdict; each counts as a tie")
        verdicts = map(verdict, texts)
        return [None if one.right is None else outcome(next(verdicts), next(verdicts)) for one in questions]


class RewardScorer:
    """A reward model that scores conversations, raw: an outcome model each, a process model each step.

    Args:
        path: Of an outcome or a process reward model.
        args: Of the command: `use_cpu`, `trust_remote_code`, `borders_in_text`.
        loading: Further arguments of `load_reward_model`.
        fix: What to do about a record that does not fit into the model's context.
        reading: Arguments of `ScoringEncoder`, in the place of those for answers.
    """

    def __init__(self, path: str, args: Any, loading: Any = (), fix: str = FIX, **reading: Any) -> None:
        loading = {"dtype": torch.float32, "trust_remote_code": args.trust_remote_code, **dict(loading)}
        self.model, tokenizer = load_reward_model(path, **loading)
        # Not spread over GPUs: reward models are run by a single process, a batch at a time.
        self.model.to("cuda" if torch.cuda.is_available() and not args.use_cpu else "cpu")
        self.pad = tokenizer.pad_token_id
        of_answers = {"separator": step_separator(path), "borders_in_text": mode_for_answers(args.borders_in_text)}
        context = Context.of(self.model, tokenizer, fix)
        self.make = ScoringEncoder(tokenizer, steps=scores_steps(self.model), context=context, **(of_answers | reading))

    def scores(
        self, questions: Sequence[Question], said: Sequence[Message], name: str = "answer"
    ) -> list[float | None]:
        """The score of each answer; None for an empty one, which has no token to score.

        Args:
            name: What the conversations are called in messages.
        """
        conversations = [[*one.messages, message] for one, message in zip(questions, said, strict=True)]
        rows = [Row({"messages": one}, name, number) for number, one in enumerate(conversations, start=1)]
        found = [self.make(row) if row.value["messages"][-1]["content"] else [] for row in rows]
        run_batches(self.model, [one for scored in found for one in scored], self.pad)
        return [score_of(scored[0]) if scored else None for scored in found]


def score_of(one: Scored) -> float | None:
    """The score of a conversation; of one in steps the least: a product would punish long answers."""
    return min(one.outputs) if one.outputs else None


def verdict(text: str) -> str:
    """`a`, `b` or `tie`: the last that a judge says; `tie` where it says none."""
    found = _VERDICT.findall(text)
    return str(found[-1]).lower().replace("draw", "tie") if found else "tie"


def outcome(ours_first: str, ours_second: str) -> float:
    """1 where an answer wins in both places, 0 where it loses in both; else 0.5."""
    return {("a", "b"): 1.0, ("b", "a"): 0.0}.get((ours_first, ours_second), 0.5)
