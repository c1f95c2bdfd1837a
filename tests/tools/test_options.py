"""Options of commands as fields of dataclasses: reading, help, errors, and back to a command line."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from house import ROOT
from netbuilder.tools.options import (
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    OptionsParser,
    argument,
    nested,
    option,
    switch,
    values_of,
)
from netbuilder.tools.parser import count
from netbuilder.tools.training.config import config_arguments


@dataclass(frozen=True, kw_only=True)
class Inner:
    steps: int = option("length of a block", required=True, metavar="K", group=("blocks", "of steps"))
    rate: float = option("factor", default=0.5, metavar="R")
    plain: bool = switch("without momentum")


@dataclass(frozen=True, kw_only=True)
class Images:
    crop: int = option("pixels", default=0)
    upright: bool = switch("as stored", default=True, flag="--ignore-orientation")


@dataclass(frozen=True, kw_only=True)
class Options:
    net: str = argument("a net in a file")
    more: tuple[str, ...] = argument("others", nargs="*")
    runs: int = option("timed runs", type=count, default=5, short="-r")
    share: float | None = option("of the memory", metavar="X")
    kind: str = option("area or linear", default="area", choices=["area", "linear"])
    devices: tuple[int, ...] = option("their numbers", default=(0, 1))
    between: tuple[float, float] | None = option("limits", metavar=("LEAST", "MOST"))
    blobs: tuple[str, ...] | None = option("names", nargs="+", metavar="BLOB")
    feed: tuple[str, ...] = option("may be repeated", repeated=True, metavar="FILE")
    arguments: dict[str, Any] = option("of the policy", flag="--policy-arg", factory=dict, metavar="KEY=VALUE")
    rgb: bool | None = option("order of the channels")
    fast: bool = switch("do less", exclusive=True)
    slow: bool = switch("do more", exclusive=True)
    images: Images = nested(Images)
    block: Inner | None = nested(Inner, prefix="block-", optional=True)
    found: int = 3  # no option


def parser():
    return OptionsParser(Options, prog="it")


def test_defaults_are_those_of_the_dataclass():
    assert parser().parse(["a.pb"]) == Options(net="a.pb")


def test_every_kind_of_option():
    found, rest = parser().parse_known(
        ["a.pb", "-r3", "--share=0.5", "--kind=linear", "--devices", "2,3", "4", "--between", "1", "2.5",
         "--feed=x", "--feed=y", "--policy-arg=a=1", "--policy-arg", "b=True", "--policy-arg=c=x", "--no-rgb", "--fast",
         "--ignore-orientation", "--crop=8", "--block-steps=4", "--block-plain", "--blobs", "p", "q", "--other=1"],
    )  # fmt: skip
    assert rest == ["--other=1"]
    assert found == Options(
        net="a.pb", runs=3, share=0.5, kind="linear", devices=(2, 3, 4), between=(1.0, 2.5), blobs=("p", "q"),
        feed=("x", "y"), arguments={"a": 1, "b": True, "c": "x"}, rgb=False, fast=True,
        images=Images(crop=8, upright=False), block=Inner(steps=4, plain=True),
    )  # fmt: skip


def test_values_lead_back_to_the_same_options():
    given = ["a.pb", "--devices=7", "--between", "1", "2", "--policy-arg=a=0.5", "--rgb", "--ignore-orientation",
             "--block-steps=4", "--block-rate=2"]  # fmt: skip
    found = parser().parse(given)
    values = values_of(found)
    assert values["devices"] == (7,) and values["ignore-orientation"] is True and values["block-rate"] == 2.0
    assert "share" not in values and "found" not in values
    del values["net"]
    assert parser().parse(["a.pb", *config_arguments(values)]) == found


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "the following arguments are required: net"),
        (["a", "--runs=0"], "argument -r/--runs: must be a positive whole number, got '0'"),
        (["a", "--share=nan"], "argument --share: must be a number, got 'nan'"),
        (["a", "--kind=liner"], "did you mean 'linear'?"),
        (["a", "--devices=1,x"], "argument --devices: invalid int value: '1,x'"),
        (["a", "--policy-arg=a"], "--policy-arg must be KEY=VALUE, such as gamma=0.1; got 'a'"),
        (["a", "--fast", "--slow"], "argument --slow: not allowed with argument --fast"),
        (["a", "--block-plain"], "--block-plain needs --block-steps"),
        (["a", "--block-rate=0.5"], "--block-rate needs --block-steps"),  # the default, and yet given
        (["a", "--runns=3"], "did you mean '--runs'?"),
    ],
)
def test_errors(arguments, text, capsys):
    with pytest.raises(SystemExit) as ended:
        parser().parse(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line


def test_help_has_the_defaults_and_groups():
    text = " ".join(parser().format_help().split())
    assert "-r N, --runs N timed runs (default: 5)" in text
    assert "--devices N,N their numbers (default: 0,1)" in text
    assert "--between LEAST MOST limits --blobs" in text  # nothing where there is no default
    assert "blocks: of steps --block-steps K length of a block --block-rate R factor (default: 0.5)" in text
    assert "--fast do less" in text and "--rgb, --no-rgb order of the channels" in text


def test_fields_that_are_no_options_keep_their_defaults(capsys):
    assert parser().parse(["a"]).found == 3
    with pytest.raises(SystemExit):
        parser().parse(["a", "--found=4"])
    assert "unrecognized arguments: --found=4" in capsys.readouterr().err


def test_a_default_that_is_made_when_options_are():
    values = iter([2, 3, 4, 5])

    @dataclass(frozen=True)
    class Made:
        threads: int = option("of the pool", factory=lambda: next(values))

    assert "(default: 2)" in OptionsParser(Made, prog="it").format_help()
    assert OptionsParser(Made, prog="it").parse([]).threads > 2


def test_the_parser_is_one_of_argparse():
    assert isinstance(parser(), argparse.ArgumentParser)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--rate=0"], "it: error: --rate must be positive, got 0; --help"),
        (["--decay=1"], "it: error: --decay must be in [0, 1), got 1; --help"),
        (["--seed=-1"], "it: error: --seed must not be negative, got -1; --help"),
        (["--block-length=3"], "it: error: --block-length must be even, got 3; --help"),
    ],
)
def test_rules_of_values(arguments, text, capsys):
    @dataclass(frozen=True)
    class Block:
        length: int = option("of a block", required=True, must=("be even", lambda value: value % 2 == 0))

    @dataclass(frozen=True)
    class Ruled:
        rate: float = option("learning rate", default=0.5, must=POSITIVE)
        decay: float | None = option("of averages", must=SHARE)
        seed: int = option("of the order", default=0, must=NOT_NEGATIVE)
        block: Any = nested(Block, prefix="block-", optional=True)

    made = OptionsParser(Ruled, prog="it")
    assert made.parse([]) == Ruled()
    with pytest.raises(SystemExit):
        made.parse(arguments)
    assert capsys.readouterr().err.startswith(text)


def test_no_option_is_read_by_nothing():
    tools, library = (
        "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py"))
        for folder in ("tools", "netbuilder")
    )
    counted = Counter(re.findall(r"\w+", tools + library))
    names = re.findall(r"^    (\w+): .* = (?:\w+_option|argument|option|switch)\(", tools, re.M)
    assert len(names) > 100
    assert [name for name in names if counted[name] == 1] == []
