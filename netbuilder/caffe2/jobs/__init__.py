"""Jobs: builders of steps, tasks, sessions, readers and writers, pipes, training with checkpoints."""
