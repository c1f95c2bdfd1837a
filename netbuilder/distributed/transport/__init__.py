"""Transport: how the processes of a run start and exchange arrays; MPI and NCCL are called here only."""
