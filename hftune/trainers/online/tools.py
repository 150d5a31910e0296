"""Functions that the policy may call while it answers; GRPO's, through TRL's loop of turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils import DocstringParsingException, TypeHintParsingException, get_json_schema
from trl.chat_template_utils import (
    add_response_schema,
    get_training_chat_template,
    is_chat_template_prefix_preserving,
    supports_tool_calling,
)

from hftune.arguments.named_code import named_code
from hftune.arguments.rl_algorithms import GRPOArguments
from hftune.errors import ArgumentError, raise_together
from hftune.logging import notice

Tool = Callable[..., Any]


def load_tools(training_args: Any, tokenizer: PreTrainedTokenizerBase) -> list[Tool]:
    """The functions of `--tools`; none for other algorithms than GRPO.

    What a tool says becomes a turn of its own, upon which the policy continues; its tokens are not trained on.

    Args:
        tokenizer: Its chat template must show tools and what they answer; how calls are read from an answer is known
            to TRL for the templates of many models, or stands in the tokenizer's `response_schema`.

    Raises:
        ArgumentError: A function that cannot be found or does not say how to call it, or a template without tools.
    """
    if not isinstance(training_args, GRPOArguments) or not training_args.tools:
        return []
    tools = [named_code(name, "--tools") for name in training_args.tools]
    problems = [*_undescribed(tools), *_unfit(tokenizer)]
    raise_together(problems)
    turns = training_args.max_tool_calling_iterations
    notice(f"tools: {', '.join(tool.__name__ for tool in tools)}; at most {turns or 'any number of'} turns of calls")
    return tools


def _undescribed(tools: Sequence[Tool]) -> Iterator[ArgumentError]:
    for tool in tools:
        try:
            get_json_schema(tool)
        except (DocstringParsingException, TypeHintParsingException) as error:
            yield ArgumentError(
                f"nobody can know how to call {tool.__name__}: {error}",
                place="--tools",
                fix="give each argument a type and a line under Args: in a docstring of Google's style",
            )


def _unfit(tokenizer: PreTrainedTokenizerBase) -> Iterator[ArgumentError]:
    """Templates without tools, without a known way to read calls, or that cannot continue a conversation."""
    reads = getattr(tokenizer, "response_template", None) or getattr(tokenizer, "response_schema", None)
    try:
        if not tokenizer.chat_template or not supports_tool_calling(tokenizer):
            cause = "the model's chat template shows no tools and what they answer"
        else:
            cause = ""
            # TRL knows the templates of many models by their text, and raises ValueError for others.
            if not reads:
                add_response_schema(tokenizer)
            if not is_chat_template_prefix_preserving(tokenizer):
                get_training_chat_template(tokenizer)
    except ValueError as error:
        cause = f"calls cannot be read from the answers of this chat template: {str(error).splitlines()[0]}"
    if cause:
        yield ArgumentError(
            cause,
            place="--tools",
            fix="take a model that was trained to call tools (Qwen2.5, Qwen3, Llama 3.1 and newer, GLM-4, ...)",
        )
