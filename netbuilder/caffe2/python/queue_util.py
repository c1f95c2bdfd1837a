"""Queues as pipes between tasks."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.jobs.queues import Queue, QueueWrapper, close_queue, dequeue, enqueue

__all__ = ["Queue", "QueueWrapper", "close_queue", "dequeue", "enqueue"]

__getattr__ = names_of(__name__)
