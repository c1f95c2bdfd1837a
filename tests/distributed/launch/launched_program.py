"""A program for the tests of netbuilder-launch: its ranks fail, or wait, as its argument says."""

import os
import signal
import sys
import threading
import time

from netbuilder.distributed.failure import abort
from netbuilder.distributed.transport import launchers

RANK, SIZE = int(os.environ[launchers.RANK]), int(os.environ[launchers.WORLD_SIZE])


def say(line, file=sys.stdout):
    """Print a line by one write: the parts of several would mix with what other ranks print."""
    file.write(f"{line}\n")
    file.flush()


def wait_for_others():
    """All ranks have started."""
    if os.environ[launchers.ENGINE] == "MPI":
        from mpi4py import MPI

        assert (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) == (RANK, SIZE)
        abort.install(RANK, SIZE, MPI.COMM_WORLD.Abort)
        MPI.COMM_WORLD.Barrier()
    else:
        abort.install(RANK, SIZE, os._exit)
        store = launchers.job_store(os.environ).with_prefix("program" + os.environ[launchers.ATTEMPT])
        store.set(str(RANK), b"")
        store.wait(map(str, range(SIZE)), 60)
    say(f"ready {RANK}")


def interrupt(number, frame):
    raise KeyboardInterrupt


def fail(mode):
    if mode == "raise" or (mode == "once" and os.environ[launchers.ATTEMPT] == "0"):
        raise ValueError("this rank fails")
    if mode == "thread":
        threading.Thread(target=lambda: 1 // 0, name="loader").start()
    elif mode == "exit":
        sys.exit(3)
    elif mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def main(mode, folder):
    if mode == "checkpoint":
        signal.signal(signal.SIGTERM, interrupt)
        signal.signal(signal.SIGINT, interrupt)
    elif mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    wait_for_others()
    if RANK == 1:
        fail(mode)
    if mode == "until":
        while not os.path.exists(os.path.join(folder, f"go-{RANK}")):
            time.sleep(0.02)
        return
    if mode == "caught":
        try:
            sys.exit(4)
        except SystemExit:
            pass
    if mode in ("end", "once", "caught"):
        names = ("OMP_NUM_THREADS", "NETBUILDER_DECODING_THREADS", launchers.LOCAL_RANK, launchers.LOCAL_SIZE)
        said = [os.environ[name] for name in names] + [str(len(os.sched_getaffinity(0))), os.environ[launchers.ATTEMPT]]
        say(f"place {RANK} {' '.join(said)}")
        say(f"warning of GPUs {os.environ.get(launchers.GPUS)}", sys.stderr)
        return
    try:
        while True:
            time.sleep(0.05)
    except KeyboardInterrupt:
        time.sleep(0.2 * (RANK + 1))  # the others write longer than the first
        with open(os.path.join(folder, f"checkpoint-{RANK}"), "w") as file:
            file.write("written")
        raise


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
