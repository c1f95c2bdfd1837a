"""Every operator knows the line of the user's program that made it."""

import re

import pytest

from netbuilder.graph import CreateOperator, Net, user_source
from netbuilder.graph.source import source_with_path, warn_user

HERE = re.compile(r"test_source\.py:\d+ in ")


def test_operators_carry_the_calling_line():
    net = Net("n")

    def build():
        return net.Relu("x", "y")

    build()
    net.Proto().op[0].debug_info.index("test_source.py:")
    assert re.search(r"test_source\.py:\d+ in build$", net.Proto().op[0].debug_info)
    assert HERE.search(CreateOperator("Relu", "x", "y").debug_info)


def test_the_line_is_the_one_outside_the_library():
    net = Net("n")
    y = net.Relu("x", "y")
    first = int(re.search(r":(\d+) in", net.Proto().op[0].debug_info).group(1))
    y.Relu([], "z")  # there are two calls inside the library between
    assert int(re.search(r":(\d+) in", net.Proto().op[1].debug_info).group(1)) == first + 2


def test_gradient_operators_carry_the_forward_operators_line():
    net = Net("n")
    net.Sigmoid("x", "y")
    net.AddGradientOperators(["y"])
    forward, seed, gradient = net.Proto().op
    assert gradient.type == "SigmoidGradient" and gradient.debug_info == forward.debug_info
    assert HERE.search(seed.debug_info) and seed.debug_info != forward.debug_info


def test_a_given_line_is_kept():
    net = Net("n")
    net.Relu("x", "y", debug_info="elsewhere")
    assert net.Proto().op[0].debug_info == "elsewhere"


def test_code_made_at_run_time():
    scope = {"user_source": user_source, "__name__": "made_up"}
    exec(compile("def f():\n    return user_source()", "/some/where/made_up.py", "exec"), scope)
    assert scope["f"]() == "made_up.py:2 in f"


def test_warnings_point_at_the_users_line():
    inside = {"warn_user": warn_user, "__name__": "netbuilder.made_up"}
    exec(compile("def deep():\n    warn_user('look here')\ndef f():\n    deep()", "f.py", "exec"), inside)
    with pytest.warns(UserWarning, match="look here") as caught:
        inside["f"]()
    assert caught[0].filename == __file__ and caught[0].lineno == line_of("inside[" + '"f"]()')


def line_of(text):
    """Return the number of the line of this file that holds ``text`` first."""
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


def test_the_whole_path_of_a_line():
    text = user_source()
    assert source_with_path(text) == f"{__file__}:{text.split(':')[1].split()[0]}:test_the_whole_path_of_a_line"
    assert source_with_path("nowhere.py:3 in nothing") == "" and source_with_path("") == ""
