"""Jobs: step builders, tasks, sessions, readers and writers, pipes, training with checkpoints."""
