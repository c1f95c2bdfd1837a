"""The MPI library that mpi4py loads, and the mpiexec that belongs to it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from netbuilder.proto.cores import core_count
from netbuilder.proto.errors import DeviceError
from netbuilder.proto.extras import how_to_install
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ASK", "InstalledMpi", "installed_mpi"]

_INSTALL = f"{how_to_install('mpi')}, or mpi4py with the MPI of this machine"

# In another process: this one is no rank, and must not load the library. The folder of the library is asked of the
# system, since wheels put it elsewhere than packages of a distribution do.
ASK = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().split("\\n")[0].strip("\\0 "))
paths = [line.split()[-1] for line in open("/proc/self/maps") if "/libmpi" in line]
print(paths[0] if paths else "")
"""


@dataclass(frozen=True)
class InstalledMpi:
    """An MPI library and its mpiexec.

    Args:
        name: its version, as the library states it.
        mpiexec: path of the program; "" where it is not needed, and missing.
    """

    name: str
    mpiexec: str

    @property
    def is_open_mpi(self) -> bool:
        """Whether this is Open MPI, or one that is made from it."""
        return "Open MPI" in self.name

    @property
    def starts_over_store(self) -> bool:
        """Whether its processes can meet in a store, on one node or several; otherwise its mpiexec must start them."""
        return not self.is_open_mpi

    @property
    def note(self) -> str:
        """What users should know about how it is started; "" if nothing."""
        if self.is_open_mpi and os.geteuid() == 0:
            return "Open MPI does not run as root unless it is told to; OMPI_ALLOW_RUN_AS_ROOT is set for this job"
        return ""

    def environment(self) -> dict[str, str]:
        """Return variables that mpiexec needs."""
        if self.is_open_mpi and os.geteuid() == 0:
            return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {}

    def command(self, processes: int) -> list[str]:
        """Return the command that starts this number of processes of Open MPI on this node, without the program."""
        more = ["--oversubscribe"] if processes > core_count() else []
        return [self.mpiexec, "--bind-to", "none", *more, "-n", str(processes)]


def installed_mpi() -> InstalledMpi:
    """Return the MPI that mpi4py loads here.

    Raises:
        DeviceError: mpi4py is missing, finds no library, or a mpiexec that is needed is missing.
    """
    run = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
    if run.returncode:
        lines = run.stderr.strip().splitlines() or ["it ended without a message"]
        raise DeviceError(f"mpi4py cannot be used ({lines[-1]}): {_INSTALL}")
    name, library = run.stdout.splitlines()[:2]
    near = [str(folder / "bin") for folder in Path(library).parents] if library else []
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join([*near[:4], str(Path(sys.executable).parent)]))
    found = InstalledMpi(name, mpiexec or shutil.which("mpiexec") or "")
    if not (found.mpiexec or found.starts_over_store):
        raise DeviceError(f"{name} has no mpiexec next to {library or 'it'} or on the path: {_INSTALL}")
    return found
