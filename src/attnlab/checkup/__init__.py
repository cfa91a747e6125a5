"""Tests of any model: is it causal, and do cached steps equal one pass? Needs only torch."""

from .causal import assert_causal, assert_mask_is_infinite, assert_past_used
from .kernels import assert_kernel_equal
from .loss import assert_loss_shifted, assert_targets_shifted
from .models import CannotCheck, CheckFailed
from .runner import Report, Result, checks_for, checkup
from .serving import (
    assert_cache_equal,
    assert_deterministic,
    assert_documents_separate,
    assert_padding_ignored,
    assert_rows_independent,
)

__all__ = [
    "CannotCheck",
    "CheckFailed",
    "Report",
    "Result",
    "assert_cache_equal",
    "assert_causal",
    "assert_deterministic",
    "assert_documents_separate",
    "assert_kernel_equal",
    "assert_loss_shifted",
    "assert_mask_is_infinite",
    "assert_padding_ignored",
    "assert_past_used",
    "assert_rows_independent",
    "assert_targets_shifted",
    "checks_for",
    "checkup",
]
