"""Tests of any language model: does it read ahead? Do steps with a cache equal one pass?

Needs torch alone. `checkup` tries all properties; each `assert_` function is one of them.
"""

from .caches import assert_cache_equal
from .causal import assert_causal, assert_mask_is_infinite, assert_past_used
from .gradients import assert_gradients_right
from .kernels import assert_kernel_equal
from .loss import assert_labels_ignored, assert_loss_shifted
from .modes import assert_deterministic, assert_modes_agree, assert_rows_independent
from .outcomes import CannotCheck, CheckFailed
from .padding import assert_documents_separate, assert_padding_ignored
from .precision import assert_precision_kept
from .runner import PropertyResult, Report, checks_for, checkup
from .subject import prepared

__version__ = "0.1.0"

__all__ = [
    "CannotCheck",
    "CheckFailed",
    "PropertyResult",
    "Report",
    "__version__",
    "assert_cache_equal",
    "assert_causal",
    "assert_deterministic",
    "assert_documents_separate",
    "assert_gradients_right",
    "assert_kernel_equal",
    "assert_labels_ignored",
    "assert_loss_shifted",
    "assert_mask_is_infinite",
    "assert_modes_agree",
    "assert_padding_ignored",
    "assert_past_used",
    "assert_precision_kept",
    "assert_rows_independent",
    "checks_for",
    "checkup",
    "prepared",
]
