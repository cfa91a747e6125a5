"""The list of faults, with the name that a checkup must give each."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnlab.checkup.bench import other, ours


@dataclass(frozen=True)
class Plant:
    """One fault.

    Args:
        fault: its name in the two benches, "name@layer" for one layer alone.
        causes: names from `attnlab.checkup.diagnoses.CAUSES` that count as right.
        block_size, n_layer, n_head: of the models that it is planted in.
        conf: the variant of conf/attn that is this fault, if there is one.
        shift: how far targets are shifted, for faults in the data.
    """

    fault: str
    causes: tuple[str, ...]
    block_size: int = 37
    n_layer: int = 2
    n_head: int = 4
    conf: str = ""
    shift: int | None = None

    def build(self, bench: str, seed: int = 0) -> nn.Module:
        """The model with the fault, in the bench "ours" or "other", all weights from the seed."""
        if bench == "ours":
            return ours.build(self.fault, self.block_size, self.n_layer, self.n_head, seed)
        return other.build(self.fault, self.n_layer, self.n_head, seed)

    def batch(self) -> tuple[Tensor, Tensor] | None:
        """Inputs and targets, where the fault is in them."""
        if self.shift is None:
            return None
        ids = torch.randint(29, (4, 24), generator=torch.Generator().manual_seed(0))
        return ids[:, :20], ids[:, self.shift : 20 + self.shift]


PLANTS: tuple[Plant, ...] = (
    Plant("unscaled", ("no_scale",), conf="unscaled"),
    Plant("inverse_scale", ("inverse_scale",), conf="inverse_scale"),
    Plant("double_scale", ("double_scale",)),
    Plant("width_scale", ("width_scale",)),
    Plant("inverted_scale", ("inverted_scale",)),
    Plant("flipped", ("flipped_mask",), conf="flipped"),
    Plant("strict_flip", ("inverted_mask",), conf="strict_flip"),
    Plant("bidirectional", ("no_mask",), conf="bidirectional"),
    Plant("peek_one", ("off_by_one",), conf="peek_one"),
    Plant("self_blocked", ("self_blocked",)),
    Plant("itself_only", ("no_past",)),
    Plant("zero_fill", ("zero_fill",), conf="zero_fill"),
    Plant("finite_fill", ("finite_fill",), conf="finite_fill"),
    Plant("added_bool", ("added_bool",)),
    Plant("post_softmax_mask", ("post_softmax_mask",), conf="post_softmax_mask"),
    Plant("softmax_over_queries", ("softmax_queries",), conf="softmax_over_queries"),
    Plant("softmax_over_heads", ("softmax_heads",)),
    Plant("softmax_over_batch", ("softmax_batch",)),
    Plant("no_softmax", ("no_softmax",)),
    Plant("naive_softmax", ("overflow",)),
    Plant("row_gain", ("row_sums",)),
    Plant("unmerged_heads", ("unmerged_heads",), conf="unmerged_heads"),
    Plant("unsplit_heads", ("unsplit_heads",)),
    Plant("untransposed", ("untransposed",)),
    Plant("identical_heads", ("identical_heads",), conf="identical_heads"),
    Plant("identical_qkv", ("identical_heads",), conf="identical_qkv"),
    Plant("tiled_kv", ("head_order",)),
    Plant("dropout_on", ("dropout_on",)),
    Plant("batch_mean", ("rows_mix",)),
    Plant("keeps_state", ("keeps_state",)),
    Plant("counted_from_end", ("prefix_differs",)),
    Plant("padded_conv", ("outside",)),
    Plant("time_norm", ("outside",)),
    Plant("expert_choice", ("outside",)),
    Plant("closed_gate", ("outside", "learned_leak")),
    Plant("bidirectional@2", ("no_mask",), n_layer=4),
    Plant("peek_in_one_head", ("off_by_one",), n_head=8),
    Plant("one_pair", ("single_leaks",)),
    Plant("causal_up_to_32", ("late_leak",), block_size=64),
    Plant("targets not shifted", ("not_shifted",), shift=0),
    Plant("targets shifted twice", ("shifted_twice",), shift=2),
)
