"""Initial weights by parameter name, each from a random stream of its own.

Each tensor is drawn from (seed, its name). Variants of one seed therefore start with the same
weights, and an additional parameter changes no other.
"""

import math
from collections.abc import Callable
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from attnlab.attention.layer import Attention
from attnlab.attention.variant import Shared
from attnlab.model import GPT
from attnlab.rng import Rule, constant, generator, normal, ones, zeros

__all__ = ["Rule", "constant", "gpt2", "init_weights", "normal", "ones", "unit", "zeros"]


def gpt2(net: GPT, qk_std: float = 0.02) -> dict[str, Rule]:
    """GPT-2's rules: standard deviation 0.02, residual projections smaller by 1/sqrt(2 L)
    (Radford et al. 2019, section 2.3), biases 0, norms and gains 1, smearing weights 0.2.

    Returns pattern of parameter names -> rule, of which the first match applies. `qk_std` is the
    standard deviation of the query and key weights.
    """
    residual = normal(0.02 / math.sqrt(2 * len(net.blocks)))
    of_attention = {
        f"{name}.{parameter}": rule
        for name, layer in net.named_modules()
        if isinstance(layer, Attention)
        for parameter, rule in (
            {"qkv.weight": _queries_keys_values(qk_std, shared=layer.shared)}
            | layer.initial(qk_std)
        ).items()
    }
    return of_attention | {
        "*.bias": zeros,
        "*ln_?.weight": ones,
        "*.attn.qkv.weight": _queries_keys_values(qk_std),
        "*.attn.proj.weight": residual,
        "*.mlp.proj.weight": residual,
        "*.mlp.fc.weight": normal(0.02),
        "wte.weight": normal(0.02),
        "wpe.weight": normal(0.02),
        "smear.*": constant(0.2),
    }


def unit(net: GPT) -> dict[str, Rule]:
    """GPT-2's rules, except that queries and keys have unit variance: std 1/sqrt(C).

    Vaswani et al. (2017, footnote 4) derive the scale under this assumption.
    """
    return gpt2(net, qk_std=1 / math.sqrt(net.wte.embedding_dim))


SCHEMES: dict[str, Callable[[GPT], dict[str, Rule]]] = {"unit": unit, "gpt2": gpt2}


@torch.no_grad()
def init_weights(net: GPT, seed: int, scheme: str = "unit", qk_std: float | None = None) -> None:
    """Draw every parameter of a GPT, then apply the `head_init` of each attention layer.

    The scheme is "unit" (queries and keys of unit variance) or "gpt2"; `qk_std` replaces its
    standard deviation of the query and key weights. The seed is that of the stream "weights".
    Raises ValueError if the scheme is unknown, or a parameter has no rule.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"init = {scheme} is unknown; it must be one of {', '.join(SCHEMES)}")
    if qk_std is not None and not (math.isfinite(qk_std) and qk_std >= 0):
        raise ValueError(f"qk_std = {qk_std} must be a number of at least 0, or null")
    of_model = SCHEMES[scheme](net) if qk_std is None else gpt2(net, qk_std)
    of_layers = {
        f"{prefix}.{name}": rule
        for prefix, module in net.named_modules()
        for name, rule in _rules_of(module).items()
    }
    rules = of_layers | of_model | of_layers  # the layers' come first and override the model's
    for name, parameter in net.named_parameters():
        rule = next((rule for glob, rule in rules.items() if fnmatchcase(name, glob)), None)
        if rule is None:
            raise ValueError(
                f"the parameter {name} has no initialization rule; name it in the `init_rules` of "
                f"its attention class, for example init_rules = "
                f"{{'{name.rpartition('.attn.')[2]}': attnlab.init.normal(0.02)}}"
            )
        rule(parameter, generator(seed, f"weights/{name}"))
    for module in net.modules():
        if isinstance(module, Attention):
            module.head_init(module)


def _rules_of(module: nn.Module) -> dict[str, Rule]:
    """The rules of a module's classes; a subclass overrides. ValueError for a pattern that also
    matches a parameter of a base class, which all variants draw alike."""
    rules: dict[str, Rule] = {}
    names = [name for name, _ in module.named_parameters()]
    for cls in reversed(type(module).__mro__):
        inherited = [*rules, "qkv.*", "proj.*"]
        added = vars(cls).get("init_rules", {})
        for glob in added:
            matched = [name for name in names if fnmatchcase(name, glob)]
            theirs = [n for n in matched if any(fnmatchcase(n, rule) for rule in inherited)]
            if theirs and glob not in theirs:  # an exact name replaces a rule on purpose
                full = [repr(name) for name in matched if name not in theirs]
                raise ValueError(
                    f"the initialization rule '{glob}' of {cls.__name__} also matches the "
                    f"inherited parameter {theirs[0]}; write {' and '.join(full) or 'its name'}"
                )
        rules |= added
    return rules


def _queries_keys_values(qk_std: float, *, shared: Shared = None) -> Rule:
    # A layer with fewer rows gets the first of the full matrix, and the queries' where shared.
    def draw(weight: Tensor, stream: torch.Generator) -> None:
        rows, C = weight.shape
        q, k, v = torch.randn(3, C, C, generator=stream)
        q, k, v = q * qk_std, k * qk_std, v * 0.02
        kv = (rows - C) // 2  # fewer than C where heads share keys and values
        parts = {None: [q, k[:kv], v[:kv]], "qk": [q, v], "qkv": [q]}[shared]
        weight.copy_(torch.cat(parts))

    return draw
