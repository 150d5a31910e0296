"""The arguments of `hftune serve`."""

from __future__ import annotations

from dataclasses import dataclass, field

from hftune.arguments.asking import TalkerFields

KEY_VARIABLE = "HFTUNE_API_KEY"
"""Variable with the key that clients must send, for whoever does not want it in the list of processes."""


@dataclass
class ServeArguments(TalkerFields):
    """A server for one model, its adapters and a reward model."""

    model: str | None = field(
        default=None,
        metadata={"help": "Folder (whole, merged or adapter) or Hub name of the model to serve; also given alone."},
    )
    adapter: list[str] | None = field(
        default=None,
        metadata={"help": "NAME=FOLDER of an adapter to serve under that name; several, also by repeating the flag."},
    )
    reward_model: str | None = field(
        default=None, metadata={"help": "Reward model whose scores are served at /pooling: a folder of run_rm.py."}
    )
    served_model_name: str | None = field(
        default=None, metadata={"help": "What the model is called in requests; left out: its folder's name."}
    )
    host: str = field(default="127.0.0.1", metadata={"help": "Address to listen at; 0.0.0.0 is every network."})
    port: int = field(default=8000, metadata={"help": "Port to listen at; 0: any that is free, which is said."})
    api_key: str | None = field(
        default=None,
        metadata={"help": f"Key that clients must send; better in the variable {KEY_VARIABLE}, which is not shown."},
    )
    backend: str = field(
        default="auto",
        metadata={
            "help": "transformers: one request at a time, on any machine; vllm: starts vLLM's server with the same "
            "folder, template and arguments; auto: vllm on a GPU if it is installed and --reward_model is not given.",
            "choices": ["auto", "transformers", "vllm"],
        },
    )
    max_model_len: int | None = field(
        default=None, metadata={"help": "Tokens of prompt and answer together; left out: as many as the model takes."}
    )
    max_waiting: int = field(
        default=256, metadata={"help": "Requests that may wait for their turn; more are refused with status 503."}
    )
