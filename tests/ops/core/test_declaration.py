"""Operators are declared without the work that dataclasses take, which is done when it is first needed."""

import copy
import dataclasses
import pickle
import subprocess
import sys
import threading

import pytest

from netbuilder.ops.core.declaration import Declared, operator_class
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import find, operator_types


def pair():
    @operator_class(frozen=True)
    class Base(Declared):
        """A base."""

        a: int = 1

    @operator_class(frozen=True)
    class Derived(Base):
        """One more field."""

        b: float = 2.0

    return Base, Derived


def test_an_instance_completes_its_class_and_its_bases():
    base, derived = pair()
    assert not base._complete and not derived._complete
    made = derived(3)
    assert (made.a, made.b) == (3, 2.0) and made == derived(a=3) and hash(made) == hash(derived(3))
    assert repr(made).endswith("Derived(a=3, b=2.0)")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.a = 4
    assert base._complete and base(5).a == 5


def test_fields_are_those_of_the_class_itself_before_it_is_complete():
    base, derived = pair()
    base()
    assert [field.name for field in dataclasses.fields(derived)] == ["a", "b"]
    assert dataclasses.is_dataclass(pair()[1])
    assert dataclasses.replace(derived(), b=3.0) == derived(1, 3.0)


def test_a_class_below_that_is_no_dataclass_itself():
    _, derived = pair()
    below = type("Below", (derived,), {})
    assert below(7).a == 7


def test_an_ordinary_dataclass_below_one_that_is_not_complete():
    _, derived = pair()

    @dataclasses.dataclass(frozen=True)
    class Below(derived):
        c: str = "x"

    assert Below(1, 2.0, "y").c == "y"


def test_threads_that_make_the_first_instances_at_once():
    for _ in range(20):
        _, derived = pair()
        made, gate = [], threading.Barrier(4)

        def first(derived=derived, made=made, gate=gate):
            gate.wait()
            made.append(derived(5))

        threads = [threading.Thread(target=first) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [one.a for one in made] == [5] * 4


def test_other_classes_are_ordinary():
    @operator_class(frozen=True)
    class Alone:
        a: int = 1

    assert Alone() == Alone() and dataclasses.is_dataclass(Alone)


def test_instances_are_equal_if_class_and_fields_are():
    base, derived = pair()
    assert base(1) == base() != base(2) and base(1) != derived(1) and derived(1, 3.0) != derived(1)
    assert len({base(), base(1), base(2), derived()}) == 3
    assert copy.copy(derived(4)) == derived(4) and pickle.loads(pickle.dumps(find("Clip")(max=2.0))) == find("Clip")(
        max=2.0
    )


@pytest.mark.parametrize(
    ("values", "given", "message"),
    [
        ((1, 2, 3), {}, r"Needs\(\) takes 2 arguments, got 3"),
        ((1,), {"a": 2}, "multiple values for the argument 'a'"),
        ((1,), {"c": 2}, "unexpected keyword argument 'c'"),
        ((), {"b": 2}, "lacks the arguments a"),
    ],
)
def test_arguments_that_do_not_fit(values, given, message):
    @operator_class(frozen=True)
    class Needs(Declared):
        a: int
        b: int = 2

    with pytest.raises(TypeError, match=message):
        Needs(*values, **given)


def test_every_operator_can_be_completed():
    import netbuilder.ops.all  # noqa: F401

    for name in operator_types():
        assert all(isinstance(field, dataclasses.Field) for field in dataclasses.fields(find(name)))


def test_importing_completes_few_and_leaves_the_network_alone():
    code = (
        "import sys, netbuilder.model.brew\n"
        "from netbuilder.ops.core.registry import find, operator_types\n"
        "print(sum(find(name)._complete for name in operator_types()), 'urllib.request' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    complete, network = done.stdout.split()
    assert int(complete) <= 20 and network == "False"


def test_operators_are_declared():
    assert issubclass(Operator, Declared)
