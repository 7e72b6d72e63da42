"""A tiny UMT5 encoder and its tokenizer, in files."""

from __future__ import annotations

from pathlib import Path

import torch

WORDS = ["<pad>", "</s>", "<unk>", "a", "red", "ball", "rolling", "left", "over", "grass"]
TEXT_DIM = 16


def write_text_encoder(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write `text_encoder` and `tokenizer` into a folder as transformers does; returns the folder."""
    import tokenizers
    import transformers

    torch.manual_seed(0)
    config = transformers.UMT5Config(
        vocab_size=len(WORDS), d_model=TEXT_DIM, d_kv=4, d_ff=24, num_layers=2, num_heads=3
    )
    transformers.UMT5EncoderModel(config).to(dtype).save_pretrained(folder / "text_encoder")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder / "tokenizer")
    return folder
