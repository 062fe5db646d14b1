"""A model directory that vLLM can load without a download: random weights of its own, a tokenizer trained here.

The tokenizer is a byte-level BPE over the text of this Python's standard library, so that every text can be encoded and
the same machine always makes the same one. Weights are not written: `--load-format dummy` draws them.
"""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 2048
CONTEXT = 8192
SPECIAL = ["<pad>", "<bos>", "<eos>", "<end>", "<system>", "<user>", "<assistant>"]
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>\n{{ message['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}")
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32", "hidden_act": "silu",
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0, "tie_word_embeddings": False,
}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def write_model(folder: Path) -> Path:
    """Write everything into a folder that is there; returns it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [str(path) for path in sorted(library.glob("[a-d]*.py"))]
    tokenizer.train(texts, trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))
    files = {
        "config.json": {**MODEL, **IDS, "vocab_size": tokenizer.get_vocab_size()},
        "generation_config.json": IDS,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "bos_token": "<bos>",
            "eos_token": "<eos>", "model_max_length": CONTEXT, "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return folder
