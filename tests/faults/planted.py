"""The planted faults, with the diagnosis that a checkup must give each."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.faults import in_gpt, in_llama


@dataclass(frozen=True)
class PlantedFault:
    """One fault, and the models it is planted in.

    Args:
        name: as the two models know it, "name@layer" for one layer only.
        causes: names from `attnlab.checkup.diagnoses.CAUSES` that count as correct.
        block_size, n_layer, n_head: of both models.
        conf: the file of conf/attn with the same fault, if there is one.
        shift: how far the targets are shifted, for faults in the data.
    """

    name: str
    causes: tuple[str, ...]
    block_size: int = 37
    n_layer: int = 2
    n_head: int = 4
    conf: str = ""
    shift: int | None = None

    def build(self, model: str, seed: int = 0) -> nn.Module:
        """Build our GPT ("ours") or the Llama-like model ("other") with this fault."""
        if model == "ours":
            return in_gpt.build(self.name, self.block_size, self.n_layer, self.n_head, seed)
        return in_llama.build(self.name, self.n_layer, self.n_head, seed)

    def batch(self) -> tuple[Tensor, Tensor] | None:
        """Inputs and targets, if the fault is in the data; otherwise None."""
        if self.shift is None:
            return None
        ids = torch.randint(29, (4, 24), generator=torch.Generator().manual_seed(0))
        return ids[:, :20], ids[:, self.shift : 20 + self.shift]


FAULTS: tuple[PlantedFault, ...] = (
    PlantedFault("unscaled", ("no_scale",), conf="unscaled"),
    PlantedFault("inverse_scale", ("inverse_scale",), conf="inverse_scale"),
    PlantedFault("double_scale", ("double_scale",)),
    PlantedFault("width_scale", ("width_scale",)),
    PlantedFault("inverted_scale", ("inverted_scale",)),
    PlantedFault("flipped", ("flipped_mask",), conf="flipped"),
    PlantedFault("strict_flip", ("inverted_mask",), conf="strict_flip"),
    PlantedFault("bidirectional", ("no_mask",), conf="bidirectional"),
    PlantedFault("peek_one", ("off_by_one",), conf="peek_one"),
    PlantedFault("self_blocked", ("self_blocked",)),
    PlantedFault("itself_only", ("no_past",)),
    PlantedFault("zero_fill", ("zero_fill",), conf="zero_fill"),
    PlantedFault("finite_fill", ("finite_fill",), conf="finite_fill"),
    PlantedFault("added_bool", ("added_bool",)),
    PlantedFault("post_softmax_mask", ("post_softmax_mask",), conf="post_softmax_mask"),
    PlantedFault("softmax_over_queries", ("softmax_queries",), conf="softmax_over_queries"),
    PlantedFault("softmax_over_heads", ("softmax_heads",)),
    PlantedFault("softmax_over_batch", ("softmax_batch",)),
    PlantedFault("no_softmax", ("no_softmax",)),
    PlantedFault("naive_softmax", ("overflow",)),
    PlantedFault("row_gain", ("row_sums",)),
    PlantedFault("unmerged_heads", ("unmerged_heads",), conf="unmerged_heads"),
    PlantedFault("unsplit_heads", ("unsplit_heads",)),
    PlantedFault("untransposed", ("untransposed",)),
    PlantedFault("identical_heads", ("identical_heads",), conf="identical_heads"),
    PlantedFault("identical_qkv", ("identical_heads",), conf="identical_qkv"),
    PlantedFault("tiled_kv", ("head_order",)),
    PlantedFault("dropout_on", ("dropout_on",)),
    PlantedFault("batch_mean", ("rows_mix",)),
    PlantedFault("keeps_state", ("keeps_state",)),
    PlantedFault("counted_from_end", ("prefix_differs",)),
    PlantedFault("padded_conv", ("outside",)),
    PlantedFault("time_norm", ("outside",)),
    PlantedFault("expert_choice", ("outside",)),
    PlantedFault("closed_gate", ("outside", "learned_leak")),
    PlantedFault("bidirectional@2", ("no_mask",), n_layer=4),
    PlantedFault("peek_in_one_head", ("off_by_one",), n_head=8),
    PlantedFault("one_pair", ("single_leaks",)),
    PlantedFault("causal_up_to_32", ("late_leak",), block_size=64),
    PlantedFault("targets not shifted", ("not_shifted",), shift=0),
    PlantedFault("targets shifted twice", ("shifted_twice",), shift=2),
)
