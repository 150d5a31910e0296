"""What llama.cpp itself makes of a GGUF file, compared with what transformers makes of the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from hftune.child_processes import PIPE, python, run
from hftune.errors import UserError, shown
from hftune.models.loading.from_pretrained import pretrained
from hftune.tools.export.serving import check_numbers, load

# Two scripts and code, with brackets and a line break: wrong cuts, merges or row orders show in one of them.
TEXTS = ("Who are you?", "The capital of France is", "为什么天空是蓝色的？", "def add(a, b):\n    return")
ANSWER_TOKENS = 12
_TOP = 20
"""Likeliest tokens of each place whose log-probabilities are compared."""
LARGEST_DIFFERENCE = {"f32": 1e-3, "f16": 0.05, "bf16": 0.2, "q8_0": 0.5}
"""Mean difference of log-probabilities (nats) that is rounding; coarser types lose what they lose, and only say so."""
# In a process of its own: a file that llama.cpp cannot read ends it. Keys and values are kept in 32 bits, as in
# transformers. Log-probabilities are those before the bias, which has the server say a token that is a whole text: of a
# part of a character it tells none. It answers at 127.0.0.1 for as long as this takes.
_READ = """
import json, sys, urllib.request
import xllamacpp
asked = json.load(sys.stdin)
params = xllamacpp.CommonParams()
params.model.path = asked["file"]
params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 512, 1, False, -1
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)

def cut(text):
    body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
    request = urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["tokens"]

def likeliest(prompt):
    body = {"prompt": prompt, "n_predict": 1, "temperature": 0, "n_probs": asked["top"], "cache_prompt": True}
    body["logit_bias"] = [[asked["whole"], 1e6]]
    (place,) = server.handle_completions(body)["choices"][0]["logprobs"]["content"]
    return [[one["id"], one["logprob"]] for one in place["top_logprobs"]]

said = {"cut": [cut(text) for text in asked["texts"]], "top": [likeliest(prompt) for prompt in asked["prompts"]]}
json.dump(said, open(asked["answer"], "w"))
"""


@dataclass(frozen=True)
class Answer:
    """A greedy answer to a text.

    Attributes:
        prompt: Token ids of the text.
        ids: Those of the answer.
        log_probs: Of all tokens at each place of the answer, (places, rows).
    """

    prompt: list[int]
    ids: list[int]
    log_probs: torch.Tensor


def prove(folder: Path, file: Path, kind: str, trust_remote_code: bool = False) -> dict[str, Any]:
    """Have llama.cpp read a file and continue what transformers answers greedily, token by token.

    Args:
        folder: The model.
        file: Its GGUF file, or the first of several.
        kind: Type of its matrices.

    Returns:
        `read_by`; `same_choice`, the share of places where both find the same token likeliest; the largest and the mean
        difference of log-probabilities of the likeliest tokens, in nats.

    Raises:
        UserError: llama.cpp cannot read it, cuts texts otherwise, or differs by more than rounding to `kind` does.
    """
    answers = _greedy(folder, trust_remote_code)
    said = _read(file, answers)
    for text, answer, ids in zip(TEXTS, answers, said["cut"], strict=True):
        if ids != answer.prompt:
            raise _wrong(f"llama.cpp cuts {text!r} into the tokens {ids}, and the model's tokenizer {answer.prompt}")
    right, differences = [], []
    expected = [(token, row) for one in answers for token, row in zip(one.ids, one.log_probs, strict=True)]
    for (token, row), top in zip(expected, said["top"], strict=True):
        right.append(top[0][0] == token)
        differences += [abs(float(row[other]) - value) for other, value in top]
    mean, same = sum(differences) / len(differences), sum(right) / len(right)
    if mean > LARGEST_DIFFERENCE.get(kind, float("inf")) or (kind == "f32" and same < 1):
        raise _wrong(f"the {kind} file answers otherwise: off by {mean:.3g} nats, {same:.0%} of the tokens are alike")
    figures = {"log_prob_largest_difference": max(differences), "log_prob_mean_difference": mean}
    return {"read_by": "llama.cpp", "same_choice": same, **figures}


def _wrong(cause: str) -> UserError:
    return UserError(cause, place="--verify", fix="report it with the model's config.json; nothing was written")


@torch.no_grad()
def _greedy(folder: Path, trust_remote_code: bool) -> list[Answer]:
    model: Any = load(folder, trust_remote_code)
    tokenizer = pretrained(AutoTokenizer, folder, trust_remote_code=trust_remote_code)
    found = []
    for text in TEXTS:
        prompt = tokenizer(text).input_ids
        ids = list(prompt)
        for _ in range(ANSWER_TOKENS):
            logits = model(input_ids=torch.tensor([ids], device=model.device)).logits[0].float().cpu()
            ids.append(int(logits[-1].argmax()))
        check_numbers(logits, folder)
        found.append(Answer(prompt, ids[len(prompt) :], logits[len(prompt) - 1 :].log_softmax(-1)))
    return found


def _read(file: Path, answers: list[Answer]) -> dict[str, Any]:
    """What llama.cpp says: `cut`, the tokens of `TEXTS`, and `top`, the likeliest tokens of each place in turn."""
    prompts = [[*one.prompt, *one.ids[:place]] for one in answers for place in range(len(one.ids))]
    answer = file.parent / ".read.json"
    asked = {"file": str(file), "texts": TEXTS, "prompts": prompts, "top": _TOP, "answer": str(answer)}
    asked["whole"] = answers[0].prompt[-1]
    done = run(python("-c", _READ), input=json.dumps(asked), stdout=PIPE, stderr=PIPE)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()][-3:]
        raise _wrong(f"llama.cpp cannot read {file.name} (code {done.returncode}): {shown(' | '.join(said), 600)}")
    found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    answer.unlink()
    return found
