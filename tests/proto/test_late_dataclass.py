"""Dataclasses whose methods are compiled late are those of the standard library."""

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
import threading
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import pytest

from house import ROOT
from netbuilder.proto.late_dataclass import dataclass


@dataclass(frozen=True)
class Point:
    x: int
    y: "float" = 2.0


def _classes(decorate):
    """Return classes of many forms, made by a decorator."""

    @decorate(frozen=True)
    class Base:
        kind: ClassVar[str] = "base"
        a: int
        b: list = field(default_factory=list, compare=False)
        c: Any = field(default=3, repr=False)

    @decorate(frozen=True)
    class Inherits(Base):
        d: int = 4
        a: int = 1

        def __post_init__(self):
            object.__setattr__(self, "d", self.d + 1)

    @decorate(frozen=True)
    class NothingNew(Inherits):
        pass

    @decorate(frozen=True, kw_only=True)
    class ByKeyword(Base):
        e: int
        f: int = field(default=2, kw_only=False)

    @decorate(frozen=True, eq=False)
    class ByIdentity(Base):
        e: int = field(init=False, default=5)

    @decorate(frozen=True)
    class OwnMethods(Base):
        def __init__(self, a):
            object.__setattr__(self, "a", a)
            object.__setattr__(self, "b", [])

        def __eq__(self, other):
            return type(other) is type(self)

        def __repr__(self):
            return "own"

    @decorate(frozen=True)
    class OwnHash:
        a: int

        def __hash__(self):
            return 7

    @decorate(frozen=True)
    class NamesOfItsOwn:
        a: int
        set: Any = None
        factory: dict = field(default_factory=dict, compare=False)
        self: int = field(default_factory=int, init=False)

    @decorate(frozen=True)
    class Empty:
        pass

    @decorate
    class Open:
        a: int
        b: int = 2

    @decorate(frozen=True, order=True)
    class Ordered:
        a: int

    return Base, Inherits, NothingNew, ByKeyword, ByIdentity, OwnMethods, OwnHash, NamesOfItsOwn, Empty, Open, Ordered


_NAMES = [cls.__name__ for cls in _classes(dataclasses.dataclass)]


@pytest.mark.parametrize("name", _NAMES)
def test_classes_are_as_the_standard_library_makes_them(name):
    ours, theirs = (_classes(decorate)[_NAMES.index(name)] for decorate in (dataclass, dataclasses.dataclass))
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__match_args__ == theirs.__match_args__
    assert [repr(each) for each in dataclasses.fields(ours)] == [repr(each) for each in dataclasses.fields(theirs)]
    assert repr(ours.__dataclass_params__) == repr(theirs.__dataclass_params__)
    defaults = [{name: vars(cls)[name] for name in "abcdef" if name in vars(cls)} for cls in (ours, theirs)]
    assert defaults[0] == defaults[1]
    given = {"ByKeyword": {"a": 1, "e": 2}, "Empty": {}}.get(name, {"a": 1})
    a, b = ours(**given), theirs(**given)
    assert repr(a).split(".")[-1] == repr(b).split(".")[-1]
    assert (a == ours(**given)) == (b == theirs(**given))
    assert a != b
    if "__hash__" in vars(theirs) and theirs.__hash__ is not None:
        assert hash(a) == hash(b)
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)
    assert vars(copy.copy(a)) == vars(a)
    for wrong in ({}, {"a": 1, "unknown": 2}):
        for cls in (ours, theirs):
            if wrong or name not in ("Inherits", "NothingNew", "Empty"):
                with pytest.raises(TypeError):
                    cls(**wrong)


@pytest.mark.parametrize("decorate", [dataclass, dataclasses.dataclass])
def test_frozen_instances_refuse_assignment(decorate):
    base, inherits, *_ = _classes(decorate)
    for value in (base(1), inherits()):
        for change in (lambda v: setattr(v, "a", 2), lambda v: setattr(v, "new", 2), lambda v: delattr(v, "a")):
            with pytest.raises(FrozenInstanceError, match="cannot (assign to|delete) field '(a|new)'"):
                change(value)

    class Plain(base):
        """A class of users that is no dataclass."""

    plain = Plain(1)
    plain.new = 3
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
        plain.a = 2
    del plain.new
    assert not hasattr(plain, "new")


def test_a_value_that_is_unpickled_first_is_frozen_and_printed():
    assert pickle.loads(pickle.dumps(Point(1, 3.0))) == Point(1, 3.0)
    cls = _classes(dataclass)[0]
    value = object.__new__(cls)
    vars(value).update(a=1, b=[], c=3)
    with pytest.raises(FrozenInstanceError):
        value.a = 2
    assert repr(value).endswith("Base(a=1, b=[])")
    assert value == cls(1)


def test_replaced_and_matched():
    changed = dataclasses.replace(Point(1), y=5.0)
    match changed:
        case Point(x, y):
            assert (x, y) == (1, 5.0)


def test_the_standard_library_inherits_from_them():
    @dataclasses.dataclass(frozen=True)
    class Point3(Point):
        z: int = 0

    @dataclass(frozen=True)
    class Point4(Point3):
        w: int = 1

    assert dataclasses.astuple(Point4(1)) == (1, 2.0, 0, 1)
    assert Point3(1, z=2) == Point3(1, 2.0, 2) != Point3(1)
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
        dataclasses.dataclass(type("Open", (Point,), {}))


def test_a_mutable_default_is_refused():
    with pytest.raises(ValueError, match="mutable default"):

        @dataclass(frozen=True)
        class Wrong:
            a: list = []


def test_many_threads_may_make_the_first_instances():
    cls = _classes(dataclass)[1]
    together, made = threading.Barrier(8), []

    def make():
        together.wait()
        made.append(cls(a=1, d=2))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [cls(1, d=2)] * 8


def test_no_method_is_compiled_before_it_is_used():
    code = (
        "from netbuilder.ops.core.registry import find\n"
        "cls = find('Softmax')\n"
        "print({type(vars(cls)[name]).__name__ for name in ('__init__', '__repr__', '__eq__', '__hash__')})\n"
        "cls(), repr(cls()), cls() == cls(), hash(cls())\n"
        "print({type(vars(cls)[name]).__name__ for name in ('__init__', '__repr__', '__eq__', '__hash__')})\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "{'_Late'}\n{'function'}\n"
