"""attnlab: a laboratory for the attention block of a small GPT.

The names of `__all__` are imported when they are used, so `import attnlab` is instant. Functions
whose names are also packages are imported from there: `from attnlab.attention import attention`,
`from attnlab.checkup import checkup`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab.attention import (
        Attention,
        AttentionConfig,
        CrossAttention,
        SelfAttention,
        TorchMHA,
        Variant,
    )
    from attnlab.checkup import assert_causal, checkup_attention, checkup_kernel
    from attnlab.explorer import explore
    from attnlab.init import init_weights
    from attnlab.interop import from_bert, from_gpt2
    from attnlab.model import GPT
    from attnlab.runs import read_runs
    from attnlab.training.checkpoints import load_model

__version__ = "0.1.0"

__all__ = [
    "GPT",
    "Attention",
    "AttentionConfig",
    "CrossAttention",
    "SelfAttention",
    "TorchMHA",
    "Variant",
    "__version__",
    "assert_causal",
    "checkup_attention",
    "checkup_kernel",
    "explore",
    "from_bert",
    "from_gpt2",
    "init_weights",
    "load_model",
    "read_runs",
]

_MODULES = {
    name: module
    for module, names in {
        "attnlab.model": "GPT",
        "attnlab.attention": "Attention AttentionConfig CrossAttention SelfAttention TorchMHA "
        "Variant",
        "attnlab.checkup": "assert_causal checkup_attention checkup_kernel",
        "attnlab.explorer": "explore",
        "attnlab.interop": "from_bert from_gpt2",
        "attnlab.init": "init_weights",
        "attnlab.training.checkpoints": "load_model",
        "attnlab.runs": "read_runs",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'attnlab' has no attribute {name!r}")
    return vars(import_module(_MODULES[name]))[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
