"""Check a net in a file without running it: ``netbuilder-check NET``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from netbuilder.graph.checks import Finding, Rule, check_net
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.replicas import Replicas
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import NetDef
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.common_options import check_outputs, input_option
from netbuilder.tools.options import OptionsParser, argument, option
from netbuilder.tools.reporting import reporting
from netbuilder.tools.results import write_json
from netbuilder.tools.stored_nets import NET_HELP, read_stored, replicas_in, unknown_input

__all__ = ["main"]


@reporting("netbuilder-check")
def main(arguments: Sequence[str] | None = None) -> int:
    """Check the net that the command line names, print what is found; return 1 if anything is."""
    options = OptionsParser(
        _Options,
        prog="netbuilder-check",
        description="Check a net and the nets inside its operators without running it, and print one line for each "
        f"finding. Rules: {', '.join(rule.value for rule in Rule)}.",
    ).parse(arguments)
    check_outputs(options, "json")
    stored = read_stored(options.net, options.init, dict(options.input))
    record = replicas_in(stored.net)
    stored = stored.given(_of_replicas(dict(options.input), stored.net, stored.init, record))
    net, init_net = stored.net, stored.init
    found = check_net(net, init_net=init_net, inputs=stored.specs, available=stored.unknown, replicas=record)
    for finding in found:
        print(finding)
    made = "" if init_net is None else f" and init net {init_net.name!r}" if init_net.name else " and its init net"
    print(f"net {net.name!r}{made}: {counted(len(net.op), 'operator')}, {counted(len(found), 'finding')}")
    if stored.unknown:
        print(
            f"shapes were not checked: those of {', '.join(map(repr, stored.unknown))} are not stored; give "
            + " ".join(f"--input {name}=SHAPE" for name in stored.unknown)
        )
    write_json(options.json, _as_json(net, found))
    return 1 if found else 0


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The options of netbuilder-check."""

    net: str = argument(NET_HELP)
    init: str | None = option("init net that makes the parameters; it is checked, too", metavar="FILE")
    input: tuple[tuple[str, TensorSpec], ...] = input_option(
        "shape of an input, such as data=32x3x224x224 or label=32:int32, so that shapes are checked; of a "
        "data-parallel net, also the share of each replica, without its scope"
    )
    json: str | None = option("also write the findings as JSON", metavar="FILE")


def _of_replicas(
    given: Mapping[str, Any], net: NetDef, init_net: NetDef | None, record: Replicas | None
) -> dict[str, Any]:
    """Return the given shapes by full name: one for each replica if a name has no scope.

    Raises:
        BlobError: the nets have no such input.
    """
    protos = [proto for proto in (init_net, net) if proto is not None]
    known = {blob for proto in protos for blob in (*proto.external_input, *undefined_inputs(proto.op))}
    found = {}
    for name, spec in given.items():
        copies = record.devices.copies(name) if record is not None else ()
        names = [blob for blob in (name, *copies) if blob in known]
        if not names:
            raise unknown_input(name, net, net.external_input)
        found.update(dict.fromkeys(names, spec))
    return found


def _as_json(net: NetDef, found: Sequence[Finding]) -> dict[str, Any]:
    return {"net": net.name, "operators": len(net.op), "findings": [finding.to_dict() for finding in found]}


if __name__ == "__main__":
    sys.exit(main())
