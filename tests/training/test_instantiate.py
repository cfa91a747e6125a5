"""From configuration to objects: messages for bad settings, and users' classes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from attnlab import attention, model
from attnlab.attention import AttentionConfig, SelfAttention, kernels
from attnlab.errors import BadInput
from attnlab.training.config import read_config
from attnlab.training.instantiate import build, checked, locate, parameters
from tests.conftest import settings


class Uniform(nn.Module):
    """A user's attention outside the library: every key gets the same weight."""

    def __init__(self, config: AttentionConfig, *, skip: int = 0) -> None:
        super().__init__()
        C = config.n_embd
        self.qkv = nn.Linear(C, 3 * C, bias=config.bias)
        self.proj = nn.Linear(C, C, bias=config.bias)
        self.n_head, self.skip = config.n_head, skip

    def pattern(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        causal = torch.ones(T, T).tril()
        return (causal / causal.sum(-1, keepdim=True)).expand(B, self.n_head, T, T)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.pattern(x)[:, 0] @ self.qkv(x).chunk(3, -1)[2])


HERE = f"{__name__}.Uniform"


def test_a_users_class_needs_one_override() -> None:
    net = read_config(settings(f"attn._target_={HERE}")).model(65)
    assert isinstance(net.blocks[0].attn, Uniform)


def test_its_own_arguments_are_taken_and_checked() -> None:
    net = read_config(settings(f"attn._target_={HERE}", "+attn.skip=3")).model(65)
    assert net.blocks[0].attn.skip == 3
    with pytest.raises(BadInput, match=r"attn\.skip = many must be a whole number"):
        read_config(settings(f"attn._target_={HERE}", "+attn.skip=many")).model(65)
    with pytest.raises(BadInput, match=r"attn\.skp is not a setting of .* mean attn\.skip"):
        read_config(settings(f"attn._target_={HERE}", "+attn.skp=3")).model(65)


def test_an_unsupported_setting_is_refused() -> None:
    with pytest.raises(BadInput, match=r"Uniform ignores scale = 2\.0"):
        read_config(settings(f"attn._target_={HERE}", "attn.scale=2.0")).model(65)


@pytest.mark.parametrize("target", ["SelfAttention", "attnlab.attention.SelfAttention"])
@pytest.mark.parametrize("kernel", ["manual", "attnlab.attention.kernels.manual"])
def test_an_import_path_becomes_the_function(target: str, kernel: str) -> None:
    node = OmegaConf.create(
        {
            "_target_": target,
            "kernel": kernel,
        }
    )
    layer = build(node, "attn")(AttentionConfig(8, 2, block_size=4))
    assert isinstance(layer, SelfAttention)
    assert layer.kernel is kernels.manual


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["+typo=1"], "typo is not a setting"),
        (["+sed=1"], "sed is not a setting; did you mean seed"),
        (
            ["++model.n_heads=4"],
            r"model\.n_heads is not a setting of .*GPT; did you mean model\.n_head",
        ),
        (["+model.attn=x"], r"model\.attn is not a setting"),
        (["seed=abc"], "seed = abc must be a whole number"),
        (["seed=-1"], "seed = -1 must be at least 0"),
        (["seed=1.5"], r"seed = 1\.5 must be a whole number"),
        (["force=maybe"], "force = maybe must be true or false"),
        (["model.n_embd=wide"], r"model\.n_embd = wide must be a whole number"),
        (["model.n_embd=null"], r"model\.n_embd = null must be a whole number"),
        (["model.bias=7"], r"model\.bias = 7 must be true or false"),
        (["attn.scale=maybe"], r"attn\.scale = maybe must be a number or 1/D or null"),
        (["attn.kernel=attnlab.nope"], r"attn\.kernel = attnlab\.nope cannot be imported"),
        (["attn.kernel=sdp"], r"attn\.kernel = sdp is unknown; did you mean sdpa"),
        (["attn.kernel=causal"], r"attn\.kernel = causal cannot be used as kernel"),
        (["attn.kernel=gelu"], r"attn\.kernel = gelu is unknown"),
        (["attn.kernel=null"], r"attn\.kernel = null must be a function"),
        (["attn.kernel=attnlab.attention.masks.causal"], r"must be called as \(q, k, v, mask="),
        (["attn.may_attend=math.sqrt"], r"must be called as \(query, key\)"),
        (["attn.may_attend=sdpa"], r"attn\.may_attend = sdpa cannot be used as may_attend"),
        (["attn.head_init=SelfAttention"], r"cannot be used as head_init; .*identical"),
        (["attn._target_=SelfAtention"], r"attn\._target_ = .* did you mean SelfAttention"),
        (["attn._target_=causal"], r"attn\._target_ = causal cannot be used as class"),
        (["attn.shared=q"], r"attn\.shared = q must be qk or qkv or null"),
        (["+attn.dropout=0.5"], r"attn\.dropout is not a setting"),
        (["model.norm=rmsnorm"], r"model\.norm = rmsnorm is unknown; did you mean rms_norm"),
        (["model.norm=relu_squared"], r"relu_squared cannot be used as norm; .*rms_norm"),
        (["attn._target_=no.Such"], r"attn\._target_ = no\.Such cannot be imported"),
        (["data.batch_size=0"], r"data\.batch_size = 0 must be at least 1"),
        (["checkpoint_every=0"], "checkpoint_every = 0 must be at least 1"),
        (["trainer.max_steps=0"], r"trainer\.max_steps = 0 must be at least 1"),
    ],
)
def test_bad_settings_are_named(overrides: list[str], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        cfg = settings(*overrides)
        read_config(cfg).model(65)


@pytest.mark.parametrize(
    ("value", "hint", "good"),
    [(1, float, True), (True, int, False), ("3", int, False), ([0.9, 0.99], list[float], True)],
)
def test_types_are_taken_strictly(value: Any, hint: Any, good: bool) -> None:

    if good:
        assert checked(value, hint, "x") == value
    else:
        with pytest.raises(BadInput):
            checked(value, hint, "x")


def refuses(q: Tensor, k: Tensor) -> Tensor:
    """A user's mask that raises an error."""
    raise RuntimeError("no mask today\nand none tomorrow")


def miscalculates(q: Tensor, k: Tensor) -> Tensor:
    """A user's mask in which a library raises an error."""
    return q.reshape(2, 3, 5)


@pytest.mark.parametrize(
    ("mask", "said"), [(refuses, "no mask today"), (miscalculates, "shape '[2, 3, 5]' is invalid")]
)
def test_an_error_in_user_code_names_its_line(mask: Callable[..., Tensor], said: str) -> None:
    cfg = settings(f"attn.may_attend={__name__}.{mask.__name__}", "data=plays")
    line = mask.__code__.co_firstlineno + 2
    with pytest.raises(BadInput) as error:
        read_config(cfg).model(29)
    assert str(error.value).startswith(f"RuntimeError in test_instantiate.py, line {line}: {said}")


class Asserts(SelfAttention):
    """A user's layer whose constructor asserts what does not hold."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        raise AssertionError


class ReturnsTwo(SelfAttention):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), None


class KeepsHeads(SelfAttention):
    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        return mixed


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (
            Asserts,
            r"AssertionError in test_instantiate.py, line \d+: raise AssertionError",
        ),
        (ReturnsTwo, "the attention layer must return a tensor .* it returned a tuple"),
        (KeepsHeads, "trying the attention fails: mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_a_users_layer_that_fails_is_one_sentence(layer: type[SelfAttention], said: str) -> None:
    cfg = settings(f"attn._target_={__name__}.{layer.__name__}", "data=plays")
    with pytest.raises(BadInput, match=f"^{said}"):
        read_config(cfg).model(29)


@pytest.mark.parametrize("name", ["loggers.WandbLogger", "callbacks.RichProgressBar", "Trainer"])
def test_annotations_under_type_checking_are_ignored(name: str) -> None:
    """Lightning imports some names of its annotations under TYPE_CHECKING."""
    found = locate(f"lightning.pytorch.{name}", "x")
    assert parameters(found, "x")


def test_the_public_names_are_unique() -> None:
    assert not set(attention.__all__) & set(model.__all__)
