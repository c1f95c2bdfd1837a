"""Compare training on one and on several devices, or with two settings, value by value: ``netbuilder-compare``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from netbuilder.data import read_npz
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.parallel.compare import Comparison, Difference, difference_from_file
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.suggestions import near_or_known
from netbuilder.runtime.plan.optimizations import check_without
from netbuilder.tools.common_options import check_outputs, count, input_option
from netbuilder.tools.comparing.sides import Side, StoredNet, StoredSide, TrainerSide
from netbuilder.tools.options import OptionsParser, option, switch
from netbuilder.tools.parser import real_number
from netbuilder.tools.reporting import reporting
from netbuilder.tools.results import write_json
from netbuilder.tools.training.images import load_images
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.settings import Options

__all__ = ["main"]

_SETTINGS = ("net", "init", "without", "dtype", "memory-budget", "numpy", "seed")
"""Settings of stored nets that --against can change."""


@reporting("netbuilder-compare")
def main(arguments: Sequence[str] | None = None) -> int:
    """Compare as the command line says; return 1 if a value differs by more than the bound."""
    parser = OptionsParser(
        _Options,
        prog="netbuilder-compare",
        epilog="The exit status is 1 if a value differs by more than the bound.",
        allow_abbrev=False,
    )
    options, others = parser.parse_known(arguments)
    check_outputs(options, "json")
    if options.net:
        found, done, texts = _compare_stored(parser, options, others)
    else:
        found, done, texts = _compare_trainers(parser, options, others)
    _print(found, done, texts, options)
    return 1 if found else 0


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Train the same steps from the same seed twice, on one device and on several, or with two settings, compare the
    values in the order in which they are computed, and name the first that differs and the operator that made it.
    All options of netbuilder-train set what is trained (netbuilder-train --help); without --against, the first of
    its --devices is compared with all of them.
    """

    steps: int = option("training steps", type=count, default=3, metavar="K")
    bound: float = option(
        "largest ||a - b|| / max(||a||, 1e-6 sqrt(n)) of a value with n elements (default: 1e-4; for bfloat16, "
        "0.05 in the forward pass, 0.7 for the gradients of a step)",
        type=real_number(0),
        default=1e-4,
        metavar="X",
    )
    against: tuple[str, ...] = option(
        "what differs in the second run, such as dtype=bfloat16, without=all, memory-budget=0.6 or devices=0,1,2; "
        f"of a stored net one of {', '.join(_SETTINGS)}; may be repeated",
        repeated=True,
        metavar="OPTION=VALUE",
    )
    json: str | None = option("also write the result as JSON", metavar="FILE")
    net: str = option(
        "a net (.pb, or text in .pbtxt) that trains, or runs otherwise",
        default="",
        metavar="FILE",
        group="nets in files, instead of those of netbuilder-train",
    )
    init: str | None = option("init net that makes the parameters", metavar="FILE")
    feed: str | None = option(
        "values of inputs by name, in an .npz file; of a data-parallel "
        "net, the whole batch by the name without the replicas' scopes",
        metavar="FILE",
    )
    input: tuple[tuple[str, TensorSpec], ...] = input_option(
        "shape of an input, such as data=32x3x224x224 or label=32:int32; floats are random"
    )
    blobs: str | None = option("compare the blobs after the last step with those in this .npz file", metavar="FILE")
    trusted: bool = switch("allow all operators in the files")


def _compare_trainers(
    parser: OptionsParser[_Options], options: _Options, others: list[str]
) -> tuple[Difference | None, int, list[str]]:
    for name in ("init", "feed", "blobs"):
        if getattr(options, name):
            parser.error(f"--{name} is for a net in a file; give --net, too")
    first = _parse(others)
    changed = [f"--{text}" for text in options.against]
    second = _parse([*others, *changed]) if changed else first
    if not changed:
        if len(first.devices) < 2:
            parser.error("give several --devices to compare with the first of them, or --against OPTION=VALUE")
        first = dataclasses.replace(first, devices=first.devices[:1])
    if first.callback or second.callback:
        parser.error("--callback: netbuilder-compare runs no callbacks; omit it")
    if second.batch != first.batch or second.seed != first.seed or second.data != first.data:
        parser.error("--against: batch, data and seed must be the same in both runs")
    for each in (first, second):
        if each.accumulate_steps > 1 and each.batch % (parts := each.replicas * each.accumulate_steps):
            parser.error(
                "--batch: with --accumulate-steps all shares of a comparison must have the same number of samples; got "
                f"{each.batch} for {counted(parts, 'share')}, give a multiple of {parts}"
            )
    train, test = load_images(first.data, first.input)
    sides = [TrainerSide(each, train, test, options.steps) for each in (first, second)]
    texts = [f"devices {','.join(map(str, first.devices))}", ", ".join(options.against) or
             f"devices {','.join(map(str, second.devices))}"]  # fmt: skip
    return *_first(sides, options), texts


def _parse(given: Sequence[str]) -> Options:
    """Parse options of netbuilder-train; errors are this command's."""
    return parse(given, prog="netbuilder-compare", usage="netbuilder-compare [options] [options of netbuilder-train]")


def _compare_stored(
    parser: OptionsParser[_Options], options: _Options, others: list[str]
) -> tuple[Difference | None, int, list[str]]:
    if others:
        parser.error(f"{others[0]} is an option of netbuilder-train, which --net replaces")
    if bool(options.against) == bool(options.blobs):
        parser.error("with --net, give --against OPTION=VALUE (such as numpy, or net=OTHER.pb), or --blobs FILE")
    given = {**(dict(read_npz(options.feed)) if options.feed else {}), **dict(options.input)}
    assert options.net is not None
    stored = StoredNet(options.net, options.init, trusted=options.trusted)
    if options.blobs:
        blobs = dict(read_npz(options.blobs))
        side = StoredSide(stored, given)
        for _ in range(options.steps):
            run = side.step()
        found = difference_from_file(run, blobs, record=side.record, bound=options.bound)
        return found, options.steps, [str(options.net), str(options.blobs)]
    changed = dict(_setting(parser, text) for text in options.against)
    sides: list[Side] = [StoredSide(each, given) for each in (stored, dataclasses.replace(stored, **changed))]
    return *_first(sides, options), [str(options.net), ", ".join(options.against)]


def _setting(parser: OptionsParser[_Options], text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if name not in _SETTINGS:
        parser.error(f"--against: unknown setting {name!r}{near_or_known(name, _SETTINGS, 'settings')}")
    if name == "numpy":
        return name, True
    if name == "without":
        return name, check_without(value, "--against without")
    if name == "seed":
        return name, int(value) if value.isdigit() else parser.error("--against seed must be a whole number")
    return name.replace("-", "_"), value


def _first(sides: Sequence[Side], options: _Options) -> tuple[Difference | None, int]:
    """Step both sides until they differ; return the difference, and the number of steps."""
    comparison = Comparison((sides[0].record, sides[1].record), bound=options.bound)
    for step in range(1, options.steps + 1):
        first, second = (side.step() for side in sides)
        found = comparison.step(first, second)
        if found is not None:
            return found, step
        sides[1].feed(comparison.aligned)
    return None, options.steps


def _print(found: Difference | None, steps: int, texts: list[str], options: _Options) -> None:
    if found is None:
        print(f"{texts[0]} and {texts[1]}: no value differs by more than {options.bound:g} in {counted(steps, 'step')}")
    else:
        print(f"{texts[0]} and {texts[1]}, step {steps}: {found}")
    difference = dataclasses.asdict(found) if found is not None else None
    write_json(options.json, {"compared": texts, "steps": steps, "bound": options.bound, "difference": difference})


if __name__ == "__main__":
    sys.exit(main())
