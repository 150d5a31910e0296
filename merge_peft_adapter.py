"""Fold an adapter into its base: a model that plain transformers loads, with tokenizer and chat template.

python merge_peft_adapter.py --peft_model_path outputs/sft --output_dir outputs/sft-merged
    The base is the one that the adapter was trained on, unless --base_model_name_or_path says otherwise.
"""

from hftune.arguments.merging import parse_merge_arguments
from hftune.errors import run_tool


def main() -> None:
    """Parse, check, merge, verify, save."""
    merge_args = parse_merge_arguments()

    from hftune.merging.merge import merge_adapter

    merge_adapter(merge_args)


if __name__ == "__main__":
    run_tool(main)
