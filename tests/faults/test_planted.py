"""Every planted fault gets its diagnosis in both models, and models without one get none."""

import pytest
import torch

from attnlab.checkup import checkup
from tests.faults import in_gpt, in_llama
from tests.faults.planted import FAULTS, PlantedFault
from tests.marks import sampled

V = 29
PLANTED = [(fault, model) for fault in FAULTS for model in ("ours", "other")]
# Every fault in one of the two models, by turns; `make test-all` plants each in both.
SAMPLE = {(fault.name, ("ours", "other")[i % 2]) for i, fault in enumerate(FAULTS)}
SLOW = {"keeps_state", "dropout_on", "softmax_over_batch"}  # seconds in the other model
SAMPLE = {(name, "ours" if name in SLOW else model) for name, model in SAMPLE}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "model"),
    sampled(PLANTED, lambda planted: (planted[0].name, planted[1]) in SAMPLE),
    ids=lambda value: getattr(value, "name", value),
)
def test_every_fault_is_named_in_both_models(fault: PlantedFault, model: str) -> None:
    report = checkup(
        fault.build(model), vocab_size=V, block_size=fault.block_size, batch=fault.batch()
    )
    assert set(fault.causes) & set(report.causes), [d.headline for d in report.diagnoses]
    # One fault gives one diagnosis.
    assert len(report.diagnoses) == 1, [d.headline for d in report.diagnoses]


@pytest.mark.parametrize("model", ["ours", "other"])
def test_a_planted_fault_is_the_same_in_every_process(model: str) -> None:
    """PyTorch starts each process from another seed."""
    fault = next(p for p in FAULTS if p.name == "expert_choice")
    torch.manual_seed(1)
    first = fault.build(model).state_dict()
    torch.manual_seed(2)
    second = fault.build(model).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sdpa", "manual", "torch_mha", "single_head", "other"])
def test_healthy_variants_raise_no_alarm(kind: str) -> None:
    net = in_llama.build("healthy", 2, 4) if kind == "other" else in_gpt.healthy(kind)
    report = checkup(net, vocab_size=V, block_size=37)
    assert report.diagnoses == ()
