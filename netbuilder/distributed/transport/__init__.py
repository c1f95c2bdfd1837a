"""Transport: how the processes of a run exchange arrays; MPI and NCCL are called here only."""
