"""Pipes: tasks whose threads read records, process them, and write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from netbuilder.caffe2.jobs.net_builder import NetBuilder
from netbuilder.caffe2.jobs.queues import Queue
from netbuilder.caffe2.jobs.readers import Pipe, Reader, Writer
from netbuilder.caffe2.jobs.task import Task
from netbuilder.caffe2.jobs.task_setup import SetupNets
from netbuilder.caffe2.net_records import RecordNet, clone_and_bind_net
from netbuilder.caffe2.records import Field
from netbuilder.graph import Net, execution_step, to_execution_step
from netbuilder.proto import NetError

__all__ = [
    "DEFAULT_QUEUE_CAPACITY",
    "NetProcessor",
    "Output",
    "ProcessingReader",
    "make_processor",
    "normalize_processor_output",
    "pipe",
    "pipe_and_output",
    "processor_name",
]

DEFAULT_QUEUE_CAPACITY = 100


class Output:
    """The result of a processor for a record.

    Args:
        nets: nets, builders or steps that process the record; a single one, a list, or None.
        record: the result; None: nothing is written.
        should_stop: a blob that ends reading when it is true, or a list of blobs.
    """

    def __init__(self, nets: Any = None, record: Any = None, should_stop: Any = None) -> None:
        if isinstance(nets, (Net, NetBuilder)):
            nets = [nets]
        self.nets = [] if nets is None else list(nets)
        self.record = record
        self.should_stop = should_stop


def normalize_processor_output(output: Any) -> Output:
    """Convert the result of a processor (record, Output, or (nets, record[, should_stop])) to an Output."""
    if isinstance(output, Output):
        return output
    if isinstance(output, Field) or output is None:
        return Output(record=output)
    if isinstance(output, (tuple, list)) and 1 <= len(output) <= 3:
        nets, *rest = output
        if isinstance(nets, (Net, NetBuilder, list, tuple)) or nets is None:
            return Output(nets, *rest)
    return Output(record=output)


def processor_name(processor: Any) -> str:
    """Return a name for a processor: its own, or its type's."""
    if hasattr(processor, "name"):
        return str(processor.name)
    if hasattr(processor, "func_name"):
        return "proc" if processor.func_name == "<lambda>" else str(processor.func_name)
    return processor.__class__.__name__


def make_processor(processor: Any, reader: Any = None) -> Callable[[Any], Any]:
    """Return a processor as a function of a record.

    Args:
        processor: None, a function, or a net with an input and an output record.
        reader: ignored.
    """
    if processor is None:
        return lambda record: record
    if isinstance(processor, RecordNet):
        return NetProcessor(processor)
    if not callable(processor):
        raise TypeError(f"pipe: a processor must be a net or a function of a record, got {processor!r}")
    made: Callable[[Any], Any] = processor
    return made


class NetProcessor:
    """A net as a processor; each thread has a copy with its own blobs, but threads share the external inputs.

    Args:
        net: with an input and an output record.
        stop_signal: a blob of the net that ends reading when it is true.
        thread_init_nets: nets that run first in each thread, on the thread's blobs.
        name: prefix of the copies' names.
    """

    def __init__(
        self,
        net: RecordNet,
        stop_signal: Any = None,
        thread_init_nets: Sequence[RecordNet] | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(net, RecordNet):
            raise TypeError(f"NetProcessor needs a net that has records, such as core.Net, got {net!r}")
        self.thread_init_nets = list(thread_init_nets or [])
        self.net = net
        self._stop_signal = stop_signal
        self.name = name or net.Name()
        self._maps: list[dict[Any, Any]] = []
        self._frozen = False

    def schema(self) -> Any:
        """Return the schema of its results."""
        return self.net.output_record()

    def setup(self, init_net: Net) -> None:
        """Allow no more threads."""
        self._frozen = True

    def __call__(self, rec: Any) -> Output:
        """Return the copy for a thread that reads ``rec``."""
        if self._frozen:
            raise NetError(f"NetProcessor {self.name!r} is in use already, so no thread can be added")
        number = len(self._maps)
        prefix = f"{self.name}/worker:{number}/"
        inits = [clone_and_bind_net(net, f"{net.Name()}_t{number}", prefix) for net in self.thread_init_nets]
        remap: dict[Any, Any] = {}
        for _, mapping in inits:
            remap.update(mapping)
        bound = rec if self.net.input_record() is not None else None
        net: Any
        net, blobs = clone_and_bind_net(self.net, f"{self.name}_t{number}", prefix, remap, bound)
        self._maps.append({**remap, **blobs})
        if inits:
            net.add_attribute(Task.TASK_INSTANCE_SETUP, SetupNets([init for init, _ in inits]))
        stop = None if self._stop_signal is None else blobs.get(self._stop_signal, self._stop_signal)
        return Output([net], net.output_record(), stop)

    def blob_maps(self) -> list[dict[Any, Any]]:
        """Return for each thread the net's blob -> the thread's blob."""
        self._frozen = True
        return self._maps


class ProcessingReader(Reader):
    """Reads the records of another reader, and processes them.

    Args:
        reader: the other reader.
        processor: see ``make_processor``.
    """

    def __init__(self, reader: Reader, processor: Any) -> None:
        super().__init__()
        self.reader = reader
        self.processor = make_processor(processor, reader)

    def schema(self) -> Any:
        return self.processor.schema() if hasattr(self.processor, "schema") else super().schema()

    def setup_ex(self, init_net: Net, finish_net: Net | None) -> None:
        self.reader.setup_ex(init_net, finish_net)

    def read_ex(self, init_net: Net, exit_net: Net | None) -> tuple[list[Any], Any, Any]:
        read_nets, status, record = self.reader.read_record_ex(init_net, exit_net)
        with NetBuilder(_stop_blob=status) as builder:
            output = normalize_processor_output(self.processor(record))
            stops = output.should_stop if isinstance(output.should_stop, (list, tuple)) else [output.should_stop]
            for net in output.nets:
                builder.add(net)
            for stop in stops:
                if stop is not None:
                    builder.stop_if(stop)
        if isinstance(output.record, Field):
            self._set_schema(output.record)
            fields = output.record.field_blobs()
        else:
            self._set_schema(None)
            fields = [] if output.record is None else list(output.record)
        if hasattr(self.processor, "setup"):
            init_net.add_attribute(Task.TASK_SETUP, self.processor)
        return [*read_nets, *builder.get()], status, fields


def pipe(
    input: Any,
    output: Any = None,
    num_threads: int = 1,
    processor: Any = None,
    name: str | None = None,
    capacity: int | None = None,
    group: Any = None,
    num_runtime_threads: int = 1,
) -> Any:
    """Add a task whose threads read records, process them, and write the results; return the output.

    Args:
        input: a reader, or a pipe or anything else with ``reader()``.
        output: a writer, or a pipe or anything else with ``writer()``; None: a new queue, if there are results.
        num_threads: number of threads, each with its own nets.
        processor: a function of a record, which adds operators by ``ops`` and returns a record, or nets and a record;
            or a net with an input and an output record; None: records are written unchanged.
        name: of the task.
        capacity: of the new queue.
        group: of the task; None: the current one.
        num_runtime_threads: number of threads that share nets, each in its own workspace; ``num_threads`` must be 1.

    Returns:
        The new queue or ``output``; None if nothing is written.
    """
    return _pipe_step(input, output, num_threads, processor, name, capacity, group, num_runtime_threads)[0]


def pipe_and_output(
    input: Any,
    output: Any = None,
    num_threads: int = 1,
    processor: Any = None,
    name: str | None = None,
    capacity: int | None = None,
    group: Any = None,
    num_runtime_threads: int = 1,
    final_outputs: Any = None,
) -> tuple[Any, Any]:
    """Like ``pipe``, but add outputs to the task; return the output of the pipe, and the task's outputs.

    Args:
        final_outputs: blobs or records, a list or a single one; for the others see ``pipe``.
    """
    if num_threads <= 0 and num_runtime_threads <= 0:
        raise NetError("pipe_and_output: num_threads or num_runtime_threads must be at least 1")
    return _pipe_step(input, output, num_threads, processor, name, capacity, group, num_runtime_threads, final_outputs)


def _pipe_step(
    input: Any, output: Any, threads: int, processor: Any, name: str | None, capacity: int | None, group: Any,
    copies: int | None, final_outputs: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    reader = input if isinstance(input, Reader) else _end(input, "reader")
    if processor is not None:
        reader = ProcessingReader(reader, processor)
    if threads == 0 or copies == 0:
        if output is not None:
            raise NetError("pipe: num_threads and num_runtime_threads must not be 0 if there is an output")
        return reader, None
    copies = copies or 1
    if copies > 1 and threads > 1:
        raise NetError(f"pipe: give num_threads or num_runtime_threads, not both, got {threads} and {copies}")
    if name is None:
        name = _task_name(input, output, processor)
    outputs = None
    with Task(name=name, group=group, num_instances=copies if copies > 1 else None) as task:
        made = _Threads(reader, output, capacity)
        made.add(NetBuilder.current(), 1 if copies > 1 else threads)
        if final_outputs is not None:
            outputs = task.add_outputs(final_outputs)
    return made.out, outputs


def _task_name(input: Any, output: Any, processor: Any) -> str:
    """Return the default name of a task."""
    if processor is not None:
        return processor_name(processor)
    return "pipe_from:" + processor_name(input) if output is None else "pipe_into:" + processor_name(output)


def _end(pipe_like: Any, which: str) -> Any:
    if not hasattr(pipe_like, which):
        raise TypeError(f"pipe needs a reader or writer, or an object with {which}(), got {pipe_like!r}")
    return getattr(pipe_like, which)()


class _Threads:
    """The threads of a pipe under construction."""

    def __init__(self, reader: Reader, output: Any, capacity: int | None) -> None:
        self._reader = reader
        self._capacity = capacity
        self.out = output
        self._writer: Any = None
        self._init, self._exit = Net("pipe_init"), Net("pipe_exit")
        reader.setup_ex(self._init, self._exit)
        if output is not None:
            self._make_writer()

    def _make_writer(self) -> Writer:
        if self._writer is None:
            if self.out is None:
                self.out = Queue(DEFAULT_QUEUE_CAPACITY if self._capacity is None else self._capacity)
            self._writer = self.out if isinstance(self.out, Writer) else _end(self.out, "writer")
            self._writer.setup_ex(self._init, self._exit)
        writer: Writer = self._writer
        return writer

    def add(self, builder: NetBuilder, threads: int) -> None:
        """Add the threads to the builder of a task."""
        steps = [self._thread(f"t:{number}") for number in range(threads)]
        mark = Net("pipe_setup")
        mark.add_attribute(Task.TASK_SETUP, SetupNets([self._init], [self._exit]))
        builder.add(mark)
        builder.add(steps[0] if threads == 1 else execution_step("pipe_threads", steps, concurrent_substeps=True))

    def _thread(self, name: str) -> Any:
        with NetBuilder(name) as builder:
            init, exit_ = Net("init"), Net("exit")
            nets, status, record = self._reader.read_record_ex(init, exit_)
            writes: list[Net] = []
            if record is not None and _blobs(record):
                if isinstance(self.out, Pipe) and self.out.schema() is None and isinstance(record, Field):
                    self.out._schema = record
                writes, _ = self._make_writer().write_record_ex(record, init, exit_, status)
        loop = execution_step("thread", [to_execution_step(net) for net in [*nets, *writes]], should_stop_blob=status)
        return execution_step(builder.name, [to_execution_step(init), loop, to_execution_step(exit_)])


def _blobs(record: Any) -> Sequence[Any]:
    return record.field_blobs() if isinstance(record, Field) else record
