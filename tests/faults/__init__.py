"""Faults planted on purpose in two models that share no code, to test the checkup itself."""
