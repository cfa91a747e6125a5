"""Measurements of the claims, against answers that are known."""
