"""Every variant stands in every list, and its initial weights are those of the digest.

python -m tests.attention.test_lists    # writes the digests of today
"""

import inspect
import json
from pathlib import Path

import pytest
import torch

from attnlab.attention.core import AttentionSettings, SelfAttention
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.plotting.drawing import KNOWN
from attnlab.rng import generator
from attnlab.settings.bind import attention_factory
from tests import conftest
from tests.attention.formulas import CASES
from tests.attention.layers import settings

FILE = Path(__file__).with_name("initial_weights.json")
DIGESTS: dict[str, list[float]] = json.loads(FILE.read_text())
DOCUMENTED = (conftest.ROOT / "docs" / "variants.md").read_text(encoding="utf-8")
ROWS = [line.split("|")[1] for line in DOCUMENTED.splitlines() if line.startswith("| `")][1:]
# Lists of which CONTRIBUTING.md, "Add a variant", says how to extend them.
LISTS = {
    "a formula in CASES of tests/attention/formulas.py": {*CASES, "hybrid"},
    "a row in docs/variants.md": {name for row in ROWS for name in row.split("`")[1::2]},
    "a color in FAMILIES of src/attnlab/plotting/drawing.py": {*KNOWN, "hybrid"},
    "a digest in tests/attention/initial_weights.json": {*DIGESTS},
}


@pytest.mark.parametrize("variant", conftest.VARIANTS)
@pytest.mark.parametrize("wanted", LISTS)
def test_a_variant_is_in_every_list(variant: str, wanted: str) -> None:
    assert variant in LISTS[wanted], (
        f'conf/attn/{variant}.yaml lacks {wanted}: see "Add a variant" in CONTRIBUTING.md'
    )


@pytest.mark.parametrize("wanted", LISTS)
def test_no_list_has_a_variant_that_is_gone(wanted: str) -> None:
    if "color" not in wanted:  # masks and arms of claims have colors, too
        assert LISTS[wanted] <= {*conftest.VARIANTS}


def digest(variant: str) -> list[float]:
    """The number of initial weights of seed 3, and their sum with random factors by name.

    A sum and not a hash, so that another processor may round a weight in another way.
    """
    net = GPT(
        attention_factory(settings(variant)),
        65,
        block_size=16,
        n_layer=2,
        n_head=4,
        n_embd=32,
        bias=True,
    )
    init_weights(net, seed=3)
    count, total = 0, 0.0
    for name, weight in net.named_parameters():
        stream = generator(0, f"digest/{name}")
        factors = torch.rand(weight.shape, generator=stream, dtype=torch.float64)
        count += weight.numel()
        total += float((weight.detach().double() * factors).sum())
    return [count, total]


@pytest.mark.parametrize("variant", DIGESTS)
def test_initial_weights_are_those_of_the_digest(variant: str) -> None:
    # Instruction sets draw normal numbers with other last bits: the sums differ by 1e-5.
    assert digest(variant) == pytest.approx(DIGESTS[variant], rel=0, abs=1e-4)


def test_subclasses_can_hand_on_every_setting_of_self_attention() -> None:
    parameters = inspect.signature(SelfAttention).parameters.keys() - {"config"}
    assert AttentionSettings.__annotations__.keys() == parameters


if __name__ == "__main__":
    lines = [f'  "{name}": {json.dumps(digest(name))}' for name in conftest.VARIANTS]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
