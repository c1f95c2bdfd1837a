"""Task: a step on a node, with outputs. TaskGroup: tasks that run at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netbuilder.caffe2.jobs.cluster import Node
from netbuilder.caffe2.jobs.net_builder import NetBuilder
from netbuilder.caffe2.jobs.outputs import TaskOutput, TaskOutputList
from netbuilder.caffe2.jobs.task_setup import add_setup_steps, get_setup_nets
from netbuilder.caffe2.records import Field
from netbuilder.graph import BlobReference, ExecutionStep, Net, execution_step, to_execution_step
from netbuilder.graph.context_stack import Managed
from netbuilder.proto import NetError

__all__ = ["Task", "TaskGroup", "WorkspaceType", "final_output"]


class WorkspaceType:
    """Where the blobs of tasks are stored: in a private workspace, or in the session's."""

    PRIVATE = "private"
    GLOBAL = "global"


class Task(Managed):
    """A step that runs on a node, at the same time as the other tasks of its group.

    In the block of a task, operators are added by ``ops``.

    Args:
        step: a step, net or builder, or a list of these; None: the operators added in the block.
        outputs: blobs, records or TaskOutputs to be fetched after a run.
        workspace_type: see ``WorkspaceType``; None: the group's.
        group: the group of tasks; None: the current one, if any; a session can run a task without a group.
        node: where it runs; None: the current node.
        name: follows the node's name, and is made unique within the group; None: the name of ``step``, if it has one.
        num_instances: number of copies that run at the same time, each in its own workspace.
    """

    TASK_SETUP = "task_setup"
    TASK_INSTANCE_SETUP = "task_instance_setup"
    REPORT_STEP = "report_step"
    _global_names_used: set[str] = set()

    @staticmethod
    def _get_next_name(node: str, group: Any, name: str | None) -> str:
        base = f"{node}/{name or 'task'}"
        others = group.tasks_so_far() if group is not None else []
        used = Task._global_names_used.union(task.name for task in others)
        candidate, number = base, 0
        while candidate in used:
            number += 1
            candidate = f"{base}:{number}"
        return candidate

    def __init__(
        self,
        step: Any = None,
        outputs: Any = None,
        workspace_type: str | None = None,
        group: Any = None,
        node: Any = None,
        name: str | None = None,
        num_instances: int | None = None,
    ) -> None:
        self.node = str(Node.current(None if node is None else Node(node)))
        self.group = TaskGroup.current(group, required=False)
        if name is None and isinstance(step, ExecutionStep):
            name = step.Name()
        self.name = Task._get_next_name(self.node, self.group, name)
        self._num_instances = num_instances
        self._workspace_type = workspace_type
        self._step: Any = None
        self._step_with_setup: ExecutionStep | None = None
        self._outputs: list[TaskOutput] = []
        self._already_used = False
        self._builder: NetBuilder | None = None
        if self.group is not None:
            self.group.add(self)
        if step is not None:
            self.set_step(step)
        if outputs is not None:
            self.add_outputs(outputs)

    def __enter__(self) -> Task:
        super().__enter__()
        if self._step is not None:
            raise NetError(f"task {self.name!r}: already has a step, so it cannot have a block")
        self._builder = NetBuilder(_fullname=self.name)
        self._builder.__enter__()
        return self

    def __exit__(self, type: Any, value: Any, traceback: Any) -> Any:
        assert self._builder is not None
        self._builder.__exit__(type, value, traceback)
        result = super().__exit__(type, value, traceback)
        if type is None:
            self.set_step(self._builder)
        self._builder = None
        return result

    def workspace_type(self) -> str | None:
        """Return where its blobs are stored, see ``WorkspaceType``; None if unspecified."""
        return self._workspace_type

    def _assert_not_used(self) -> None:
        if self._already_used:
            raise NetError(f"task {self.name!r} is part of a plan and can no longer be changed")

    def _notify_used(self) -> None:
        self.get_step()
        self._already_used = True

    def add_output(self, output: Any) -> Any:
        """Add an output: a blob, record or TaskOutput; return the TaskOutput."""
        self._assert_not_used()
        made = output if isinstance(output, TaskOutput) else TaskOutput(output)
        self._outputs.append(made)
        return made

    def add_outputs(self, outputs: Any) -> Any:
        """Add outputs, a list or a single one; return a list of TaskOutputs, or a single one."""
        self._assert_not_used()
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.add_output(output) for output in outputs)
        return self.add_output(outputs)

    def set_step(self, step: Any) -> None:
        """Set what it runs: a step, net or builder, or a list of these."""
        self._assert_not_used()
        self._step = to_execution_step(step, self.name if hasattr(step, "steps_or_nets") else None)

    def get_step(self) -> ExecutionStep:
        """Return the step with its setup and exit nets; the task cannot be changed afterwards."""
        if self._step_with_setup is not None:
            return self._step_with_setup
        if self._step is None:
            self._step_with_setup = ExecutionStep(self.name)  # a step that runs nothing
            return self._step_with_setup
        reports = [obj for net in self._step.Nets() for obj in net.get_attributes(Task.REPORT_STEP)]
        body = self._step
        if reports:
            body = execution_step(self.name + ":body", [*reports, body])
        init, exit_ = get_setup_nets(Task.TASK_SETUP, [self._step, *reports], self)
        instance_init, instance_exit = get_setup_nets(Task.TASK_INSTANCE_SETUP, [self._step, *reports], self)
        if not self._outputs:  # an output by which the end of the task is known
            done = Net(self.name + ":output")
            self.add_output(done.Const(True))
            exit_.append(done)
        body = add_setup_steps(body, instance_init, instance_exit, self.name + ":instance")
        body = self._with_instances(body)
        step = add_setup_steps(body, init, exit_, self.name)
        self._step_with_setup = step
        return step

    def _with_instances(self, body: ExecutionStep) -> ExecutionStep:
        copies = self._num_instances or 1
        if copies <= 1:
            return body
        body.SetCreateWorkspace(True)
        return execution_step(self.name + ":parallel", [body], num_concurrent_instances=copies)

    def output_list(self) -> TaskOutputList:
        """Return its outputs as a TaskOutputList."""
        return TaskOutputList(self._outputs)

    def outputs(self) -> list[TaskOutput]:
        """Return its outputs."""
        return self._outputs

    def __repr__(self) -> str:
        return f"Task(name={self.name}, node={self.node}, outputs={self._outputs})"


class TaskGroup(Managed):
    """Tasks that run at the same time.

    Args:
        workspace_type: see ``WorkspaceType``; None: that of its tasks, else private.

    >>> with TaskGroup() as group:
    ...     task = Task(step=Net("nothing"), name="idle")
    >>> group.used_nodes(), task.name
    (['local'], 'local/idle')
    """

    LOCAL_SETUP = "local_setup"

    def __init__(self, workspace_type: str | None = None) -> None:
        self._tasks: list[Task] = []
        self._already_used = False
        self._report_nets: list[tuple[Net, str, int]] = []
        self._report_steps: list[tuple[ExecutionStep, str]] = []
        self._workspace_type = workspace_type
        self._remote_nets: list[Net] = []

    def add_remote_net(self, net: Net) -> None:
        """Store a net for other nodes."""
        self._remote_nets.append(net)

    def remote_nets(self) -> list[Net]:
        """Return the nets for other nodes."""
        return self._remote_nets

    def add(self, task: Task) -> None:
        """Add a task.

        Raises:
            NetError: the group is part of a plan.
        """
        if self._already_used:
            raise NetError(f"this TaskGroup is part of a plan, so task {task.name!r} cannot be added")
        self._tasks.append(task)

    def tasks_so_far(self) -> list[Task]:
        """Return the tasks; more can be added."""
        return self._tasks

    def tasks(self) -> list[Task]:
        """Return the tasks; no more can be added afterwards.

        Raises:
            NetError: tasks, or the group, have different types of workspaces.
        """
        kinds = {kind for kind in (self._workspace_type, *(task.workspace_type() for task in self._tasks)) if kind}
        if len(kinds) > 1:
            raise NetError(f"TaskGroup: all its tasks must have the same type of workspace, got {sorted(kinds)}")
        self._workspace_type = kinds.pop() if kinds else WorkspaceType.PRIVATE
        for task in self._tasks:
            task._workspace_type = self._workspace_type
            task._notify_used()
        self._already_used = True
        return self._tasks

    def num_registered_tasks(self) -> int:
        """Return the number of tasks."""
        return len(self._tasks)

    def used_nodes(self) -> list[str]:
        """Return the nodes of the tasks, each once."""
        return list(dict.fromkeys(task.node for task in self._tasks))

    def report_step(self, step: Any = None, node: Any = None, interval_ms: int = 1000) -> None:
        """Run a step every ``interval_ms`` milliseconds while the tasks run.

        Args:
            step: a step, net or builder.
            node: where it runs; None: on the current node.
            interval_ms: milliseconds between runs.
        """
        timed = execution_step("report_step", to_execution_step(step), run_every_ms=interval_ms)
        self._report_steps.append((timed, str(Node.current(None if node is None else Node(node)))))

    def add_report(self, step: ExecutionStep) -> None:
        """Run a step, which has an interval, while the tasks run."""
        self._report_steps.append((step, str(Node.current())))

    def report_net(self, net: Net | None = None, node: Any = None, report_interval: int = 5) -> Net:
        """Run a net every ``report_interval`` seconds while the tasks run; return the net."""
        made = Net("report_net") if net is None else net
        self._report_nets.append((made, str(Node.current(None if node is None else Node(node))), report_interval))
        return made

    def tasks_by_node(self, node_remap: Callable[[str], str] | None = None) -> TaskGroup:
        """Return a group with one task for each node, which runs all tasks of the node at the same time.

        Args:
            node_remap: node -> the node that replaces it.
        """
        remap = node_remap or str
        by_node: dict[str, list[Task]] = {}
        for task in self.tasks():
            by_node.setdefault(remap(task.node), []).append(task)
        grouped = TaskGroup(self._workspace_type)
        reports: dict[str, list[ExecutionStep]] = {}
        for step, node in self._report_steps:
            reports.setdefault(remap(node), []).append(step)
        for net, node, seconds in self._report_nets:
            step = execution_step("step", net, run_every_ms=seconds * 1000)
            reports.setdefault(remap(node), []).append(step)
        for node, tasks in by_node.items():
            step = self._node_step(node, tasks, reports.get(node, []))
            outputs = [output for task in tasks for output in task.outputs()]
            task = Task(node=node, step=step, outputs=outputs, name="grouped_by_node", group=grouped)
            task._step_with_setup = step  # includes the setup of the tasks
        for net in self._remote_nets:
            grouped.add_remote_net(net)
        return grouped

    def _node_step(self, node: str, tasks: list[Task], reports: list[ExecutionStep]) -> ExecutionStep:
        steps = [task.get_step() for task in tasks]
        init, exit_ = get_setup_nets(TaskGroup.LOCAL_SETUP, [*steps, *reports], self)
        parts = [*reports, *steps]
        body = steps[0] if len(parts) == 1 else execution_step(f"{node}:body", parts, concurrent_substeps=True)
        return add_setup_steps(body, init, exit_, node)

    def to_task(self, node: Any = None) -> Task:
        """Return one task, on one node, that runs all tasks of the group."""
        where = str(Node.current(None if node is None else Node(node)))
        tasks = self.tasks_by_node(lambda name: where).tasks_so_far()
        return tasks[0] if tasks else Task(group=TaskGroup())

    def workspace_type(self) -> str | None:
        """Return where the blobs of its tasks are stored, see ``WorkspaceType``."""
        return self._workspace_type

    def __repr__(self) -> str:
        return f"TaskGroup(tasks={self._tasks}, workspace_type={self._workspace_type}, remote_nets={self._remote_nets})"


def final_output(blob_or_record: BlobReference | Field) -> Any:
    """Add a blob or record to the outputs of the current task, or of a new one if there is none.

    Returns:
        A TaskOutput, which has the value after a run.
    """
    task = Task.current(required=False)
    return (Task() if task is None else task).add_output(blob_or_record)
