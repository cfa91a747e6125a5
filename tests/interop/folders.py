"""Small random BERT and GPT-2 folders with tokenizers of their own, as transformers saves them."""

from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizerFast,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

LINES = ["the quick brown fox jumps over the lazy dog", "to be, or not to be", "naïve café 🙂"] * 4
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] to be or not , look ##ing at the dog".split()


def shaken(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


def gpt2_folder(folder: Path) -> Path:
    """With a byte-level BPE that was trained on a few lines, and <|endoftext|>."""
    folder.mkdir()
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(LINES, vocab_size=300, special_tokens=["<|endoftext|>"])
    end = "<|endoftext|>"
    bpe.save(str(folder / "bpe.json"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "bpe.json"), eos_token=end)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=48, n_embd=32, n_layer=3, n_head=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    shaken(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def bert_folder(folder: Path) -> Path:
    """With a vocabulary of word pieces made by hand."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    tokenizer = BertTokenizerFast(vocab={word: i for i, word in enumerate(WORDS)})
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=12,
    )  # fmt: skip
    model = BertForMaskedLM(config)
    shaken(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
