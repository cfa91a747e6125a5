"""Every file of conf/ composes, and every ablation differs from its base in one key."""

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError

from attnlab.attention import AttentionConfig
from attnlab.errors import BadInput
from attnlab.training.config import read_config
from attnlab.training.instantiate import build
from attnlab.training.loggers import hyperparameters
from tests.conftest import CONF, VARIANTS, of_variant, plain, settings
from tests.marks import sampled

# Every file but the baseline names its base.
ABLATIONS = [v for v in VARIANTS if "defaults" in OmegaConf.load(CONF / "attn" / f"{v}.yaml")]
CLAIMS = {
    "manual": ("sdpa", "kernel"),
    "flex": ("sdpa", "kernel"),
    "differential": ("sdpa", "_target_"),
    "unscaled": ("sdpa", "scale"),
    "inverse_scale": ("sdpa", "scale"),
    "flipped": ("sdpa", "may_attend"),
    "bidirectional": ("sdpa", "may_attend"),
    "peek_one": ("sdpa", "may_attend"),
    "strict_flip": ("manual", "may_attend"),
    "zero_fill": ("sdpa", "kernel"),
    "finite_fill": ("sdpa", "kernel"),
    "post_softmax_mask": ("sdpa", "kernel"),
    "softmax_over_queries": ("sdpa", "kernel"),
    "unmerged_heads": ("sdpa", "kernel"),
    "identical_heads": ("sdpa", "head_init"),
    "identical_qkv": ("sdpa", "head_init"),
    "single_head": ("sdpa", "heads"),
    "rotary": ("sdpa", "rotary"),
    "cosine": ("sdpa", "qk_norm"),
    "sliding_window": ("sdpa", "window"),
    "alibi": ("sdpa", "score_mod"),
    "log_length": ("sdpa", "score_mod"),
    "softcap": ("sdpa", "softcap"),
    "softmax1": ("sdpa", "kernel"),
    "sigmoid": ("sdpa", "kernel"),
    "linear": ("sdpa", "kernel"),
    "gqa": ("sdpa", "n_kv_head"),
    "mqa": ("sdpa", "n_kv_head"),
    "shared_qk": ("sdpa", "shared"),
    "shared_qkv": ("sdpa", "shared"),
    "torch_mha": ("sdpa", "_target_"),
    "additive": ("sdpa", "_target_"),
    "general": ("sdpa", "_target_"),
    "gate_head": ("sdpa", "gate"),
    "gate_channel": ("sdpa", "gate"),
    "sink": ("softmax1", "sink"),
    "forgetting": ("sdpa", "forget"),
    "value_residual": ("sdpa", "value_residual"),
    "value_embeddings": ("sdpa", "value_embeddings"),
    "exclusive": ("sdpa", "exclusive"),
    "short_conv": ("sdpa", "conv"),
    "scalable_softmax": ("sdpa", "length_scale"),
    "partial_rotary": ("rotary", "rotary_share"),
    "top_k": ("sdpa", "kernel"),
    "sparsemax": ("sdpa", "kernel"),
    "entmax": ("sdpa", "kernel"),
    "softpick": ("sdpa", "kernel"),
    "stick_breaking": ("sdpa", "kernel"),
    "differential_v2": ("sdpa", "_target_"),
    "latent": ("sdpa", "_target_"),
    "delta_net": ("sdpa", "_target_"),
    "delta_net_negative": ("delta_net", "beta_max"),
    "gated_delta_net": ("delta_net", "decay"),
    "kda": ("delta_net", "decay"),
    "decay": ("gated_delta_net", "delta"),
    "gated_linear": ("kda", "delta"),
    "retention": ("decay", "decay"),
}


@pytest.mark.parametrize("variant", ABLATIONS)
def test_an_ablation_changes_one_key(variant: str) -> None:
    """This also applies to new variants, which need not be listed in `CLAIMS`."""
    file = OmegaConf.load(CONF / "attn" / f"{variant}.yaml")
    base, key = CLAIMS.get(variant, (file.defaults[0], None))
    ours, theirs = of_variant(variant), of_variant(base)
    differing = [k for k in ours.keys() | theirs.keys() if ours.get(k) != theirs.get(k)]
    assert len(differing) == 1 and key in (None, differing[0])


def test_every_claimed_variant_is_an_ablation() -> None:
    assert set(CLAIMS) <= set(ABLATIONS)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_has_a_comment(variant: str) -> None:
    assert (CONF / "attn" / f"{variant}.yaml").read_text().startswith("# ")


@pytest.mark.parametrize(
    "file", sorted((CONF / "experiment").glob("*.yaml")), ids=lambda file: file.stem
)
def test_every_experiment_can_use_other_probes(file: Path) -> None:
    """A value for one probe would be an error with probes=none."""
    assert "probes" not in OmegaConf.load(file)


def test_settings_of_the_tests_equal_those_of_hydra() -> None:
    values = ("model.n_head=2", "attn.scale=0.3", "seed=3", "optim.betas=[0.9,0.95]")
    overrides = (*values, "attn=unscaled", "preset=baby", "+trainer.profiler=simple", "name='1'")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        expected = compose("train", list(overrides))
    found = settings(*overrides)
    assert OmegaConf.to_yaml(found) == OmegaConf.to_yaml(expected)
    with pytest.raises(ConfigAttributeError, match="nope"):
        found.model.nope = 1
    with pytest.raises(ConfigCompositionException, match="nope"):
        settings("model.nope=1")


def test_the_baseline_has_the_defaults_of_the_class() -> None:
    config = AttentionConfig(8, 2, block_size=4)
    by_yaml = build(settings().attn, "attn")(config)
    bare = settings("attn=sdpa")
    OmegaConf.set_struct(bare, False)
    for key in set(bare.attn) - {"_target_"}:
        del bare.attn[key]
    by_class = build(bare.attn, "attn")(config)
    for name in ("kernel", "scale", "may_attend", "head_init", "n_head", "n_kv_head", "shared"):
        assert getattr(by_yaml, name) == getattr(by_class, name)


FILES = [
    file
    for file in sorted(CONF.glob("*/*.yaml"))
    if file.parent.name not in {"experiment"} and file.stem not in {"text", "hub"}
]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}={f.stem}")
def test_every_file_composes_checks_and_builds(file: Path) -> None:
    cfg = settings(f"{file.parent.name}={file.stem}")
    read_config(cfg).model(65)


@pytest.mark.filterwarnings("ignore:(?s).*Defaults list is missing")  # not of a primary file
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_tests_compose_variants_as_hydra_does(variant: str) -> None:
    """And a file of conf/attn changes nothing outside of `attn`."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = OmegaConf.to_container(compose(f"attn/{variant}"))
    assert composed == {"attn": OmegaConf.to_container(of_variant(variant))}


@pytest.mark.parametrize("group", ["attn", "data", "optim", "model", "probes", "logger"])
def test_every_configuration_logs_all_settings_under_the_same_columns(group: str) -> None:
    baseline = hyperparameters(plain(settings()), "sdpa")
    for file in (CONF / group).glob("*.yaml"):
        path = ["data.path=x"] if file.stem == "text" else []
        cfg = settings(f"{group}={file.stem}", *path)  # which the tests above have composed
        values = hyperparameters(plain(cfg), "x")
        assert values.keys() == baseline.keys(), file
        text = json.dumps(values)
        for key in cfg[group]:
            assert key in text, (file, key)


@pytest.mark.parametrize(
    "file", sorted((CONF / "experiment").glob("*.yaml")), ids=lambda f: f.stem
)
def test_every_experiment_composes_under_its_own_name(file: Path) -> None:
    cfg = settings(f"experiment={file.stem}")
    read_config(cfg).model(65)
    assert cfg.name == file.stem


def test_hub_requires_a_dataset() -> None:
    with pytest.raises(BadInput, match=r"data\.dataset must be given"):
        read_config(settings("data=hub"))
    read_config(settings("data=hub", "data.dataset=some/where"))


def test_text_requires_a_path() -> None:
    with pytest.raises(BadInput, match=r"data\.path must be given"):
        read_config(settings("data=text"))


def test_the_tiny_preset_is_nanogpts_cpu_setting() -> None:
    cfg = settings()
    shape = {k: cfg.model[k] for k in ("n_layer", "n_head", "n_embd", "block_size", "dropout")}
    assert shape == {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "dropout": 0.0}
    assert (cfg.data.batch_size, cfg.trainer.max_steps) == (12, 2000)


def test_the_baby_preset_is_nanogpts_gpu_setting() -> None:
    cfg = settings("preset=baby")
    shape = {k: cfg.model[k] for k in ("n_layer", "n_head", "n_embd", "block_size", "dropout")}
    assert shape == {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "dropout": 0.2}
    assert (cfg.data.batch_size, cfg.trainer.max_steps) == (64, 5000)


def test_the_presets_of_published_layers() -> None:
    net = read_config(settings("preset=gpt_oss")).model(65)
    of_layers = [(block.attn.window, block.attn.added) for block in net.blocks]
    assert of_layers == [(8, {"sink"}), (None, {"sink"})] * 2
    with initialize_config_dir(str(CONF), version_base="1.3"):
        chosen = compose("train", ["preset=gpt_oss", "attn=unscaled"])
    (layer, *_) = read_config(chosen).model(65).blocks
    assert layer.attn.scale == 1 and layer.attn.window is None and not layer.attn.added
    net = read_config(settings("preset=fox_pro", "model.n_layer=1")).model(65)
    assert net.blocks[0].attn.added == {"forget", "gate", "conv"} and net.wpe is None
    assert net.blocks[0].attn.gain is not None


PRESETS, OPTIMS = (sorted(f.stem for f in (CONF / g).glob("*.yaml")) for g in ("preset", "optim"))
PAIRS = [(preset, optim) for preset in PRESETS for optim in OPTIMS]


@pytest.mark.parametrize(("preset", "optim"), sampled(PAIRS, lambda pair: pair in PAIRS[::3]))
def test_every_optimizer_works_with_every_preset(preset: str, optim: str) -> None:
    cfg = settings(f"preset={preset}", f"optim={optim}")
    read_config(cfg)
