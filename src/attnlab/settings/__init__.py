"""The settings of a run: what they mean, what they may be, and the objects that they name."""
