"""Faults planted on purpose in two models that share no code, to examine the examiner."""
