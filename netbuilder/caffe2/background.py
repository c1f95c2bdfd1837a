"""Plans that run in a background thread."""

from __future__ import annotations

from typing import Any

from netbuilder.proto.threads import Thread
from netbuilder.runtime import Workspace

__all__ = ["BackgroundPlan"]


class BackgroundPlan:
    """A plan that runs in a background thread.

    Until it is done, do not feed blobs that it reads, and run nothing else in its workspace.

    Args:
        workspace: where it runs.
        plan: a Plan or PlanDef.
    """

    def __init__(self, workspace: Workspace, plan: Any) -> None:
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, args=(workspace, plan), name="background plan", daemon=True)
        self._thread.start()

    def _run(self, workspace: Workspace, plan: Any) -> None:
        try:
            workspace.run_plan(plan)
        except BaseException as error:
            self._error = error

    def is_done(self) -> bool:
        """Whether the plan has ended, with or without an error."""
        return not self._thread.is_alive()

    def is_succeeded(self) -> bool:
        """Wait until the plan has ended, and return whether it ran without an error, which ``error`` has."""
        self._thread.join()
        return self._error is None

    @property
    def error(self) -> BaseException | None:
        """The error that ended the plan; None while it runs, and if there was none."""
        return self._error
