#!/usr/bin/env python3
"""Ids that the Python reference gives for 2,500 lines, for tokenizers too large to be checked in.

Needs transformers and sentencepiece; no network. Usage:
  make_reference_ids.py FOLDER OUTPUT
FOLDER holds one folder per tokenizer (tokenizer.json, or tokenizer.model alone). OUTPUT gets lines.json and, per
tokenizer, the ids.bin and expected.json that make_tokenizers.py describes. Then
  SLUICE_SHARED_DIR=<parent of FOLDER> SLUICE_TOKENIZER_IDS=OUTPUT tokenizer_test --gtest_filter=*Reference*
compares. transformers' AutoTokenizer is the reference for a tokenizer.json. For a tokenizer.model it is the
SentencePiece library, with the special tokens cut out as transformers 4's LlamaTokenizer does.
"""
import json
import os
import random
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import sentencepiece
from transformers import AutoTokenizer

from make_tokenizers import SPACES, Writer, make_lines, slow_sentencepiece

NUM_MORE_LINES = 500
# Characters of Unicode 15, 15.1 and 16.
NEW = ["\U0001fa75", "\U0001fa77", "\U0001fa76", "\U0001fae8", "\U0001faef", "\U0001fadc", "\U0001f6dc", "\u31ef", "\u2ffc",
       "\U0001e4d0\U0001e4d1", "\U00011f02\U00011f10", "\U00010d50\U00010d70", "\ua7cb", "\ua7da\ua7db", "\u1c89\u1c8a",
       "\U00016d40\U00016d70", "\U0001ccf0\U0001ccf9", "\U00011de0", "\u0cf3", "\u0ece", "\u0897", "\U00031350\U000323af",
       "\U0002ebf0"]
SPECIAL = ["[INST]", "[/INST]", "[TOOL_CALLS]", "[control_8]", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
           "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|padding|>",
           "<s>", "</s>", "<unk>", "<|fim▁hole|>", "          ", "  "]


def make_more_lines(lines):
    rng = random.Random(41)
    more = [part for new in NEW for part in (new, " " + new, new + " x", "a" + new + "1 " + new)]
    more += [part for token in SPECIAL for part in (token, " " + token + " x", "x" + token + "y  " + token + "\n z")]
    while len(more) < NUM_MORE_LINES:
        words = rng.choice(lines)[:60].split(" ")
        parts = [rng.choice(NEW + SPECIAL + SPACES + words * 3) for _ in range(rng.randint(2, 7))]
        more.append(rng.choice(["", " "]).join(parts))
    return more


def sentencepiece_reference(folder):
    with open(os.path.join(folder, "tokenizer.model"), "rb") as file:
        proto = file.read()
    with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as file:
        config = json.load(file)
    model = sentencepiece.SentencePieceProcessor(model_proto=proto)
    ids = range(model.get_piece_size())
    tokens = {model.id_to_piece(i): i for i in ids if model.is_control(i) or model.is_unknown(i)}
    encode = slow_sentencepiece(proto, tokens, config.get("legacy", True))
    return encode, lambda ids: model.decode([i for i in ids if i not in tokens.values()])


def auto_reference(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return (lambda line, special: tokenizer.encode(line, add_special_tokens=special),
            lambda ids: tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def main():
    folder, output = sys.argv[1:]
    lines = make_lines()
    lines += make_more_lines(lines)
    writer = Writer(output, lines)
    writer.json(".", "lines.json", lines, indent=0)
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.exists(os.path.join(path, "tokenizer.json")):
            writer.expected(name, *auto_reference(path))
        elif os.path.exists(os.path.join(path, "tokenizer.model")):
            writer.expected(name, *sentencepiece_reference(path))


if __name__ == "__main__":
    main()
