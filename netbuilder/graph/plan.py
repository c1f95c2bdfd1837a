"""Plans: nets arranged in execution steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard, Union

from netbuilder.graph.blob import blob_name
from netbuilder.graph.listing import shown_name
from netbuilder.graph.net import Net
from netbuilder.graph.net_names import plan_step_names
from netbuilder.graph.scope import CurrentNameScope
from netbuilder.proto import ExecutionStep as ExecutionStepDef
from netbuilder.proto import NetDef, NetError, PlanDef
from netbuilder.proto.call_checks import checked
from netbuilder.proto.errors import counted
from netbuilder.proto.numbers import INT32_MAX, check_whole_numbers

__all__ = [
    "ExecutionStep",
    "Plan",
    "add_nets_in_order",
    "execution_step",
    "scoped_execution_step",
    "to_execution_step",
]

StepOrNets = Union["ExecutionStep", Net, Sequence[Union["ExecutionStep", Net, Sequence[Any]]]]


def _as_list(nets: Any) -> list[Any]:
    if nets is None:
        return []
    return [nets] if isinstance(nets, Net) else list(nets)


class ExecutionStep:
    """A step of a plan: nets or substeps that run one after the other or at the same time, once or repeatedly.

    Args:
        name: shown in messages and reports.
        nets: a net, or nets that the step runs in this order.
        num_iter: number of repetitions; None: one.

    >>> step = ExecutionStep("train", [Net("forward")], num_iter=10)
    >>> step.Proto().num_iter
    10
    """

    @checked()
    def __init__(self, name: str, nets: Net | Iterable[Net] | None = None, num_iter: int | None = None) -> None:
        self._step = ExecutionStepDef(name=name)
        self._nets: list[Net] = []
        self._substeps: list[ExecutionStep] = []
        self._used = False
        for net in _as_list(nets):
            self.AddNet(net)
        if num_iter is not None:
            self.SetIter(num_iter)

    @classmethod
    def create_from_proto(
        cls, step_proto: ExecutionStepDef, net_obj_dict: dict[str, Net], net_proto_dict: Mapping[str, NetDef]
    ) -> ExecutionStep:
        """Return the step that a message describes, with its substeps.

        Args:
            step_proto: the message; unchanged.
            net_obj_dict: name -> Net of those made so far; extended in place. The Nets themselves get new names.
            net_proto_dict: name -> message of the nets that steps may refer to.

        Raises:
            NetError: a step refers to another net.
        """
        step = cls(step_proto.name)
        for field, value in step_proto.ListFields():
            if field.name not in ("name", "network", "substep", "report_net"):
                setattr(step._step, field.name, value)

        def net(name: str) -> Net:
            if name not in net_obj_dict:
                if name not in net_proto_dict:
                    raise NetError(
                        f"step {step_proto.name!r}: runs net {name!r}, which is not among {sorted(net_proto_dict)}"
                    )
                net_obj_dict[name] = Net(net_proto_dict[name])
            return net_obj_dict[name]

        for substep in step_proto.substep:
            step.AddSubstep(cls.create_from_proto(substep, net_obj_dict, net_proto_dict))
        for name in step_proto.network:
            step.AddNet(net(name))
        if step_proto.report_net:
            step.SetReportNet(net(step_proto.report_net), step_proto.report_interval)
        return step

    def Proto(self) -> ExecutionStepDef:
        """Return the step's message itself."""
        return self._step

    def Name(self) -> str:
        """Return the step's name."""
        return self._step.name

    def __str__(self) -> str:
        return self._step.name

    def __repr__(self) -> str:
        parts = f"{counted(len(self._nets), 'net')}, {counted(len(self._substeps), 'substep')}"
        return f"<ExecutionStep {self._step.name!r}, {parts}>"

    def HasNets(self) -> bool:
        """Whether the step itself runs nets."""
        return bool(self._step.network)

    def HasSubsteps(self) -> bool:
        """Whether the step consists of steps."""
        return bool(self._step.substep)

    def Nets(self) -> list[Net]:
        """Return the nets that the step and its substeps run, each once."""
        nets = list(self._nets)
        for step in self._substeps:
            nets += step.Nets()
        return list(dict.fromkeys(nets))

    def Substeps(self) -> list[ExecutionStep]:
        """Return the steps that the step consists of."""
        return list(self._substeps)

    def get_net(self, name: str) -> Net | None:
        """Return the net of this name that the step or one of its substeps runs, None if there is none."""
        return next((net for net in self.Nets() if net.Name() == shown_name(name)), None)

    def get_all_attributes(self, name: str) -> list[Any]:
        """Return the objects attached under ``name`` to the nets of the step and its substeps (``add_attribute``)."""
        return [obj for net in self.Nets() for obj in net.get_attributes(name)]

    def _check_mutable(self) -> None:
        if self._used:
            raise NetError(f"step {self.Name()!r} cannot be changed, because it is part of a plan or of another step")

    def AddNet(self, net: Net) -> ExecutionStep:
        """Append a net; return this step.

        Raises:
            NetError: the step has substeps, or is part of a plan or of another step.
        """
        self._check_mutable()
        if self.HasSubsteps():
            raise NetError(f"step {self.Name()!r} has substeps; put net {net} into a substep of its own")
        if not isinstance(net, Net):
            raise TypeError(f"step {self.Name()!r}: AddNet: net must be a Net, got {net!r}")
        self._nets.append(net)
        self._step.network.append(net.Name())
        return self

    @checked()
    def AddSubstep(self, substep: ExecutionStep) -> ExecutionStep:
        """Append a substep, which cannot be changed afterwards; return this step.

        Raises:
            NetError: this step has nets, or is part of a plan or of another step.
        """
        self._check_mutable()
        if self.HasNets():
            raise NetError(f"step {self.Name()!r} has nets, so step {substep.Name()!r} cannot be added to it")
        substep._used = True
        self._substeps.append(substep)
        self._step.substep.append(substep.Proto())
        return self

    @checked()
    def SetIter(self, num_iter: int) -> None:
        """Set the number of repetitions."""
        self._check_mutable()
        self._step.num_iter = num_iter

    @checked()
    def SetOnlyOnce(self, only_once: bool) -> None:
        """Run the step only in the first iteration of its parent step."""
        self._check_mutable()
        self._step.only_once = only_once

    def SetShouldStopBlob(self, should_stop_blob: Any) -> None:
        """End the step, and skip the steps after it, as soon as this bool blob is true."""
        self._check_mutable()
        self._step.should_stop_blob = blob_name(should_stop_blob)

    @checked()
    def RunEveryMillis(self, interval: int) -> None:
        """Run the step every ``interval`` milliseconds while its siblings run, until they are done."""
        self._check_mutable()
        self._step.run_every_ms = interval

    @checked()
    def SetReportNet(self, report_net: Net, report_interval: int) -> None:
        """Run ``report_net`` every ``report_interval`` seconds while the step runs."""
        self._check_mutable()
        check_whole_numbers("ExecutionStep.SetReportNet", 0, INT32_MAX, report_interval=report_interval)
        self._step.report_net = report_net.Name()
        self._step.report_interval = report_interval
        self._nets.append(report_net)

    @checked()
    def SetConcurrentSubsteps(self, concurrent_substeps: bool) -> None:
        """Run the substeps at the same time."""
        self._check_mutable()
        self._step.concurrent_substeps = concurrent_substeps

    @checked()
    def SetNumConcurrentInstances(self, num_concurrent_instances: int) -> None:
        """Run this number of copies of the step at the same time."""
        self._check_mutable()
        check_whole_numbers("ExecutionStep", 0, INT32_MAX, num_concurrent_instances=num_concurrent_instances)
        self._step.num_concurrent_instances = num_concurrent_instances

    @checked()
    def SetCreateWorkspace(self, create_workspace: bool) -> None:
        """Run the step in a new workspace, a child of the one in which the plan runs."""
        self._check_mutable()
        self._step.create_workspace = create_workspace


def execution_step(
    default_name: str,
    steps_or_nets: StepOrNets,
    num_iter: int | None = None,
    report_net: Net | None = None,
    report_interval: int | None = None,
    concurrent_substeps: bool | None = None,
    should_stop_blob: Any = None,
    only_once: bool | None = None,
    num_concurrent_instances: int | None = None,
    create_workspace: bool = False,
    run_every_ms: int | None = None,
) -> ExecutionStep:
    """Return a step that runs a step, a net, or a list of nets or steps.

    Args:
        default_name: name of the step.
        steps_or_nets: what it runs; in a list with steps, nets and lists become steps of their own.
        num_iter: number of repetitions; excludes ``should_stop_blob``.
        report_net, report_interval: a net to run every so many seconds while the step runs.
        concurrent_substeps: run the substeps at the same time.
        should_stop_blob: repeat until this bool blob is true.
        only_once: run only in the first iteration of the parent step.
        num_concurrent_instances: number of copies to run at the same time.
        create_workspace: run in a new workspace, a child of the one in which the plan runs.
        run_every_ms: run repeatedly while its siblings run, at this interval.

    Raises:
        NetError: ``num_iter`` and ``should_stop_blob`` are both given, or there is nothing to run.
    """
    if should_stop_blob is not None and num_iter is not None:
        raise NetError(f"step {default_name!r}: give num_iter or should_stop_blob, not both")
    nets = [steps_or_nets] if isinstance(steps_or_nets, Net) else steps_or_nets
    if _are_nets(nets):
        step = ExecutionStep(default_name, nets)
    else:
        step = ExecutionStep(default_name)
        for part in [nets] if isinstance(nets, ExecutionStep) else _parts(default_name, nets):
            step.AddSubstep(to_execution_step(part))
    if should_stop_blob is not None:
        step.SetShouldStopBlob(should_stop_blob)
    else:
        step.SetIter(1 if num_iter is None else num_iter)
    settings: list[tuple[Any, Callable[[Any], None]]] = [
        (concurrent_substeps, step.SetConcurrentSubsteps),
        (only_once, step.SetOnlyOnce),
        (num_concurrent_instances, step.SetNumConcurrentInstances),
        (create_workspace or None, step.SetCreateWorkspace),
        (run_every_ms, step.RunEveryMillis),
    ]
    for value, apply in settings:
        if value is not None:
            apply(value)
    if report_net is not None:
        if report_interval is None:
            raise NetError(f"step {default_name!r}: report_net {report_net} needs a report_interval in seconds")
        step.SetReportNet(report_net, report_interval)
    return step


def _are_nets(nets: Any) -> TypeGuard[Sequence[Net]]:
    return isinstance(nets, (list, tuple)) and bool(nets) and all(isinstance(net, Net) for net in nets)


def _parts(name: str, parts: Any) -> Sequence[Any]:
    if not isinstance(parts, (list, tuple)) or not parts:
        raise NetError(f"step {name!r} needs a step, a net, or a list of nets or steps to run, got {parts!r}")
    return parts


def scoped_execution_step(name: str, *args: Any, **kwargs: Any) -> ExecutionStep:
    """Return ``execution_step`` with a name under the current name scope."""
    return execution_step(CurrentNameScope() + name, *args, **kwargs)


def to_execution_step(step_or_nets: StepOrNets, default_name: str | None = None) -> ExecutionStep:
    """Return a step as it is, and anything else wrapped in a new step.

    Without ``default_name`` the new step has the name of the builder, or else "step", "step_1", ..., each used once
    in a process.

    >>> to_execution_step([Net("one"), Net("two")], "both").Proto().network
    ['one', 'two']
    """
    if isinstance(step_or_nets, ExecutionStep):
        return step_or_nets
    name = default_name or getattr(step_or_nets, "name", None) or plan_step_names.take("step")
    if hasattr(step_or_nets, "steps_or_nets"):
        builder: Any = step_or_nets
        return execution_step(name, builder.steps_or_nets(), should_stop_blob=builder.stops_by)
    return execution_step(name, step_or_nets)


def add_nets_in_order(step: ExecutionStep, net_list: list[Net]) -> None:
    """Append to ``net_list`` the nets of a step that it does not contain yet, substeps first, in order of execution."""
    known = set(net_list)
    for substep in step.Substeps():
        add_nets_in_order(substep, net_list)
        known = set(net_list)
    for net in step.Nets():
        if net not in known:
            net_list.append(net)
            known.add(net)


class Plan:
    """Steps that run one after the other, and the nets they use.

    Args:
        name_or_step: its name, or its only step, which also names it.

    >>> plan = Plan("training")
    >>> plan.AddStep(to_execution_step(Net("evaluation")))
    >>> [net.name for net in plan.Proto().network]
    ['evaluation']
    """

    def __init__(self, name_or_step: str | ExecutionStep) -> None:
        self._plan = PlanDef()
        self._nets: dict[Net | str, Net | NetDef] = {}
        self._steps: list[ExecutionStep] = []
        if isinstance(name_or_step, ExecutionStep):
            self._plan.name = name_or_step.Name()
            self.AddStep(name_or_step)
        elif isinstance(name_or_step, str):
            self._plan.name = name_or_step
        else:
            raise TypeError(f"Plan: name_or_step must be a string or an ExecutionStep, got {name_or_step!r}")

    @classmethod
    def create_from_proto(cls, plan_proto: PlanDef) -> Plan:
        """Return the plan that a message describes; its nets get new names, in the steps too.

        Raises:
            NetError: a step refers to a net that the plan does not have, or two nets have the same name.
        """
        nets: dict[str, NetDef] = {}
        for net in plan_proto.network:
            if net.name in nets:
                raise NetError(f"plan {plan_proto.name!r} has two nets named {net.name!r}")
            nets[net.name] = net
        plan, made = cls(plan_proto.name), dict[str, Net]()
        for step in plan_proto.execution_step:
            plan.AddStep(ExecutionStep.create_from_proto(step, made, nets))
        return plan

    def Proto(self) -> PlanDef:
        """Return the plan's message itself. Nets are copied into it when they are added."""
        return self._plan

    def Name(self) -> str:
        """Return the plan's name."""
        return self._plan.name

    def __str__(self) -> str:
        return self._plan.name

    def __repr__(self) -> str:
        parts = f"{counted(len(self._nets), 'net')}, {counted(len(self._steps), 'step')}"
        return f"<Plan {self._plan.name!r}, {parts}>"

    def Nets(self) -> list[Net]:
        """Return the plan's nets in the order in which they were added."""
        return [net for net in self._nets.values() if isinstance(net, Net)]

    def Steps(self) -> list[ExecutionStep]:
        """Return the plan's steps."""
        return list(self._steps)

    @checked()
    def get_all_attributes(self, name: str) -> list[Any]:
        """Return the objects attached under ``name`` to the plan's nets (``Net.add_attribute``)."""
        return [obj for net in self.Nets() for obj in net.get_attributes(name)]

    @checked()
    def AddNets(self, nets: Iterable[Net]) -> None:
        """Add nets that the plan's steps may run; nets that it has already are ignored.

        Raises:
            NetError: another net of the plan has the same name.
        """
        for net in nets:
            known = self._nets.get(net.Name())
            if known is net:
                continue
            if known is not None:
                raise NetError(f"plan {self.Name()!r} has another net named {net.Name()!r}; rename one of the two")
            self._nets[net.Name()] = net
            self._plan.network.add().CopyFrom(net.Proto())

    def AddStep(self, step: ExecutionStep) -> None:
        """Append a step, which cannot be changed afterwards, and the nets it runs."""
        if not isinstance(step, ExecutionStep):
            raise TypeError(f"plan {self.Name()!r}: AddStep: step must be an ExecutionStep, got {step!r}")
        nets: list[Net] = []
        add_nets_in_order(step, nets)
        self.AddNets(nets)
        step._used = True
        self._steps.append(step)
        self._plan.execution_step.append(step.Proto())
