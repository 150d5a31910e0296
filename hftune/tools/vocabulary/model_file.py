"""Extend the `.model` file of a SentencePiece tokenizer with its `tokenizer.json`: llama.cpp and others read it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hftune.logging import notice
from hftune.tools.vocabulary.train import read_sentencepiece

NAME = "tokenizer.model"


def grow_model_file(folder: str | Path, content: dict[str, Any], target: Path) -> None:
    """Write the `tokenizer.model` of `folder`, if there is one, into `target` with the tokens that `content` has more.

    SentencePiece joins the neighbours whose piece has the best score, so new pieces of BPE score below all old ones, in
    their order; MedicalGPT's merge_tokenizers.py gives them 0, the best of all, which reads old text anew. Unigram
    pieces keep their scores. Nothing is written, and that is said, where the ids could not be those of `content`.
    """
    file = Path(folder) / NAME
    if not file.is_file():
        return
    if importlib.util.find_spec("sentencepiece") is None:
        notice(f"{NAME} is left out: the package sentencepiece, which could extend it, is not installed")
        return
    proto = read_sentencepiece(file)
    added = {token["id"]: token["content"] for token in content["added_tokens"]}
    model = content["model"]
    if model["type"] == "Unigram":
        pieces = {number: (piece, score) for number, (piece, score) in enumerate(model["vocab"])}
    else:
        lowest = min(piece.score for piece in proto.pieces)
        # Ids of the new pieces begin behind the file's own.
        first = len(proto.pieces)
        pieces = {number: (piece, lowest - 1 - number + first) for piece, number in model["vocab"].items()}
    if any(pieces.get(number, ("",))[0] != piece.piece for number, piece in enumerate(proto.pieces)):
        notice(f"{NAME} is left out: its ids are not those of tokenizer.json")
        return
    types = proto.SentencePiece.Type
    for number in range(len(proto.pieces), len(pieces)):
        if number not in pieces:
            notice(f"{NAME} is left out: no token has the id {number}")
            return
        new = proto.pieces.add()
        new.piece, new.score = pieces[number]
        # As added tokens are: cut out of a text before anything is joined.
        new.type = types.USER_DEFINED if number in added else types.NORMAL
    target.write_bytes(proto.SerializeToString())


def all_halves(content: dict[str, Any], first_new: int, merges: int) -> None:
    """Add merges so that each new token of a Llama-style BPE comes from any two halves, as in SentencePiece.

    In place. The merges of old tokens, the first `merges` of them, stay what they are.
    """
    vocabulary: dict[str, int] = content["model"]["vocab"]
    # By id, the order in which they were learnt: a merge's rank is its place in the list.
    new = sorted((number, token) for token, number in vocabulary.items() if number >= first_new and len(token) > 1)
    added = {token["content"] for token in content["added_tokens"]}
    kept = content["model"]["merges"][:merges]
    for _, token in new:
        halves = [[token[:cut], token[cut:]] for cut in range(1, len(token))]
        if token not in added:
            kept += [pair for pair in halves if pair[0] in vocabulary and pair[1] in vocabulary]
    content["model"]["merges"] = kept
