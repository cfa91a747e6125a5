"""A trained model as files that other programs read."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from attnlab.data.alphabets import Bytes, Characters, Subwords, to_plain
from attnlab.data.contract import Alphabet
from attnlab.errors import BadInput
from attnlab.trained.checkpoints import open_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FORMATS = ("transformers", "safetensors")


def export(target: Path | str, to: str, out: Path, *, trust: bool = False) -> None:
    """Write the model of a run or a checkpoint to the new directory `out`.

    "transformers" writes a GPT-2 and its tokenizer, which `from_pretrained` reads. "safetensors"
    writes the weights of any model by their names here, with its settings and its alphabet as
    JSON in the metadata. BadInput if there is no such model, GPT-2 lacks one of its parts, or the
    directory exists.
    """
    if to not in FORMATS:
        raise BadInput(f"--to {to} is unknown; it must be {' or '.join(FORMATS)}")
    if out.exists():
        raise BadInput(f"{out} exists; name another directory with --out")
    opened = open_model(target, trust=trust)
    if to == "transformers":
        from attnlab.trained.transformers import to_gpt2

        model = to_gpt2(opened.net)
        model.save_pretrained(out)
        tokenizer_of(opened.alphabet).save_pretrained(out)
    else:
        from safetensors.torch import save_model

        out.mkdir(parents=True)
        about = {"settings": opened.settings, "alphabet": to_plain(opened.alphabet)}
        metadata = {name: json.dumps(value) for name, value in about.items()}
        save_model(opened.net, str(out / "model.safetensors"), metadata)


def tokenizer_of(alphabet: Alphabet) -> "PreTrainedTokenizerFast":
    """An alphabet as a tokenizer of transformers, with the same ids."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if isinstance(alphabet, Subwords):
        made = Tokenizer.from_str(alphabet.content)
    elif isinstance(alphabet, Characters):
        made = Tokenizer(models.WordLevel(alphabet.ids))
        made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        made.decoder = decoders.Fuse()
    else:
        assert isinstance(alphabet, Bytes)
        made = Tokenizer(models.BPE(letters_of_bytes(), []))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False)


def letters_of_bytes() -> dict[str, int]:
    """The letter that GPT-2's tokenizer writes for a byte -> the byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + n): byte for n, byte in enumerate(others)}
