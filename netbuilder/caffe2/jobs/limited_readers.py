"""Readers that wrap others: with a limit of records or time, with a delay, or several in one; and a counter."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.caffe2.jobs.readers import Reader, ReaderBuilder, struct_of
from netbuilder.caffe2.records import Struct
from netbuilder.graph import Net
from netbuilder.proto import NetError

__all__ = [
    "CompositeReader",
    "CompositeReaderBuilder",
    "CountUntil",
    "CounterReader",
    "ReaderWithDelay",
    "ReaderWithLimit",
    "ReaderWithLimitBase",
    "ReaderWithTimeLimit",
]


class CounterReader(Reader):
    """Reads 0, 1, 2, ... without end, in a field ``iter``; threads share the count."""

    def __init__(self) -> None:
        super().__init__(schema=Struct(("iter", np.int64)))
        self.counter: Any = None
        self.should_stop: Any = None

    def setup_ex(self, global_init_net: Net, global_finish_net: Net | None) -> None:
        if self.counter is None:
            self.counter = global_init_net.CreateCounter([], init_count=0)
            self.should_stop = global_init_net.Const(False)

    def read_ex(self, local_init_net: Net, local_finish_net: Net | None) -> tuple[list[Net], Any, list[Any]]:
        net = Net("limited_reader_counter")
        return [net], self.should_stop, [net.CountUp([self.counter])]


class ReaderWithLimitBase(Reader):
    """Base class of readers that stop before the wrapped reader does.

    Args:
        reader: the wrapped reader.
    """

    def __init__(self, reader: Reader) -> None:
        super().__init__(schema=reader._schema)
        self.reader = reader
        self._data_finished: Any = None
        self.should_stop: Any = None

    def setup_ex(self, global_init_net: Net, global_finish_net: Net | None) -> None:
        if self._data_finished is None:
            self._data_finished = global_init_net.Const(False)
            self.reader.setup_ex(global_init_net, global_finish_net)
            self.setup_limiter(global_init_net, global_finish_net)

    def read_ex(self, local_init_net: Net, local_finish_net: Net | None) -> tuple[list[Net], Any, list[Any]]:
        if self._data_finished is None:
            raise NetError(f"{type(self).__name__}: call setup_ex before reading")
        check = Net("limited_reader_condition")
        should_stop = self.check_limiter_condition(check)
        nets, reader_stops, fields = self.reader.read_ex(local_init_net, local_finish_net)
        self._set_schema(self.reader._schema)
        after = Net("limited_reader_post")
        after.Copy(reader_stops, should_stop)
        after.Or([self._data_finished, reader_stops], [self._data_finished])
        return [check, *nets, after], should_stop, fields

    def setup_limiter(self, global_init_net: Net, global_finish_net: Net | None) -> None:
        """Add operators that set up the limit."""
        raise NotImplementedError(f"{type(self).__name__}: subclasses must implement setup_limiter")

    def check_limiter_condition(self, stop_condition_net: Net) -> Any:
        """Add operators that check the limit; return the blob that is true if it is reached."""
        raise NotImplementedError(f"{type(self).__name__}: subclasses must implement check_limiter_condition")

    def data_finished(self) -> Any:
        """Return the blob that, after a run, is true if the wrapped reader reached its end."""
        return self._data_finished


class ReaderWithLimit(ReaderWithLimitBase):
    """Reads at most ``num_iter`` records of another reader, summed over all threads.

    Args:
        reader: the other reader.
        num_iter: largest number of records; None: no limit.
    """

    def __init__(self, reader: Reader, num_iter: int | None = 1) -> None:
        super().__init__(reader)
        self.num_iter = num_iter
        self.counter: Any = None

    def setup_limiter(self, global_init_net: Net, global_finish_net: Net | None) -> None:
        if self.num_iter is not None:
            self.counter = global_init_net.CreateCounter([], init_count=int(self.num_iter))

    def check_limiter_condition(self, stop_condition_net: Net) -> Any:
        if self.counter is None:
            return stop_condition_net.Const(False)
        return stop_condition_net.CountDown([self.counter])


class ReaderWithTimeLimit(ReaderWithLimitBase):
    """Reads another reader for ``duration`` seconds.

    Args:
        reader: the other reader.
        duration: in seconds; 0: no limit.
    """

    def __init__(self, reader: Reader, duration: float = 0) -> None:
        super().__init__(reader)
        self.timer: Any = None
        self.duration = duration
        self.duration_ns_blob: Any = None

    def setup_limiter(self, global_init_net: Net, global_finish_net: Net | None) -> None:
        if self.duration > 0:
            self.timer = global_init_net.TimerBegin([], counter_name="epoch_timer")
            self.duration_ns_blob = global_init_net.Const(int(self.duration * 10**9))

    def check_limiter_condition(self, stop_condition_net: Net) -> Any:
        if self.timer is None:
            return stop_condition_net.Const(False)
        passed = stop_condition_net.TimerGet([self.timer])
        return stop_condition_net.GE([passed, self.duration_ns_blob])


class ReaderWithDelay(Reader):
    """A reader that waits before each record of another one.

    Args:
        reader: the other one.
        delay: seconds.
    """

    def __init__(self, reader: Reader, delay: float) -> None:
        super().__init__(schema=reader._schema)
        self.reader = reader
        self.delay = delay

    def setup_ex(self, global_init_net: Net, global_finish_net: Net | None) -> None:
        self.reader.setup_ex(global_init_net, global_finish_net)

    def read_ex(self, local_init_net: Net, local_finish_net: Net | None) -> tuple[list[Net], Any, list[Any]]:
        wait = Net("dequeue_delay")
        seconds = self.delay
        wait.Python(lambda inputs, outputs: time.sleep(seconds))([], [])
        nets, should_stop, fields = self.reader.read_ex(local_init_net, local_finish_net)
        self._set_schema(self.reader._schema)
        return [wait, *nets], should_stop, fields


class CompositeReader(Reader):
    """Combines the records of several readers into one record; stops when one of them stops.

    Args:
        names: the fields for their records.
        readers: the readers.
    """

    def __init__(self, names: Sequence[str], readers: Sequence[Reader]) -> None:
        super().__init__(schema=struct_of(names, readers))
        self._names = list(names)
        self._readers = list(readers)

    def setup_ex(self, init_net: Net, finish_net: Net | None) -> None:
        for reader in self._readers:
            reader.setup_ex(init_net, finish_net)

    def read_ex(self, local_init_net: Net, local_finish_net: Net | None) -> tuple[list[Net], Any, list[Any]]:
        nets: list[Net] = []
        fields: list[Any] = []
        stops: Any = None
        for name, reader in zip(self._names, self._readers):
            own_nets, own_stop, record = reader.read_record_ex(local_init_net, local_finish_net)
            if stops is None:
                stops = local_init_net.Const(False, blob_out=local_init_net.NextBlob("composite_reader_stops"))
            local_init_net.Const(False, blob_out=own_stop)
            for net in own_nets:  # a limited reader may stop in between
                after = Net(f"{name}_stops")
                after.Or([stops, own_stop], [stops])
                nets += [net, after]
            fields += record.field_blobs()
        return nets, stops, fields

    def reset(self, net: Net) -> None:
        for reader in self._readers:
            reader.reset(net)


class CompositeReaderBuilder(ReaderBuilder):
    """Makes composite readers.

    Args:
        names: the fields for the records.
        reader_builders: builders of the readers.
    """

    def __init__(self, names: Sequence[str], reader_builders: Sequence[ReaderBuilder]) -> None:
        self._names = list(names)
        self._builders = list(reader_builders)
        self._schema = struct_of(self._names, self._builders)

    def schema(self) -> Any:
        return self._schema

    def setup(self, **kwargs: Any) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for builder in self._builders:
            made.update(builder.setup(**kwargs))
        return made

    def new_reader(self, **kwargs: Any) -> Reader:
        """Return a composite of the builders' readers; a builder may also make pipes or data sets."""
        made = [builder.new_reader(**kwargs) for builder in self._builders]
        return CompositeReader(self._names, [one if isinstance(one, Reader) else one.reader() for one in made])


def CountUntil(num_iter: int) -> ReaderWithLimit:
    """Return a reader of 0 to ``num_iter`` - 1."""
    return ReaderWithLimit(CounterReader(), num_iter)
