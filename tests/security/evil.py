"""Imported by nothing: a checkpoint that names it must be refused before."""

raise AssertionError("a stored recipe was imported")
