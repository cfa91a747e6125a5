"""The exercises of the course, and their grader: `from exercises import grade`."""

from .grader import Grade, grade, grade_all, grade_statements, points, scored, statements

__all__ = [
    "Grade",
    "grade",
    "grade_all",
    "grade_statements",
    "points",
    "scored",
    "statements",
]
