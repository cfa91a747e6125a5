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
        Properties,
        SelfAttention,
        TorchMHA,
        Variant,
    )
    from attnlab.attention.properties import declare
    from attnlab.checkup import assert_causal, checkup_attention, checkup_kernel
    from attnlab.init import init_weights
    from attnlab.interop import from_bert, from_gpt2
    from attnlab.model import GPT
    from attnlab.pages.explorer import explore
    from attnlab.probes.costs import costs
    from attnlab.probes.layer_check import check_layer
    from attnlab.runs.reading import read_runs
    from attnlab.training.checkpoints import load_model

__version__ = "0.1.0"

__all__ = [
    "GPT",
    "Attention",
    "AttentionConfig",
    "CrossAttention",
    "Properties",
    "SelfAttention",
    "TorchMHA",
    "Variant",
    "__version__",
    "assert_causal",
    "check_layer",
    "checkup_attention",
    "checkup_kernel",
    "costs",
    "declare",
    "explore",
    "from_bert",
    "from_gpt2",
    "init_weights",
    "load_model",
    "read_runs",
]

_ELSEWHERE = {
    "assert_causal": "attnlab.checkup",
    "check_layer": "attnlab.probes.layer_check",
    "checkup_attention": "attnlab.checkup",
    "checkup_kernel": "attnlab.checkup",
    "costs": "attnlab.probes.costs",
    "declare": "attnlab.attention.properties",
    "explore": "attnlab.pages.explorer",
    "from_bert": "attnlab.interop",
    "from_gpt2": "attnlab.interop",
    "GPT": "attnlab.model",
    "init_weights": "attnlab.init",
    "load_model": "attnlab.training.checkpoints",
    "read_runs": "attnlab.runs.reading",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'attnlab' has no attribute {name!r}")
    return vars(import_module(_ELSEWHERE.get(name, "attnlab.attention")))[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
