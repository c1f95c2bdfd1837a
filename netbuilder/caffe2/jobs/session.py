"""Sessions, which run tasks."""

from __future__ import annotations

from typing import Any, ClassVar

from netbuilder.caffe2.jobs.cluster import Cluster
from netbuilder.caffe2.jobs.task import Task, TaskGroup, WorkspaceType
from netbuilder.graph import ExecutionStep, Net, Plan, execution_step
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default

__all__ = ["CompiledRunnable", "LocalSession", "Session"]


class CompiledRunnable:
    """A task or group compiled for a class of sessions.

    Args:
        obj: what the session runs.
        session_class: the class of sessions.
    """

    def __init__(self, obj: Any, session_class: type[Session]) -> None:
        self.obj = obj
        self.session_class = session_class


class Session:
    """Base class of sessions, which run tasks, groups of tasks, steps and nets; ``LocalSession`` is one.

    The end of its ``with`` block closes it.
    """

    _compiled_cache: ClassVar[dict[Any, CompiledRunnable]] = {}

    def __init__(self) -> None:
        self._open = True

    def is_open(self) -> bool:
        """Whether it has not been closed."""
        return self._open

    @classmethod
    def compile(cls, runnable: Any, workspace_type: str | None = None, setup_net_list: Any = None) -> CompiledRunnable:
        """Compile a task, group, step or net, which can then run repeatedly.

        Args:
            runnable: the task, group, step or net.
            workspace_type: where blobs of single tasks, steps and nets are stored; None: in the session's workspace.
                Groups have a private workspace by default.
            setup_net_list: nets that run before.

        Raises:
            NetError: ``runnable`` is none of these, or was compiled for another class of sessions.
        """
        if isinstance(runnable, CompiledRunnable):
            if runnable.session_class is not cls:
                raise NetError(
                    f"{cls.__name__}: this was compiled for {runnable.session_class.__name__}; compile it again"
                )
            return runnable
        known = cls._compiled_cache.get(runnable) if setup_net_list is None else None
        if known is not None and known.session_class is cls:
            return known
        group = _as_group(runnable, workspace_type)
        compiled = CompiledRunnable(cls._compile_task_group(group, setup_net_list), cls)
        if setup_net_list is None and isinstance(runnable, TaskGroup):
            cls._compiled_cache[runnable] = compiled
        return compiled

    def run(self, runnable: Any, workspace_type: str | None = None, setup_net_list: Any = None) -> None:
        """Run a task, group, step or net; see ``compile``.

        Raises:
            NetError: the session is closed, or an operator failed.
        """
        if not self._open:
            raise NetError(f"{type(self).__name__} is closed; create another one")
        self._run_compiled(self.compile(runnable, workspace_type, setup_net_list).obj)

    def close(self) -> None:
        """Close the session, which then runs nothing."""
        if self._open:
            self._do_close()
            self._open = False

    def fetch_output(self, output: Any) -> Any:
        """Return the value of a blob."""
        raise NotImplementedError(f"{type(self).__name__}: subclasses must implement fetch_output")

    def _run_compiled(self, task_group: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__}: subclasses must implement _run_compiled")

    @classmethod
    def _compile_task_group(cls, task_group: TaskGroup, setup_net_list: Any = None) -> Any:
        return task_group

    def _do_close(self) -> None:
        """Called when the session is closed."""

    def __enter__(self) -> Session:
        if not self._open:
            raise NetError(f"{type(self).__name__} is closed; create another one")
        return self

    def __exit__(self, ex_type: Any, value: Any, traceback: Any) -> None:
        if ex_type is None:
            self.close()


def _as_group(runnable: Any, workspace_type: str | None) -> TaskGroup:
    if isinstance(runnable, TaskGroup):
        if workspace_type is not None and runnable.workspace_type() not in (None, workspace_type):
            raise NetError(f"session: the group's workspace is {runnable.workspace_type()!r}, not {workspace_type!r}")
        return runnable
    own = runnable.workspace_type() if isinstance(runnable, Task) else None
    group = TaskGroup(workspace_type or own or WorkspaceType.GLOBAL)
    if isinstance(runnable, Task):
        group.add(runnable)
    elif isinstance(runnable, Plan):
        raise NetError("a session cannot run a plan; run it with workspace.RunPlan, or run its steps")
    elif isinstance(runnable, (ExecutionStep, Net, list, tuple)) or hasattr(runnable, "steps_or_nets"):
        step = runnable if isinstance(runnable, ExecutionStep) else execution_step("runnable", _parts(runnable))
        Task(step=step, group=group, name="runnable")
    else:
        raise NetError(f"a session can run a task, a group of tasks, a step or a net, got {runnable!r}")
    return group


def _parts(runnable: Any) -> Any:
    return runnable.steps_or_nets() if hasattr(runnable, "steps_or_nets") else runnable


class LocalSession(Session):
    """Runs tasks in this process, whatever their nodes.

    Args:
        ws: the workspace for the results; None: the current one.

    >>> session = LocalSession(Workspace())
    >>> net = Net("one")
    >>> blob = net.ConstantFill([], "x", shape=[1], value=2.0)
    >>> session.run(net)
    >>> session.fetch_output("x").tolist()
    [2.0]
    """

    def __init__(self, ws: Any = None) -> None:
        super().__init__()
        self._ws: Workspace = default.workspace() if ws is None else getattr(ws, "_native", ws)

    @classmethod
    def _compile_task_group(cls, task_group: TaskGroup, setup_net_list: Any = None) -> Any:
        with Cluster():
            task = task_group.to_task()
        kind = task_group.workspace_type() or task.workspace_type()
        step = task.get_step()
        if setup_net_list:
            step = execution_step("with_setup", [execution_step("setup", list(setup_net_list)), step])
        plan = Plan("task_group_plan")
        plan.AddStep(step)
        return plan, task.output_list(), kind

    def _run_compiled(self, compiled: Any) -> None:
        plan, outputs, workspace_type = compiled
        names = [str(name) for name in outputs.names()]
        for name in names:
            self._ws.make(name)  # so that it outlives a private workspace
        outputs.set_values(outputs.names(), _fetch_func=self._fetch_output)
        private = workspace_type == WorkspaceType.PRIVATE
        (Workspace(parent=self._ws) if private else self._ws).run_plan(plan)

    def fetch_output(self, output: Any) -> Any:
        """Return the value of a blob."""
        return self._ws.fetch(str(output))

    def _fetch_output(self, output: Any) -> Any:
        return self.fetch_output(output)
