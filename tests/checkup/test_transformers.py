"""Tiny random models of transformers: no false alarms, and encoders read ahead."""

import pytest

from attnlab.checkup import checkup
from attnlab.commands.checkup_target import load_target, tiny_transformer
from attnlab.errors import BadInput
from tests.marks import sampled

pytest.importorskip("transformers")

CAUSAL = """
    apertus arcee aria_text biogpt bitnet blenderbot blenderbot-small bloom codegen cohere cohere2
    diffllama doge ernie4_5 exaone4 falcon gemma gemma2 gemma3_text gpt2 gpt_bigcode gpt_neo
    gpt_neox gpt_neox_japanese gptj granite granitemoe helium hunyuan_v1_dense jais2 jetmoe lfm2
    llama mamba ministral mistral mixtral mpt nemotron olmo olmo2 olmo3 opt pegasus persimmon phi
    phi3 qwen2 qwen3 seed_oss smollm3 stablelm starcoder2 trocr xglm
""".split()
# Other positions, other masks, shared values, no attention at all; `make test-all` examines all.
SAMPLE = {"bloom", "diffllama", "gemma2", "gpt_neo", "mamba", "roberta"}
ENCODERS = "bert camembert data2vec-text electra roberta roformer xlm-roberta".split()


def examined(kind: str) -> object:
    try:
        loaded = tiny_transformer(kind)
    except BadInput as error:
        pytest.skip(f"this version of transformers: {error}")
    return checkup(loaded.model, vocab_size=loaded.vocab_size, block_size=24, name=loaded.name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(CAUSAL, lambda kind: kind in SAMPLE))
def test_causal_architectures_raise_no_alarm(kind: str) -> None:
    report = examined(kind)
    assert report.healthy, [d.headline for d in report.diagnoses]  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(ENCODERS, lambda kind: kind in SAMPLE))
def test_encoders_are_built_as_decoders(kind: str) -> None:
    report = examined(kind)
    assert "no_mask" not in report.causes  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_finite_mask_in_a_published_architecture_is_found() -> None:
    """GPT-1's code adds -1e4, which scores can exceed."""
    assert examined("openai-gpt").causes == ("finite_fill",)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["llama", "bert", "roformer"])
def test_decoders_and_encoders_that_are_built_as_decoders_are_healthy(kind: str) -> None:
    assert examined(kind).healthy  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["jamba", "qwen3_next", "kimi_linear", "zamba2"])
def test_hybrids_are_built_with_every_kind_of_layer(kind: str) -> None:
    model = tiny_transformer(kind).model
    kinds = model.config.get_text_config().layer_types  # type: ignore[attr-defined]
    assert "linear_attention" in kinds
    assert {"full_attention", "hybrid"} & set(kinds)


def test_architectures_that_cannot_be_built_report_the_reason() -> None:
    with pytest.raises(BadInput, match="set_default_language"):
        tiny_transformer("xmod")
    with pytest.raises(BadInput, match="9,408,238,592 weights"):
        tiny_transformer("fuyu")


def test_unknown_architectures_are_refused() -> None:
    with pytest.raises(BadInput, match="llama"):
        load_target("hf:llamma")
