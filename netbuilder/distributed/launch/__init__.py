"""The processes of a job: starting them on one node or several, and ending all of them when one fails."""

from netbuilder.distributed.launch.launcher import Job, launch

__all__ = ["Job", "launch"]
