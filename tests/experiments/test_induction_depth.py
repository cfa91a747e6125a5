import pytest
import torch
from torch import Tensor, nn

from experiments.induction_depth.measure import head_scores


class LooksBack(nn.Module):
    """Heads that look 1 and 7 positions back."""

    def pattern(self, x: Tensor) -> Tensor:
        T = x.shape[1]
        heads = [torch.eye(T).roll(-back, 1).tril() for back in (1, 7)]
        return torch.stack(heads).expand(len(x), 2, T, T)


class Block(nn.Identity):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.Identity(), LooksBack()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block()])

    def embed(self, ids: Tensor) -> Tensor:
        return ids[..., None].float()


@pytest.mark.parametrize(("period", "induction"), [(8, 1.0), (9, 0.0)])
def test_heads_that_look_at_a_known_place(period: int, induction: float):
    """With a period of 8, the symbol that followed the last occurrence is 7 positions back."""
    ids = torch.arange(period).repeat(3)[None]
    assert head_scores(Net(), ids) == {"induction": [induction], "previous": [1.0]}
