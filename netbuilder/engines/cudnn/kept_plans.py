"""Plans of cuDNN in files, so that later processes need not compile them: in the folder ``NETBUILDER_CACHE``.

A plan that cuDNN compiles takes some second of a core, and its file some 80 KB. Each is a file of the folder
``cudnn_plans``, named by a hash of all that the plan depends on, which is in the file, too. A file that is damaged, or
of something else, is ignored and written again. Plans for another version of cuDNN, another GPU or an older form of a
graph are not read any more, and so are the first that ``kept_files`` removes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from netbuilder.engines.choices import cache_folder
from netbuilder.engines.kept_files import read_kept, write_kept
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["KeptPlan", "kept_plan"]

_END = b"\0"  # of the description


@dataclass(frozen=True)
class KeptPlan:
    """The file of a plan.

    Args:
        path: of the file; None: there is no folder for it.
        description: all that the plan depends on.
    """

    path: Path | None
    description: str

    def read(self) -> bytes | None:
        """Return the plan as cuDNN has serialized it; None if it is not kept."""
        description, end, plan = (read_kept(self.path) or b"").partition(_END)
        return plan if end and description == self.description.encode() else None

    def write(self, plan: bytes) -> None:
        """Keep a plan, if that is possible."""
        write_kept(self.path, self.description.encode() + _END + plan)


def kept_plan(description: str) -> KeptPlan:
    """Return the file of the plan with a description, for the present value of ``NETBUILDER_CACHE``."""
    folder, name = cache_folder(), hashlib.sha256(description.encode()).hexdigest()[:40]
    return KeptPlan(None if folder is None else folder / "cudnn_plans" / f"{name}.plan", description)
