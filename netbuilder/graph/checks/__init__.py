"""Checks of a net before it runs: what would fail, and what would give wrong results without failing."""

from netbuilder.graph.checks.check import check_net, require_sound
from netbuilder.graph.checks.finding import Finding, Rule

__all__ = ["Finding", "Rule", "check_net", "require_sound"]
