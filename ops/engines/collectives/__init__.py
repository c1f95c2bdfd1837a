"""Collectives: how the processes of a run exchange arrays; MPI is called here only."""
