"""Models that the tests examine, in tables."""
