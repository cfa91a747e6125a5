"""From settings and checkpoints to models: what training, evaluation and the pages share."""
