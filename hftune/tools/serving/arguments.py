"""The arguments of `hftune serve`."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.arguments.asking import LoadingFields

KEY_VARIABLE = "HFTUNE_API_KEY"
"""Variable with the key that clients must send, for whoever does not want it in the list of processes."""


@dataclass
class ServeArguments(LoadingFields):
    """vLLM's server, or transformers' own, for one model."""

    model: str | None = field(
        default=None,
        metadata={"help": "Folder (whole, merged or adapter) or Hub name of the model to serve; also given alone."},
    )
    adapter: list[str] | None = field(
        default=None,
        metadata={
            "help": "NAME=FOLDER of an adapter that vLLM serves under that name; several, also by repeating the flag."
        },
    )
    served_model_name: str | None = field(
        default=None, metadata={"help": "What the model is called in requests; left out: its folder's name."}
    )
    host: str = field(
        default="127.0.0.1",
        metadata={"help": "Address to listen at. Another one than this machine's own needs vLLM and a key."},
    )
    port: int = field(default=8000, metadata={"help": "Port to listen at; 0: any that is free, which is said."})
    api_key: str | None = field(
        default=None,
        metadata={
            "help": f"Key that clients of vLLM must send; better in the variable {KEY_VARIABLE}, which is not shown."
        },
    )
    backend: str = field(
        default="auto",
        metadata={
            "help": "Whose server is started. auto: vLLM's where it is installed and there is a GPU, else that of "
            "transformers (pip install 'hftune[serve]'), which answers one request at a time on any machine.",
            "choices": ["auto", "transformers", "vllm"],
        },
    )
    max_model_len: int | None = field(
        default=None, metadata={"help": "Tokens of prompt and answer together in vLLM; left out: what the model takes."}
    )
