"""What a trainer sends to the Hub: the finished result, and of it what belongs there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hftune.logging import get_logger
from hftune.publishing.uploads import hub_errors
from hftune.stores import modelscope
from hftune.stores.located import chosen_hub
from hftune.stores.objects import is_url
from hftune.stores.pushing import push
from hftune.trainers.features.run import Run


def make_repository(run: Run, on_hugging_face: Callable[[], None]) -> None:
    """Make sure that the repository of a run is there.

    Raises:
        ArgumentError: It is not taken: before a step is trained.
    """
    args = run.args
    repo = args.hub_model_id or Path(str(args.output_dir)).absolute().name
    if is_url(repo):
        return
    if chosen_hub(args.hub) != "modelscope":
        with hub_errors(str(args.hub_model_id or args.output_dir), "--hub_model_id"):
            on_hugging_face()
    elif run.is_world_process_zero():
        modelscope.make_repository(repo, args.hub_token, args.hub_private_repo, "--hub_model_id")


def push_result(run: Run, *, message: str, token: str | None, revision: str | None, private: bool | None) -> str | None:
    """Upload the output folder; None on ranks other than the first.

    The Trainer's `push_to_hub` would save the model over the finished result once more and upload the whole folder.

    Raises:
        ArgumentError: The Hub does not take it.
    """
    if not run.is_world_process_zero():
        return None
    args = run.args
    repo = run.hub_model_id or args.hub_model_id or Path(str(args.output_dir)).absolute().name
    done = push(
        Path(str(args.output_dir)),
        repo,
        hub=args.hub,
        token=token or args.hub_token,
        message=message,
        private=args.hub_private_repo if private is None else private,
        revision=revision or args.hub_revision,
    )
    get_logger().info("pushed to %s", repo)
    return done
