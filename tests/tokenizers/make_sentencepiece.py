#!/usr/bin/env python3
"""Makes tests/tokenizers/data/sentencepiece: small tokenizer.model files, one per option, and the library's ids.

Needs the Python packages sentencepiece and protobuf; no network. Deterministic. The tests themselves need none of this.
Usage: make_sentencepiece.py [output folder]

  lines.json            the lines, a JSON array of strings
  <kind>/               tokenizer.model, tokenizer_config.json
  <kind>/ids.bin        for each line: varint count, varint ids (without special tokens around the text)
  <kind>/expected.json  "before" and "after": ids that add_special_tokens puts around the text;
                        "decoded": {line: text} where decoding does not give the line back
"""
import io
import os
import random
import shutil
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from make_tokenizers import EMOJI, MARKS, SPACES, Writer, make_lines, slow_sentencepiece

NUM_LINES = 300

TEXT = """
The river runs past the old mill and under the stone bridge.
In the morning the baker lights the oven, and the whole street smells of bread.
Nobody knows who built the tower; nobody asks any more.
She counted the steps: one, two, three, four, and then she stopped counting.
A small boat carried the letters to the island twice a week.
When it rains, the children look for frogs behind the garden wall.
The teacher drew a circle on the board and called it the world.
We walked until the lights of the village were behind us.
There are 12 months, 52 weeks and 365 days in a year.
He said that the clock was wrong, and that it had always been wrong.
The café on the corner sells tea, cake and postcards.
Wind moved the grass, and the grass moved the shadows.
They were talking about the weather, walking along the water and waiting for the winter.
Some words are longer than others: understanding, misunderstanding, standing, outstanding.
The cat sat on the wall, the dog sat on the floor, and the bird sat on the roof.
Every reader reads another book, though the book remains the same.
Die Mühle am Bach mahlt das Korn für das Dorf.
Der Wind wandert über die Wiesen und weht durch das Gras.
"""

# A few rules like those of nmt_nfkc, whose own table has 240 kB: source and target code points.
RULES = {"\t": " ", "\n": " ", "\u00a0": " ", "\u3000": " ", "\u200b": "", "\ufeff": "", "\ufb01": "fi", "\ufb02": "fl",
         "\u00bd": "1\u20442", "e\u0301": "\u00e9", "u\u0308": "\u00fc", "\uff21": "A", "\uff41": "a", "\u2026": "...",
         "\u00b4": " \u0301", "A": "a", "T": "t", "\u212b": "\u00e5"}

SPACE_LINES = ["f", " f", "  f  ", "f ", "▁", "▁f", " ▁ f", "f▁", "f▁▁", "\tf", "\u3000f\u3000", "\u200bf", "\u200b f", " \u200b f",
               "f\u200b", "a\u200b b", "a \u200b b", "the\u00b4s", "\u00b4", " \u00b4", "\u00b4 \u00b4", "a  b", "a\t\tb", "a \n b\n",
               "\ufb01nd the \ufb02oor", "cafe\u0301 cafe", "u\u0308ber", "\u00bd\u00bd", "\u2026", "AT THE \uff21\uff41", "\u212b",
               "the" * 30, " " * 40, "x" + " " * 40 + "y", "the <s> river", " <s> ", "the<s>river</s>", "<s>▁the", "a</s>  b  </s>c",
               "<unk>", "the <unk> wall", "<mark>", "the<mark>wall", " <mark> the", "old mill", "an old mill.", "oldmill",
               "old  mill", "<0x41>", "the <0xE2><0x96>", "人人", "x人人生y", "人 人", "😀", "a😀😀b", "misunderstandings and standings",
               "\u00e9\u00e8\u00ea", "zzz", "qqq the", "the\x00wall", "ththth", "walkwalkingwalked", "s the", "the s", "é", "<ctl>",
               "a<ctl>b", "<ctl> <ctl>"]

# Name -> what the trainer gets; "unused": every so many pieces; "append": more of the ModelProto; "config": more of
# tokenizer_config.json.
NO_ESCAPE = b"\x1a\x02\x28\x00"  # normalizer_spec { escape_whitespaces: false }
MARKED = {"user_defined_symbols": "<mark>,old mill,wal,▁th", "control_symbols": "<ctl>"}
KINDS = {
    "unigram": {"model_type": "unigram"},
    "unigram_rules": {"model_type": "unigram", "rules": True},
    "unigram_rules_continued": {"model_type": "unigram", "rules": True, "config": {"legacy": False}},
    "unigram_bytes": {"model_type": "unigram", "byte_fallback": True, "remove_extra_whitespaces": False, "vocab_size": 400},
    "unigram_suffix": {"model_type": "unigram", "treat_whitespace_as_suffix": True, "rules": True},
    "unigram_marked": {"model_type": "unigram", "add_dummy_prefix": False, **MARKED},
    "unigram_unused": {"model_type": "unigram", "unused": 5},
    "unigram_unescaped": {"model_type": "unigram", "append": NO_ESCAPE},
    "bpe": {"model_type": "bpe"},
    "bpe_rules": {"model_type": "bpe", "rules": True},
    "bpe_rules_continued": {"model_type": "bpe", "rules": True, "config": {"legacy": False}, **MARKED},
    "bpe_bytes": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 460, **MARKED},
    "bpe_across_words": {"model_type": "bpe", "split_by_whitespace": False, "remove_extra_whitespaces": False},
    "bpe_suffix": {"model_type": "bpe", "treat_whitespace_as_suffix": True},
    "bpe_unused": {"model_type": "bpe", "unused": 4},
    "bpe_no_prefix": {"model_type": "bpe", "config": {"add_prefix_space": False}, "append": b"\x1a\x02\x18\x00"},
    "word": {"model_type": "word", "rules": True},
    "word_suffix": {"model_type": "word", "treat_whitespace_as_suffix": True},
    "char": {"model_type": "char", "rules": True},
    "char_marked": {"model_type": "char", "byte_fallback": True, "vocab_size": 340, **MARKED},
}


def make_small_lines():
    rng = random.Random(7)
    sentences = TEXT.strip().split("\n")
    words = " ".join(sentences).split(" ")
    lines = SPACE_LINES + sentences + MARKS
    lines += make_lines()[::29]
    while len(lines) < NUM_LINES:
        parts = [rng.choice([rng.choice(words), rng.choice(words), rng.choice(SPACES), rng.choice(SPACE_LINES),
                             rng.choice(EMOJI), rng.choice(list(RULES))]) for _ in range(rng.randint(1, 9))]
        lines.append(rng.choice([" ", "", "  "]).join(parts))
    return lines[:NUM_LINES]


def write_rules(folder):
    path = os.path.join(folder, "rules.tsv")
    with open(path, "w", encoding="utf-8") as file:
        for source, target in RULES.items():
            codes = [" ".join(f"{ord(c):X}" for c in text) for text in (source, target)]
            file.write("\t".join(codes) + "\n")
    return path


def train(kind, rules_path):
    options = {"vocab_size": 220, "hard_vocab_limit": False, **kind}
    for ours in ("rules", "unused", "append", "config"):
        options.pop(ours, None)
    normalization = ({"normalization_rule_tsv": rules_path} if "rules" in kind
                     else {"normalization_rule_name": "identity"})
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.strip().split("\n") * 3), model_writer=model, num_threads=1, minloglevel=2,
        character_coverage=0.995, **normalization, **options)
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue() + kind.get("append", b""))
    proto.trainer_spec.ClearField("input")
    proto.normalizer_spec.ClearField("normalization_rule_tsv")
    normal = [p for p in proto.pieces if p.type == p.NORMAL and len(p.piece) > 1]
    if "unused" in kind:
        for piece in normal[::kind["unused"]]:
            piece.type = piece.UNUSED
    return proto.SerializeToString(deterministic=True)


def make(writer, name, kind, rules_path):
    proto = train(kind, rules_path)
    with open(os.path.join(writer.folder(name), "tokenizer.model"), "wb") as file:
        file.write(proto)
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": True, **kind.get("config", {})}
    writer.json(name, "tokenizer_config.json", config, indent=1)
    model = sentencepiece.SentencePieceProcessor(model_proto=proto)
    tokens = {model.id_to_piece(i): i for i in range(model.get_piece_size()) if model.is_control(i) or model.is_unknown(i)}
    encode = slow_sentencepiece(proto, tokens, config["legacy"])
    writer.expected(name, encode, lambda ids: model.decode([i for i in ids if i not in tokens.values()]))


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "data", "sentencepiece")
    shutil.rmtree(root, ignore_errors=True)
    lines = make_small_lines()
    writer = Writer(root, lines)
    writer.json(".", "lines.json", lines, indent=0)
    with tempfile.TemporaryDirectory() as folder:
        rules_path = write_rules(folder)
        for name, kind in KINDS.items():
            make(writer, name, kind, rules_path)


if __name__ == "__main__":
    main()
