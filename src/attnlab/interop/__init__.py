"""Pretrained weights: BERT and GPT-2 from transformers in our layers, and our GPT as a GPT-2.

Requires the extra `hf`; importing this package does not import transformers.
"""

from attnlab.interop.bert import PaddedSelfAttention, from_bert
from attnlab.interop.export import export, to_gpt2, tokenizer_of
from attnlab.interop.gpt2 import attention_from_gpt2, block_from_gpt2, from_gpt2
from attnlab.interop.transformers_loading import load_attention_model, load_language_model

__all__ = [
    "PaddedSelfAttention",
    "attention_from_gpt2",
    "block_from_gpt2",
    "export",
    "from_bert",
    "from_gpt2",
    "load_attention_model",
    "load_language_model",
    "to_gpt2",
    "tokenizer_of",
]
