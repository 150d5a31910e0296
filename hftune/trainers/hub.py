"""What a Trainer lets out of its process beside weights: no pickled arguments; to the Hub only what belongs there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers.trainer import TRAINING_ARGS_NAME

from hftune.logging import get_logger
from hftune.publishing.uploads import hub_errors, push_folder


class _NotWritten:
    """Arguments that can be used and not be pickled: what is stored is a word where to find them."""

    def __init__(self, args: Any) -> None:
        self._args = args

    def __getattr__(self, name: str) -> Any:
        return getattr(self._args, name)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, ("the arguments are in hftune.json",)


class LeavingMixin:
    """Put before a `Trainer` subclass, behind mixins that extend `_save`."""

    def _save(self: Any, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Overrides `Trainer._save`: without training_args.bin.

        It is a pickle of the arguments, the Hub's token and the keys of trackers among them. Nothing reads it again:
        `hftune.json` has the arguments, and resuming takes them from the command line.
        """
        args = self.args
        self.args = _NotWritten(args)  # a run killed between writing and removing leaves no secret either
        try:
            super()._save(output_dir, state_dict)  # type: ignore[misc]
        finally:
            self.args = args
        if args.should_save:
            (Path(output_dir or args.output_dir) / TRAINING_ARGS_NAME).unlink(missing_ok=True)

    def init_hf_repo(self: Any, *args: Any, **kwargs: Any) -> None:
        """Overrides the Trainer's: what the Hub says against the repository is one message, before training."""
        with hub_errors(str(self.args.hub_model_id or self.args.output_dir), "--hub_model_id"):
            super().init_hf_repo(*args, **kwargs)  # type: ignore[misc]

    def push_to_hub(
        self: Any,
        commit_message: str = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> str | None:
        """Overrides `Trainer.push_to_hub`: upload, from the output folder, what belongs there (`publishing.uploads`).

        The Trainer's would save the model over the finished result once more and upload the whole folder.

        Raises:
            ArgumentError: The Hub does not take it.
        """
        if not self.is_world_process_zero():
            return None
        args = self.args
        repo = self.hub_model_id or args.hub_model_id or Path(args.output_dir).absolute().name
        done = push_folder(
            Path(args.output_dir),
            repo,
            token=token or args.hub_token,
            message=commit_message,
            private=args.hub_private_repo if private is None else private,
            revision=revision or args.hub_revision,
        )
        get_logger().info("pushed to %s", repo)
        return done

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Overrides the Trainer's: nothing. Preflight refuses every --hub_strategy but `end`."""
