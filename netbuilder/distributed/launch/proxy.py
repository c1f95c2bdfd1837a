"""The program of MPICH that starts the processes of a node, and what mpiexec on the first node may tell it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from netbuilder.proto.errors import DistributedError, NetError

__all__ = ["proxy_command", "proxy_order"]

_PROGRAM = "hydra_pmi_proxy"
_NUMBER = re.compile(r"-?\d{1,9}")
_OPTIONS = {
    "--control-port": re.compile(r"(?P<host>[^\s:]+|\[[0-9A-Fa-f:.%\w]+\]):(?P<port>\d{1,5})"),
    "--demux": re.compile("poll|select"),
    "--topolib": re.compile("hwloc|none"),
    **dict.fromkeys(("--gpu-subdevs-per-proc", "--gpus-per-proc", "--pgid", "--pmi-port"), _NUMBER),
    **dict.fromkeys(("--proxy-id", "--retries", "--usize"), _NUMBER),
}
"""Options with what their values may be. Those that name programs are not among them."""

_OWN = {"--rmk": "user", "--launcher": "fork"}
"""Options that each node sets itself, and --launcher-exec, which it leaves out."""


def proxy_order(words: Sequence[str]) -> tuple[str, bytes]:
    """Return the host and the order that its launcher gets, from the arguments with which mpiexec calls ssh.

    Raises:
        NetError: they start something else.
    """
    rest = list(words)
    while rest and rest[0].startswith("-"):
        del rest[0]
    if len(rest) < 2 or Path(rest[1].strip("\"'")).name != _PROGRAM:
        raise NetError(f"mpiexec wants to start {' '.join(rest[1:]) or 'nothing'!r:.200}, which is not its {_PROGRAM}")
    return rest[0], json.dumps(rest[2:]).encode()


def proxy_command(order: bytes, mpiexec: str, first: str) -> list[str]:
    """Return the command that an order stands for: the proxy of this node's own MPI, with the options that it may have.

    Args:
        order: made by ``proxy_order`` on the first node.
        mpiexec: that of this node; its proxy is next to it.
        first: name or address of the first node, the only one that the proxy may connect to.

    Raises:
        DistributedError: the order has an option that is not one of these, or another value; nothing is started.
    """
    try:
        words = json.loads(order)
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, list) or len(words) % 2 or not all(isinstance(word, str) for word in words):
        raise _refused(f"it is no list of options and values: {order!r:.200}")
    found: dict[str, str] = {}
    for name, value in zip(words[::2], words[1::2]):
        if name in found:
            raise _refused(f"it has {name} twice")
        if name in _OWN or name == "--launcher-exec":
            continue
        rule = _OPTIONS.get(name)
        if rule is None:
            raise _refused(f"{name!r:.80} is not one of the options {', '.join(_OPTIONS)}")
        if (match := rule.fullmatch(value)) is None:
            raise _refused(f"{name} may not be {value!r:.80}")
        if name == "--control-port" and match["host"].strip("[]") != first:
            raise _refused(f"the processes must connect to the first node, {first}, and not to {value!r:.80}")
        found[name] = value
    if missing := {"--control-port", "--proxy-id"} - {*found}:
        raise _refused(f"{' and '.join(sorted(missing))} is missing")
    program = str(Path(mpiexec).with_name(_PROGRAM))
    return [program, *(word for pair in (found | _OWN).items() for word in pair)]


def _refused(reason: str) -> DistributedError:
    return DistributedError(f"the first node has sent an order that this one does not follow: {reason}")
