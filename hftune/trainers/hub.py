"""What a trainer sends to the Hub: the finished result, and of it what belongs there."""

from __future__ import annotations

from pathlib import Path

from hftune.logging import get_logger
from hftune.stores import modelscope
from hftune.stores.located import chosen_hub
from hftune.stores.objects import is_url
from hftune.stores.pushing import push
from hftune.trainers.features.run import Run


def make_repository(run: Run) -> bool:
    """Make sure that the repository is there, where it is not on Hugging Face's Hub; whether it is elsewhere.

    Raises:
        ArgumentError: It is not taken: before a step is trained.
    """
    args = run.args
    repo = args.hub_model_id or Path(str(args.output_dir)).absolute().name
    if is_url(repo):
        return True
    if chosen_hub(args.hub) != "modelscope":
        return False
    if run.is_world_process_zero():
        modelscope.make_repository(repo, args.hub_token, args.hub_private_repo, "--hub_model_id")
    return True


def push_result(
    run: Run, repo: str | None, *, message: str, token: str | None, revision: str | None, private: bool | None
) -> str | None:
    """Upload the output folder; None on ranks other than the first.

    The Trainer's `push_to_hub` would save the model over the finished result once more and upload the whole folder.

    Args:
        repo: Its name; None: that of `--hub_model_id`, or of the folder.

    Raises:
        ArgumentError: The Hub does not take it.
    """
    if not run.is_world_process_zero():
        return None
    args = run.args
    repo = repo or args.hub_model_id or Path(str(args.output_dir)).absolute().name
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
