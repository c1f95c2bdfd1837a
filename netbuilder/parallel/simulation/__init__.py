"""Prediction of data-parallel training over many processes: links, allreduce times, the events of a step."""
