"""Plans that run in a thread of their own."""

from __future__ import annotations

import threading
from typing import Any

from netbuilder.runtime import Workspace

__all__ = ["BackgroundPlan"]


class BackgroundPlan:
    """A plan that runs in a thread of its own.

    The workspace is the plan's until it is done: feed nothing that it reads, and run nothing else there.

    Args:
        workspace: where it runs.
        plan: a Plan or PlanDef.
    """

    def __init__(self, workspace: Workspace, plan: Any) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(workspace, plan), name="background plan", daemon=True)
        self._thread.start()

    def _run(self, workspace: Workspace, plan: Any) -> None:
        try:
            workspace.run_plan(plan)
        except BaseException as error:
            self._error = error

    def is_done(self) -> bool:
        """Whether the plan has ended, well or not."""
        return not self._thread.is_alive()

    def is_succeeded(self) -> bool:
        """Wait until the plan has ended, and return whether it ran to its end without an error.

        ``error`` has what was raised.
        """
        self._thread.join()
        return self._error is None

    @property
    def error(self) -> BaseException | None:
        """What ended the plan; None while it runs, and if nothing did."""
        return self._error
