"""Measurements of the claims, compared with known answers."""
