"""The exercises of the course, and their grader: `from exercises import grade`."""

from .grader import Grade, grade, grade_statements, scored, statements

__all__ = ["Grade", "grade", "grade_statements", "scored", "statements"]
