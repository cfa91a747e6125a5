import pytest
import torch
import torch.nn.functional as F

from attnlab.attention.kernels import sdpa
from experiments.vanishing_gradients import measure


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measure, "WIDTH", 16)


def test_with_head_size_1_the_scale_changes_nothing():
    assert measure.gradients(1, 1.0, seed=0) == measure.gradients(1, None, seed=0)


def test_the_norm_is_that_of_the_fused_kernel():
    net = measure.untrained(sdpa, 8, None, seed=3)
    ids = measure.batch(seed=3)
    F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    grads = [p.grad[:16] for name, p in net.named_parameters() if name.endswith("qkv.weight")]
    expected = torch.cat([grad.flatten() for grad in grads]).norm()
    assert measure.gradients(8, None, seed=3)["W_q"] == pytest.approx(float(expected), rel=1e-4)
