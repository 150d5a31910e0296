"""A finished model, whole and with its tokenizer: what answers (`hftune/inference`), and what scores answers."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hftune.checkpoints.template_arguments import give_recorded
from hftune.distributed.zero import no_partitioning
from hftune.models.adapters.folding import fold_adapters
from hftune.models.loading.config_file import check_config, check_layers
from hftune.models.loading.from_pretrained import pretrained, quiet_transformers
from hftune.models.loading.stored_weights import check_finite, check_loaded
from hftune.models.vocabulary import grow_as_recorded
from hftune.path_hints import cannot_load
from hftune.template_arguments import TemplateArguments
from hftune.weight_files import weight_shapes


def load_finished(
    auto: Any,
    name: str,
    base: str,
    adapters: Sequence[str],
    flag: str,
    *,
    what: str,
    trust_remote_code: bool,
    template_arguments: TemplateArguments | None,
    **given: Any,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model in evaluation mode, adapters folded into their base in memory, and its tokenizer, with a pad token.

    Args:
        auto: The class of transformers that loads it.
        name: The folder or Hub name that was given; the tokenizer is there.
        base, adapters: Of that name, as `base_and_adapters` says.
        flag: What named it, for errors.
        what: It is, for errors.
        template_arguments: For its chat template; None: as it was trained.
        given: Of `from_pretrained`.

    Raises:
        ArgumentError: There is no such model, it lacks weights, or an adapter does not fit its base.
    """
    # Models have reference cycles: only a collection frees the memory of the one before.
    gc.collect()
    # Before transformers reads them: a config with absurd sizes would fill the memory.
    for folder in {name, base}:
        check_layers(check_config(folder, flag), weight_shapes(folder), folder, flag)
    try:
        with quiet_transformers(), no_partitioning():
            tokenizer = pretrained(AutoTokenizer, name, trust_remote_code=trust_remote_code)
            if tokenizer.chat_template:
                give_recorded(tokenizer, name, template_arguments)
            # The loading info tells what was not in the files.
            model, info = pretrained(auto, base, output_loading_info=True, trust_remote_code=trust_remote_code, **given)
    except (OSError, ValueError) as error:
        raise cannot_load(name, error, flag, what) from error
    # What is missing transformers draws at random; a head for scores comes with the adapter.
    check_loaded(info, model, base, flag=flag, scores=bool(adapters))
    # First the rows of added tokens, with which the adapter was trained.
    grow_as_recorded(model, adapters)
    model = fold_adapters(model, adapters)
    check_finite(model, name, flag)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model.eval(), tokenizer
