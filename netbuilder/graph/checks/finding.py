"""What a check of a net finds: the rule that is broken, and where."""

from __future__ import annotations

import enum
from typing import Any

from netbuilder.ops.core.instructions import describe_operator
from netbuilder.proto import NetDef, OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Finding", "Place", "Rule"]


class Rule(enum.Enum):
    """A rule that a net has to keep; the value is its name in messages and files."""

    UNKNOWN_OPERATOR = "unknown-operator"  #: the type of an operator is not registered
    OPERATOR = "operator"  #: arguments, numbers of inputs and outputs, and in-place pairs are valid
    DANGLING_BLOB = "dangling-blob"  #: a blob that is read, an external output or stored as observable exists
    NO_VALUE = "no-value"  #: an external input is made by the init net or given
    DEVICE = "device"  #: an operator has a kernel for its device, and uses blobs of that device only
    SHAPE = "shape"  #: shapes and types fit one another
    RACE = "race"  #: of two operators that write a blob, one depends on the other
    UNREDUCED_GRADIENT = "unreduced-gradient"  #: a parameter is updated with the gradients of all replicas
    NOT_UPDATED = "not-updated"  #: each copy of a parameter that has a gradient is updated
    UPDATED_TWICE = "updated-twice"  #: a parameter is updated once in a step


@dataclass(frozen=True)
class Finding:
    """One place where a net breaks a rule.

    Args:
        rule: the rule.
        message: what is wrong, and the remedy, without the place.
        where: the place: net, operator, its blobs and the line of the user's code that made it.
        net: the name of the net, or of the subgraph, that has the operator.
        index: the operator's position in it; None: the finding is about the net.
        op_type: the operator's type, or "".
        blob: the blob that the finding is about, or "".
        source: the line of the user's code that made the operator, or "" if the net does not have it.
    """

    rule: Rule
    message: str
    where: str
    net: str
    index: int | None = None
    op_type: str = ""
    blob: str = ""
    source: str = ""

    def __str__(self) -> str:
        return f"{self.rule.value}: {self.where}: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as values for JSON."""
        return {
            "rule": self.rule.value, "message": self.message, "net": self.net, "operator": self.index,
            "type": self.op_type, "blob": self.blob, "source": self.source, "where": self.where,
        }  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A net that is checked: the net itself, or a subgraph of one of its operators.

    Args:
        net: the net.
        inside: describes the operator that has the subgraph, or "".
    """

    net: NetDef
    inside: str = ""

    def of_subgraph(self, subgraph: NetDef, index: int) -> Place:
        """Return the place of a subgraph of an operator of this net."""
        op = self.net.op[index]
        return Place(subgraph, f", in operator {index} {op.type} of net {self.net.name!r}{self.inside}")

    def finding(self, rule: Rule, message: str, index: int | None = None, *, blob: str = "") -> Finding:
        """Return a finding about an operator of the net, or about the net."""
        if index is None:
            return Finding(rule, message, f"net {self.net.name!r}{self.inside}", self.net.name, blob=blob)
        op: OperatorDef = self.net.op[index]
        where = describe_operator(self.net.name, index, op) + self.inside
        return Finding(rule, message, where, self.net.name, index, op.type, blob, op.debug_info)
