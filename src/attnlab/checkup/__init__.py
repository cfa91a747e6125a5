"""Find what is wrong with the attention of any model, also of one that was not written here."""

from attnlab.checkup.examine import assert_causal, checkup
from attnlab.checkup.findings import Diagnosis, Finding, Report, Status
from attnlab.checkup.kernel import checkup_kernel
from attnlab.checkup.layer import checkup_attention
from attnlab.checkup.targets import check_batch

__all__ = [
    "Diagnosis",
    "Finding",
    "Report",
    "Status",
    "assert_causal",
    "check_batch",
    "checkup",
    "checkup_attention",
    "checkup_kernel",
]
