"""Find out what is wrong with the attention of any model, including models written elsewhere."""

from attnlab.checkup.assertions import (
    CheckupFailed,
    assert_cache_equal,
    assert_causal,
    assert_documents_separate,
    assert_healthy,
    assert_loss_shifted,
    assert_padding_ignored,
    assert_rows_independent,
)
from attnlab.checkup.checkup_report import Diagnosis, Report
from attnlab.checkup.findings import Finding, Status
from attnlab.checkup.kernel import checkup_kernel
from attnlab.checkup.loss_path import check_batch
from attnlab.checkup.runner import checkup, checkup_attention

__all__ = [
    "CheckupFailed",
    "Diagnosis",
    "Finding",
    "Report",
    "Status",
    "assert_cache_equal",
    "assert_causal",
    "assert_documents_separate",
    "assert_healthy",
    "assert_loss_shifted",
    "assert_padding_ignored",
    "assert_rows_independent",
    "check_batch",
    "checkup",
    "checkup_attention",
    "checkup_kernel",
]
