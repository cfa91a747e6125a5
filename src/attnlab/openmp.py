"""How long a thread of OpenMP waits for the others before it gives up its core."""

import os
import sys

# Turns at a barrier. The default of GNU OpenMP, 300,000, is longer than a step of a small model.
SPINS = "10000"


def wait_briefly() -> None:
    """Let waiting threads give up their core soon. Call it before torch is imported.

    If another process has the core of one thread, the others wait for it in vain, and a run of
    seconds takes minutes. What the user has set stays. OpenMP of macOS and Windows is another one.
    """
    if sys.platform == "linux" and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
