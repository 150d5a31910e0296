"""Writes a Modelfile for Ollama: the GGUF file, the chat template of the training, and where answers end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from hftune.errors import ArgumentError
from hftune.inference.prompts import terminator
from hftune.logging import notice
from hftune.tools.export.turns import Turns, turns_of

_SAMPLING = ("temperature", "top_p", "top_k", "min_p")


def modelfile(
    gguf: str, tokenizer: PreTrainedTokenizerBase, generation: GenerationConfig | None, system: str | None = None
) -> str:
    """The text of a Modelfile.

    Args:
        gguf: Name of the GGUF file next to it.
        tokenizer: Its chat template becomes a Go template where it only puts text around turns; else it is left out,
            with a notice, and Ollama looks for a template that it knows in the GGUF file.
        generation: Sampling settings to carry over.
        system: A system prompt.

    Raises:
        ArgumentError: A system prompt with three quotes in a row, which a Modelfile cannot hold.
    """
    lines = [f"FROM ./{gguf}", ""]
    turns = turns_of(tokenizer)
    if turns is not None:
        lines += [f'TEMPLATE """{go_template(turns)}"""', ""]
    else:
        notice("the chat template does more than put text around turns: the Modelfile has no TEMPLATE of its own")
    if system is not None:
        lines += [f'SYSTEM """{_without_quotes(system)}"""', ""]
    lines += [f'PARAMETER stop "{stop}"' for stop in _stops(tokenizer)]
    lines += [f"PARAMETER {name} {value}" for name, value in _sampling(generation).items()]
    return "\n".join(lines).rstrip() + "\n"


def go_template(turns: Turns) -> str:
    """The turns as a template of Go's text/template, as Ollama fills it in (`.Messages`, `.System`).

    A begin-of-text token that llama.cpp adds is left out. An answer that the conversation ends with is left open, so
    that the model continues it.
    """
    # Go's templates cannot subtract: a turn is the last if the rest from it on has length 1.
    last = "{{ $last := eq (len (slice $.Messages $i)) 1 }}"
    roles = [role for role in ("system", "user", "assistant") if role in turns.before]
    cases = "{{ else }}".join(f'{{{{ if eq .Role "{role}" }}}}{_turn(turns, role)}' for role in roles)
    # Each `else` opens an `if` within the one before, so each role closes one.
    body = cases + "{{ end }}" * len(roles)
    opening = f"{{{{ if not .System }}}}{_literal(turns.opening)}{{{{ end }}}}" if turns.opening else ""
    return f"{opening}{{{{ range $i, $_ := .Messages }}}}{last}{body}{{{{ end }}}}"


def _turn(turns: Turns, role: str) -> str:
    before, after = _literal(turns.before[role]), _literal(turns.after[role])
    if role == "assistant":
        return f"{before}{{{{ .Content }}}}{{{{ if not $last }}}}{after}{{{{ end }}}}"
    # Only after a user's turn that ends the conversation the model is asked for an answer.
    asks = f"{{{{ if $last }}}}{_literal(turns.asks)}{{{{ end }}}}" if role == "user" else ""
    return f"{before}{{{{ .Content }}}}{after}{asks}"


def _literal(text: str) -> str:
    # Text of the chat template with braces would be read as Go's; printed as a string it is text.
    return _without_quotes(text).replace("{{", '{{ "{{" }}')


def _without_quotes(text: str) -> str:
    if '"""' in text:
        raise ArgumentError('a Modelfile cannot hold """', place="--system / chat template", fix="use other quotes")
    return text


def _stops(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    # Both: some models end a turn with one and a text with the other.
    ends = [terminator(tokenizer), tokenizer.eos_token]
    return list(dict.fromkeys(end for end in ends if end))


def _sampling(generation: GenerationConfig | None) -> dict[str, Any]:
    # Of a model that answers greedily these settings are leftovers.
    if generation is None or not generation.do_sample:
        return {}
    values = {name: getattr(generation, name, None) for name in _SAMPLING}
    return {name: value for name, value in values.items() if value is not None}


def write_modelfile(
    folder: Path, gguf: str, tokenizer: PreTrainedTokenizerBase, model: Path, system: str | None
) -> Path:
    """Write `Modelfile` into a folder; sampling settings are those of the model's folder."""
    has_settings = (model / "generation_config.json").is_file()
    generation = GenerationConfig.from_pretrained(model) if has_settings else None
    file = folder / "Modelfile"
    file.write_text(modelfile(gguf, tokenizer, generation, system), encoding="utf-8")
    return file
