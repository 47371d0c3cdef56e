#!/usr/bin/env python3
"""Makes tests/tokenizers/data: 2,000 lines, small tokenizers of each kind, and what Hugging Face gives.

Needs the Python packages tokenizers, transformers and sentencepiece; no network. Deterministic. The tests
themselves need none of this. Usage: make_tokenizers.py [output folder]

  lines.json            the lines, a JSON array of strings
  unicode_classes.json  which code points Hugging Face's regular expressions put into which class
  unicode_sets.json     the same for more of them: numbers of code points and ranges, and a checksum,
                        of the code points below U+20000
  components.json       every normalizer, pre-tokenizer and decoder on its own
  classes.json          what AutoTokenizer makes of tokenizer_config.json and config.json beside a tokenizer.json
  <kind>/               a model folder's tokenizer files, and
  <kind>/ids.bin        for each line: varint count, varint ids (without special tokens around the text)
  <kind>/expected.json  "before" and "after": ids that add_special_tokens puts around the text;
                        "decoded": {line: text} where decoding does not give the line back
"""
import io
import json
import os
import random
import shutil
import sys
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, GPT2Tokenizer, LlamaTokenizer

NUM_LINES = 2000
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")

# One or two sentences a script; lines are made of their words.
SCRIPTS = {
    "latin": "All human beings are born free and equal in dignity and rights. They're endowed with reason; we'll "
             "see that it isn't enough, I'd say we've tried. Straße naïve façade İstanbul ĳsselmeer ﬁnance ﬄuent Ǆ",
    "vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
    "greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. ΑΣ ς",
    "cyrillic": "Все люди рождаются свободными и равными в своём достоинстве и правах. Ћирилица Ѣ й",
    "hebrew": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. שָׁלוֹם",
    "arabic": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. ١٢٣٤٥ ۱۲۳ ﷺ",
    "devanagari": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। १२३४ क़",
    "bengali": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে। ১২৩",
    "tamil": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர் கொ",
    "thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ๑๒๓ น้ำ",
    "georgian": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით Ა",
    "armenian": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով և",
    "hangul": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다 \u1112\u1161\u11ab\u1100\u116e\u11a8",
    "kana": "すべての人間は、生まれながらにして自由であり、ガキ゛か\u3099 ｶﾞｷﾞ ー カタカナ ㍿",
    "han": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心 𠀀𠮷 豈\uf900 ㊗ 壹百",
    "ethiopic": "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው ፩፪፫",
    "khmer": "មនុស្សទាំងអស់ កើតមកមានសេរីភាព និងសមភាព ១២៣ ក៏",
    "tibetan": "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས ༡༢ \u0f73\u0f75",
    "cherokee": "ᏂᎦᏓ ᎠᏂᏴᏫ ᏂᎨᎫᏓᎸᎾ ꭰꮿ ᏸ",
    "gothic": "𐌰𐌻𐌻𐌰𐌹 𐌼𐌰𐌽𐌽𐌰 𝟘𝟙𝟚𝟛 𝕏𝓎 𞤀𞤣",
}
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵🇫🇷", "❤️", "1️⃣", "🧑🏿‍🚀", "👨‍💻", "☺︎", "🫠", "\U0001faf7\U0001f3fb"]
MARKS = ["a\u0301\u0323", "a\u0323\u0301", "q\u0307\u0323", "e\u0302\u0301", "\u1e9b\u0323", "A\u030a", "\u212b",
         "\u0344", "\u0958", "o\u0328\u0304", "\u0061\u0315\u0300\u05ae\u0062", "\u2126", "s\u0323\u0307", "\u0f71\u0f72",
         "\u2adc", "\ufb1d", "\u0b92\u0bd7", "\u0dd9\u0dca", "x" + "\u0316\u0301" * 20]
SPACES = [" ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", "\u00a0", "\u3000", "\u2003", "\u2028", "\u2029", "\u200b",
          "\u180e", "\ufeff", "\u0085", "\u1680", "\u202f", "\u205f", "\x0b", "\x0c", "\x1c", "\x1f", "\u2060"]
CONTRACTIONS = ["it's", "IT'S", "don't", "DON'T", "we're", "WE'RE", "I've", "I'VE", "I'm", "I'M", "you'll", "YOU'LL",
                "he'd", "HE'D", "it\u2019s", "a'\u017f", "a'S b'sS", "'tis", "''s", " 'll", "x'\u017ft", "'\u212a",
                "y'all'd've", "o'LLy", "'Re'vE"]
CODE = [
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n",
    "def f(x):\n    return x**2  # square\n\n\n",
    "SELECT * FROM t WHERE a='b' AND c>=10;--x",
    "#include <vector>\r\n#define X(a) ((a)+1)\r\n",
    "{\"key\": [1, 2.5e-10, null], \"k\\u00e9y\": true}",
    "<div class=\"a\">&nbsp;</div><!-- c -->",
    "$ ls -la | grep '^d' > /tmp/out 2>&1",
    "lambda x: (x, *y, {**z})  \n   \n        pass",
    "0x1F 1_000_000 3.14159 1e10 0b1010 127.0.0.1 v1.2.3",
    "https://example.org/path?q=a%20b&c=d#frag mail@example.org",
    "a=b==c!=d<=e>=f&&g||!h??i?.j::k->l=>m...n",
]
NUMBERS = ["1", "12", "123", "1234", "1234567890", "3.141592653589793", "00000000000", "1,234,567", "2024-01-31", "½", "²³", "Ⅷ",
           "٣٤٥٦", "१२३४५", "𝟏𝟐𝟑𝟒", "10%", "-42", "1st2nd", "x1y22z333"]
SPECIAL = ["<|endoftext|>", "<s>", "</s>", "<unk>", "<pad>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>",
           "<|start_header_id|>", "<|im_start|>", "<|im_end|>", "<mask>", "<tool>", "\u00c5ngstr\u00f6m<|", "<|", "</", "<|im_",
           "<longer><longer token>", "solo"]
CONTROL = ["\x00", "\x01\x02", "\x07", "\x1b[31mred\x1b[0m", "\x7f", "\u0080", "\u009f", "a\x00b\x00\x00", "\ufffd", "\ufffe",
           "\U0010ffff", "\ue000", "\u200e\u200f\u202a", "\u00ad", "\u2581", "\u2581\u2581x"]


def make_lines():
    rng = random.Random(20240229)
    words = {name: text.split(" ") for name, text in SCRIPTS.items()}
    lines = ["", " ", "  ", "\n", "\x00", "a", " a", "  a", "a ", "a  ", "Hello world", " Hello  world ", "\u2581", "\u2581a"]
    lines += list(SCRIPTS.values()) + EMOJI + MARKS + SPACES + CONTRACTIONS + CODE + NUMBERS + CONTROL
    lines += [" " * n for n in (3, 4, 5, 7, 8, 16, 31, 100, 1000)] + ["\t" * 50, "\n" * 40, " \n" * 30, "x" * 600, "é" * 200]
    lines += [" " * n + "x" for n in (1, 2, 3, 9, 64)] + ["x" + " " * n + "\n y" for n in (1, 2, 3, 17)]
    lines += ["a" + s + "b" for s in SPACES] + ["a " + s + " b" + s for s in SPACES] + [s + s + "c" for s in SPACES]
    for token in SPECIAL:
        lines += [token, " " + token, token + " ", "a" + token + "b", "a " + token + " b", "a  \n" + token + "\n  b",
                  token + token, token + " x" + token, token + "'s 12", "\u3000" + token + "\u00a0z"]

    def sentence():
        pool = words[rng.choice(sorted(words))]
        start = rng.randrange(len(pool))
        return " ".join(pool[(start + i) % len(pool)] for i in range(rng.randint(1, 6)))

    def atom():
        kind = rng.randrange(12)
        if kind < 5:
            return sentence()
        return rng.choice([EMOJI, MARKS, SPACES, CONTRACTIONS, CODE, NUMBERS, CONTROL][kind - 5])

    while len(lines) < NUM_LINES:
        kind = rng.randrange(10)
        if kind < 3:
            line = sentence() + rng.choice([".", "!", "?", "...", "", " ", "\n", "।", "。"])
        elif kind < 7:
            line = rng.choice(["", " ", "\n"]).join(atom() for _ in range(rng.randint(2, 4)))
        elif kind < 8:
            line = "".join(rng.choice(SPACES) * rng.randint(1, 4) + rng.choice(["", "x", "9", "é", "-"]) for _ in range(6))
        elif kind < 9:
            line = atom() + rng.choice(["", " ", "  "]) + rng.choice(SPECIAL) + rng.choice(["", " ", "\n"]) + atom()
        else:
            line = "".join(chr(rng.choice([rng.randrange(0x20, 0x250), rng.randrange(0x250, 0xd800),
                                           rng.randrange(0xe000, 0x10000), rng.randrange(0x10000, 0x20000)]))
                           for _ in range(rng.randint(1, 10)))
        lines.append(line)
    assert len(lines) == NUM_LINES and all(line.encode("utf-8") is not None for line in lines)
    return lines


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Writer:
    def __init__(self, root, lines):
        self.root = root
        self.lines = lines

    def folder(self, kind):
        path = os.path.join(self.root, kind)
        os.makedirs(path, exist_ok=True)
        return path

    def text(self, kind, name, content):
        with open(os.path.join(self.folder(kind), name), "w", encoding="utf-8", newline="\n") as file:
            file.write(content)

    def json(self, kind, name, value, indent=None):
        self.text(kind, name, json.dumps(value, ensure_ascii=False, indent=indent) + "\n")

    def tokenizer(self, kind, value):
        """tokenizer.json, one item a line where it is long, so that changes can be read."""
        self.json(kind, "tokenizer.json", value, indent=0)

    def expected(self, kind, encode, decode):
        """`encode(line, add_special)` and `decode(ids)` are Hugging Face's."""
        ids = bytearray()
        before, after = split_around(encode("", True))
        decoded = {}
        for index, line in enumerate(self.lines):
            plain = encode(line, False)
            assert encode(line, True) == before + plain + after, (kind, line)
            ids += varint(len(plain)) + b"".join(varint(i) for i in plain)
            text = decode(before + plain + after)
            if text != line:
                decoded[str(index)] = text
        with open(os.path.join(self.folder(kind), "ids.bin"), "wb") as file:
            file.write(bytes(ids))
        self.json(kind, "expected.json", {"before": before, "after": after, "decoded": decoded})
        print(f"{kind}: {len(ids)} bytes of ids, {len(decoded)} lines decode to something else")


def split_around(ids):
    """What is put around an empty text; our templates end with at most one token after it."""
    if len(ids) == 2:
        return ids[:1], ids[1:]
    return ids, []


def expect_file(writer, kind):
    tokenizer = Tokenizer.from_file(os.path.join(writer.folder(kind), "tokenizer.json"))
    writer.expected(kind, lambda line, special: tokenizer.encode(line, add_special_tokens=special).ids,
                    lambda ids: tokenizer.decode(ids, skip_special_tokens=True))
    return tokenizer


def train_byte_level(lines, size, pre_tokenizer, normalizer=None, specials=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  special_tokens=list(specials), show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def special(content, **flags):
    return AddedToken(content, special=True, normalized=False, **flags)


def make_gpt2(writer):
    tokenizer = train_byte_level(writer.lines, 1200, pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=True)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    value = json.loads(tokenizer.to_str())
    value["model"]["merges"] = [" ".join(merge) for merge in value["model"]["merges"]]
    value["model"]["continuing_subword_prefix"] = value["model"]["end_of_word_suffix"] = ""
    writer.tokenizer("gpt2", value)
    expect_file(writer, "gpt2")


def make_roberta(writer):
    """The prefix space, RobertaProcessing and the flags of added tokens."""
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = train_byte_level(writer.lines, 700, pre_tokenizers.ByteLevel(add_prefix_space=True), specials=specials)
    tokenizer.add_special_tokens([special("<mask>", lstrip=True)])
    tokenizer.add_tokens([AddedToken("<tool>", rstrip=True, normalized=True), AddedToken("solo", single_word=True),
                          AddedToken("<longer>"), AddedToken("<longer token>"), AddedToken("<|im_start|>", lstrip=True, rstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    writer.tokenizer("roberta", json.loads(tokenizer.to_str()))
    expect_file(writer, "roberta")


def make_opt(writer):
    """As OPT is published: vocab.json and merges.txt, no tokenizer.json."""
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trained = train_byte_level(writer.lines, 1200, pre_tokenizers.ByteLevel(add_prefix_space=False), specials=specials)
    model = json.loads(trained.to_str())["model"]
    token = lambda content: {"content": content, "single_word": False, "lstrip": False, "rstrip": False,
                             "normalized": True, "__type": "AddedToken"}
    writer.json("opt", "vocab.json", model["vocab"])
    writer.text("opt", "merges.txt", "#version: 0.2\n" + "".join(" ".join(merge) + "\n" for merge in model["merges"]))
    writer.json("opt", "config.json", {"model_type": "opt"})
    writer.json("opt", "tokenizer_config.json", {
        "errors": "replace", "unk_token": token("</s>"), "bos_token": token("</s>"), "eos_token": token("</s>"),
        "pad_token": token("<pad>"), "add_prefix_space": False, "add_bos_token": True,
        "tokenizer_class": "GPT2Tokenizer"}, indent=1)
    flags = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    writer.json("opt", "special_tokens_map.json", {
        "bos_token": {"content": "</s>", **flags}, "eos_token": {"content": "</s>", **flags},
        "unk_token": {"content": "</s>", **flags}, "pad_token": {"content": "<pad>", **flags}}, indent=1)
    tokenizer = GPT2Tokenizer.from_pretrained(writer.folder("opt"))
    writer.expected("opt", lambda line, add: tokenizer.encode(line, add_special_tokens=add),
                    lambda ids: tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=True))


def make_llama3(writer):
    pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated", invert=False),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer = train_byte_level(writer.lines, 1400, pre)
    value = json.loads(tokenizer.to_str())
    value["model"]["ignore_merges"] = True
    del value["model"]["merges"][-60:]  # whole words that only ignore_merges finds
    tokenizer = Tokenizer.from_str(json.dumps(value))
    tokenizer.add_special_tokens([special(content) for content in
                                  ("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
                                   "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                                      special_tokens=[("<|begin_of_text|>", begin)])])
    writer.tokenizer("llama3", json.loads(tokenizer.to_str()))
    expect_file(writer, "llama3")


def make_qwen2(writer):
    pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), behavior="isolated", invert=False),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer = train_byte_level(writer.lines, 1200, pre, normalizer=normalizers.NFC())
    tokenizer.add_special_tokens([special(content) for content in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    writer.tokenizer("qwen2", json.loads(tokenizer.to_str()))
    expect_file(writer, "qwen2")


def train_sentencepiece(lines):
    """As Llama-2's: BPE, bytes for what is unknown, the text left as it is."""
    proto = io.BytesIO()
    sentences = [part for line in lines for part in line.replace("\x00", "").split("\n") if part]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=proto, vocab_size=1300, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True,
        allow_whitespace_only_pieces=True, split_digits=True, character_coverage=0.98, unk_id=0, bos_id=1, eos_id=2,
        pad_id=-1, num_threads=1, minloglevel=2)
    return proto.getvalue()


def slow_sentencepiece(proto, tokens, legacy):
    """transformers 4's LlamaTokenizer: sentencepiece between the special `tokens` (text to id), the longest first.

    Legacy: each text between them is encoded on its own. Else: only a text at the very start is; what follows a token
    gets no dummy prefix and keeps a space in front, for which the unknown token's text is put before it."""
    model = sentencepiece.SentencePieceProcessor(model_proto=proto)
    no_prefix = b"\x1a\x02\x18\x00"  # normalizer_spec { add_dummy_prefix: false }
    continued = sentencepiece.SentencePieceProcessor(model_proto=proto + no_prefix)
    by_length = sorted(tokens, key=len, reverse=True)

    def encode_part(text, is_first):
        if legacy or is_first:
            return model.encode(text)
        if not text.startswith((" ", "\u2581")):
            return continued.encode(text)
        return continued.encode("<unk>" + text)[len(continued.encode("<unk>")):]

    def encode(line, add_special):
        ids = [tokens["<s>"]] if add_special else []
        rest = line
        while rest:
            found = min(((rest.find(t), -len(t), t) for t in by_length if t in rest), default=(len(rest), 0, ""))
            text = rest[:found[0]]
            if text:
                ids += encode_part(text, len(rest) == len(line))
            if found[2]:
                ids.append(tokens[found[2]])
            rest = rest[found[0] + len(found[2]):]
        return ids

    return encode


LLAMA_TOKENS = {"<unk>": 0, "<s>": 1, "</s>": 2}


def make_llama2(writer):
    proto = train_sentencepiece(writer.lines)
    config = {"add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
              "tokenizer_class": "LlamaTokenizer"}
    for kind, legacy in (("llama2_model", True), ("llama2_model_new", False)):
        with open(os.path.join(writer.folder(kind), "tokenizer.model"), "wb") as file:
            file.write(proto)
        writer.json(kind, "tokenizer_config.json", {**config, "legacy": legacy}, indent=1)

    # transformers 5 converts the model with a Metaspace pre-tokenizer: this is Mistral's newer kind of file.
    fast = LlamaTokenizer.from_pretrained(writer.folder("llama2_model_new"))
    newer = json.loads(fast.backend_tokenizer.to_str())
    assert newer["pre_tokenizer"] == {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    newer["model"]["unk_token"] = "<unk>"
    writer.tokenizer("mistral", newer)
    mistral = expect_file(writer, "mistral")

    # Llama-2's published file says the same with normalizers.
    older = json.loads(json.dumps(newer))
    older["pre_tokenizer"] = None
    older["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    older["model"]["merges"] = [" ".join(merge) for merge in older["model"]["merges"]]
    writer.tokenizer("llama2", older)
    llama2 = expect_file(writer, "llama2")

    # The .model: SentencePiece itself, and Hugging Face's conversions of it, must agree.
    decode = lambda ids: llama2.decode(ids, skip_special_tokens=True)
    legacy, new = (slow_sentencepiece(proto, LLAMA_TOKENS, legacy) for legacy in (True, False))
    for line in writer.lines:
        assert legacy(line, True) == llama2.encode(line).ids, line
        if not line.startswith((" ", "▁")):
            assert new(line, True) == mistral.encode(line).ids, line
    writer.expected("llama2_model", legacy, decode)
    writer.expected("llama2_model_new", new, decode)


def ranges(points):
    out = []
    for point in sorted(points):
        if out and out[-1][1] == point - 1:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def make_unicode_classes(writer):
    """Which characters match, for every class that the pre-tokenizers' expressions use."""
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    classes = {}
    for expression in (r"\s", r"\p{L}", r"\p{N}", r"(?i:s)", r"(?i:t)", r"(?i:k)", r"[^\s\p{L}\p{N}]", r"[^\r\n\p{L}\p{N}]"):
        split = pre_tokenizers.Split(Regex(expression), "removed")
        classes[expression] = ranges(ord(c) for c in characters if not split.pre_tokenize_str(c))
    writer.json(".", "unicode_classes.json", classes)


PROPERTY_EXPRESSIONS = [rf"\p{{{name}}}" for name in (
    "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn L M N P S Z C LC "
    "Uppercase_Letter Punctuation Alphabetic Uppercase Lowercase Emoji Emoji_Presentation Extended_Pictographic "
    "Ideographic Han Hani Latin Greek Cyrillic Arabic Hiragana Katakana Hangul Thai Devanagari Common Inherited Kawi "
    "Todhri Punct XDigit Blank Graph Print Alnum Word Any ASCII Assigned ^L").split()]
CLASS_EXPRESSIONS = [
    r"\w", r"\W", r"\d", r"\D", r"\h", r"\S", r"[\S]", r"[\W\d]", r"[\w]", r"[^\W]", r"[[:word:]]",
    r"[\p{Word}]", r"[\p{Punct}]", r"[\p{Graph}]", r"[\p{Print}]", r"[\p{Alnum}]", r"[[:punct:]]", r"[[:alpha:]]", r"[[:^alpha:]]",
    r"[[:graph:]]", r"[[:print:]]", r"[[:blank:]]", r"[^\s\p{L}\p{N}]", r"[\p{L}&&[^a-z]]", r"[^\p{L}&&\p{Lu}]",
    r"[[a-c]x-z]", r"\P{Emoji}", r".", r"(?m:.)", r"(?i:k)", r"(?i:[a-k])", r"(?i:\u017F)", r"(?i:\p{Lu})",
    r"(?i:[^\p{Lu}])", r"(?i:[[:upper:]])", r"(?i:\w)", r"[!-\/:-@\[-`{-~]", r"[\u4e00-\u9fa5\u3040-\u30ff]"]
# Characters that came with Unicode 15 to 16, and what older tables and engines have otherwise.
NEW_CHARACTERS = [" \U0001fa75", "\U0001fae8 \U0001f6dc", "\U00011f04\U00011f02", "\U00010d50\U00010d70", "\u1c89\u1c8a",
                  "\ua7da\ua7db", "\U0001ccf3\U0001ccd0", "\U0001e5f1", "\u0897", "\U00016d40\U00016d70 x", "\u2427\u2429",
                  "\u31e4\u31ef", "x\u00b2\u00bd", "\U0001fbf5", "\U00011bc0\U00011bf0"]
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
          r"|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}|\s+"
RIGHT_TO_LEFT_DIGITS = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
EXPRESSIONS = [LLAMA3, CL100K, O200K, DEEPSEEK, KIMI, RIGHT_TO_LEFT_DIGITS, r"\b", r"\B\w", r"^.", r".$", r"\s+$", r"a(?i)b|c",
               r"(?<word>\w)(?!\w)", r"(?<=\d)\D", r"(?<![a-z])[a-z]{2,3}", r"x{,2}y|{z", r"\w+?\b", r"(?>a+)b?", r"\Aa|\z",
               r"[a-c-e]", r"[\]a]", r"\x41|\x{e9}|\u00df|\0", r"(?#note)a", r"[\b\t]"]
COMPONENT_TEXTS = ["", " ", "a", "Hello, World! ", "  two  spaces\t\nline\r\n ", "It's 123,456.5 (x_y) A1b22C333", "a--b__c..d  e",
                   "ÉCOLE École e\u0301cole İI ΑΣ ς Ǆ ẞ", "人人abc中文。日本", "a\u0000b\u0007c\u200bd\ufeffe\ufffdf\u00adg\u0085h",
                   "v\u00b2 \u00bd \u2160 \u216b x\u0660\u0661", "\u0344\u0f73 \u1100\u1161\u11a8 \u2581x\u2581 y", "don't  STOP... $5+3=8 <b> `x` ^~|",
                   "aab\nab\n", "\u02b9\u0903 \u20dd \U0001f44d\U0001f3fd", *NEW_CHARACTERS]


def summary(points):
    """Small enough to keep: how many code points and ranges, and a checksum (FNV-1a) of the ranges."""
    pairs = ranges(points)
    checksum = 0xCBF29CE484222325
    for byte in ",".join(f"{low}-{high}" for low, high in pairs).encode():
        checksum = (checksum ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return [sum(high - low + 1 for low, high in pairs), len(pairs), f"{checksum:016x}"]


def make_unicode_sets(writer):
    characters = [chr(c) for c in range(0x20000) if not 0xD800 <= c < 0xE000]  # above lie ideographs
    text = "".join(characters)
    sets = {}
    for expression in PROPERTY_EXPRESSIONS + CLASS_EXPRESSIONS:
        left = pre_tokenizers.Split(Regex(f"(?:{expression})+"), "removed").pre_tokenize_str(text)
        points, done = set(), 0
        for begin, end in [span for _, span in left] + [(len(text), len(text))]:
            points.update(map(ord, text[done:begin]))
            done = end
        sets[expression] = summary(points)
    writer.json(".", "unicode_sets.json", sets, indent=0)


def to_config(component):
    """What a tokenizer.json has for it."""
    return json.loads(component.__getstate__())


def make_components(writer):
    """Every normalizer, pre-tokenizer and decoder on its own."""
    norms = [normalizers.Lowercase(), normalizers.Strip(), normalizers.Strip(left=False), normalizers.StripAccents(),
             normalizers.ByteLevel(), normalizers.Replace("a", "<a>"), normalizers.Replace(Regex(r"\s+"), "_"),
             normalizers.Prepend("_"), normalizers.BertNormalizer(), normalizers.BertNormalizer(True, True, False, False),
             normalizers.BertNormalizer(False, False, True, False), normalizers.Nmt(), normalizers.NFC(), normalizers.NFD(),
             normalizers.NFKC(), normalizers.NFKD(),
             normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])]
    pres = [pre_tokenizers.Punctuation(behavior) for behavior in
            ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")]
    pres += [pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit(), pre_tokenizers.BertPreTokenizer(),
             pre_tokenizers.CharDelimiterSplit("a"), pre_tokenizers.FixedLength(3), pre_tokenizers.Digits(True),
             pre_tokenizers.Digits(False), pre_tokenizers.ByteLevel(False), pre_tokenizers.ByteLevel(True),
             pre_tokenizers.Metaspace("\u2581", "always", True), pre_tokenizers.Metaspace("\u2581", "never", False),
             pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(False, use_regex=False)]),
             pre_tokenizers.Sequence([pre_tokenizers.Punctuation("isolated"), pre_tokenizers.Digits(True),
                                      pre_tokenizers.ByteLevel(False)])]
    pres += [pre_tokenizers.Split(Regex(e), "isolated") for e in EXPRESSIONS]
    pres += [pre_tokenizers.Split("a", "merged_with_next", True)]
    tokens = [["\u2581a", "b\u2581c", "<0xC3>", "<0xA9>", "  d "], ["\u2581", "x"], ["Ġa", "Ã©"], ["xx", "axx"]]
    decs = [decoders.ByteLevel(), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 1), decoders.Strip("x", 1, 0),
            decoders.Replace("\u2581", " "), decoders.Replace(Regex("[ab]+"), "_"), decoders.Metaspace(),
            decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])]
    writer.json(".", "components.json", {
        "texts": COMPONENT_TEXTS,
        "normalizers": [[to_config(n), [n.normalize_str(t) for t in COMPONENT_TEXTS]] for n in norms],
        "pre_tokenizers": [[to_config(p), [[piece for piece, _ in p.pre_tokenize_str(t)] for t in COMPONENT_TEXTS]] for p in pres],
        "tokens": tokens,
        "decoders": [[to_config(d), [d.decode(t) for t in tokens]] for d in decs]}, indent=0)


CLASS_TEXTS = ["", "a", " two", "  Hello  world", "<s> a", "a<s> b", "x <mask> y", "The <tool>  it's", "caf\u00e9 cafe\u0301 123", "\u2581x",
               "<|endoftext|>a", "a\n\n  b", " \U0001fa75", "solo soloist", "<|im_start|>user\n <|im_end|> x", "a <|endoftext|> b", "a <|im_start|> b"]


def class_cases():
    """(folder whose tokenizer.json is taken, tokenizer_config.json, config.json)"""
    flags = lambda **more: {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": False, **more}
    for name in ("PreTrainedTokenizerFast", "LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer"):
        for more in ({}, {"legacy": True}, {"legacy": False}, {"add_prefix_space": False}, {"add_bos_token": False},
                     {"add_bos_token": True, "add_eos_token": True}):
            yield "llama2", {"tokenizer_class": name, **more}, {"model_type": "llama"}
    yield "llama2", {"tokenizer_class": "LlamaTokenizer"}, {"model_type": "mistral"}
    yield "llama2", {}, {"model_type": "llama"}
    for base in ("gpt2", "roberta"):
        # Transformers gives a special token without an id a new one, past the weights' rows; we do not.
        known = {} if base == "gpt2" else {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
        for name in ("GPT2Tokenizer", "GPT2TokenizerFast", "PreTrainedTokenizerFast", "GPTNeoXTokenizer"):
            for more in ({}, {"add_prefix_space": True}, {"add_prefix_space": False, "add_bos_token": True}):
                yield base, {"tokenizer_class": name, **known, **more}, {"model_type": "llama"}
        yield base, {"tokenizer_class": "GPT2Tokenizer", **known, "add_prefix_space": True}, {"model_type": "opt"}
    for name in ("Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast"):
        for more in ({}, {"add_prefix_space": True}, {"add_bos_token": False, "bos_token": None}):
            for model_type in ("qwen2", "llama"):
                yield "qwen2", {"tokenizer_class": name, **more}, {"model_type": model_type}
    yield "llama3", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}, {"model_type": "llama"}
    yield "llama3", {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False}, {"model_type": "llama"}
    # The flags of tokenizer_config.json's tokens count, not tokenizer.json's.
    for more in ({"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True}, {"special": True}):
        yield ("gpt2", {"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"1199": {"content": "<|endoftext|>", **flags(**more)}}},
               {"model_type": "llama"})
        yield ("roberta", {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {
            "0": {"content": "<s>", **flags(**more)}, "700": {"content": "<mask>", **flags(**more)},
            "701": {"content": "<tool>", **flags(**more)}}}, {"model_type": "llama"})
        yield ("qwen2", {"tokenizer_class": "Qwen2Tokenizer", "additional_special_tokens": ["<tool>"], "added_tokens_decoder": {
            "1200": {"content": "<|endoftext|>", **flags(**more)}, "1201": {"content": "<|im_start|>", **flags(**more)},
            "1202": {"content": "<|im_end|>", **flags()}}, "pad_token": "<|im_start|>"}, {"model_type": "qwen2"})


def make_classes(writer):
    """What AutoTokenizer makes of a folder, by class and options."""
    cases = []
    for base, tokenizer_config, config in class_cases():
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(os.path.join(writer.folder(base), "tokenizer.json"), folder)
            for name, value in (("tokenizer_config.json", tokenizer_config), ("config.json", config)):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    json.dump(value, file)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            cases.append({"base": base, "tokenizer_config": tokenizer_config, "config": config,
                          "ids": [tokenizer.encode(text) for text in CLASS_TEXTS]})
    writer.json(".", "classes.json", {"texts": CLASS_TEXTS, "cases": cases})


def make_qwen2_vocab(writer):
    """As Qwen2 is published without tokenizer.json: vocab.json and merges.txt."""
    with open(os.path.join(writer.folder("qwen2"), "tokenizer.json"), encoding="utf-8") as file:
        model = json.load(file)["model"]
    writer.json("qwen2_vocab", "vocab.json", model["vocab"])
    writer.text("qwen2_vocab", "merges.txt", "#version: 0.2\n" + "".join(" ".join(merge) + "\n" for merge in model["merges"]))
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    size = len(model["vocab"])
    writer.json("qwen2_vocab", "tokenizer_config.json", {
        "add_prefix_space": False, "added_tokens_decoder": {str(size + i): {"content": n, **flags} for i, n in enumerate(names)},
        "additional_special_tokens": list(names[1:]), "bos_token": None, "eos_token": names[2], "pad_token": names[0],
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}, indent=1)
    tokenizer = AutoTokenizer.from_pretrained(writer.folder("qwen2_vocab"))
    writer.expected("qwen2_vocab", lambda line, add: tokenizer.encode(line, add_special_tokens=add),
                    lambda ids: tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=True))


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
    shutil.rmtree(root, ignore_errors=True)
    writer = Writer(root, make_lines())
    writer.json(".", "lines.json", writer.lines, indent=0)
    for make in (make_gpt2, make_roberta, make_opt, make_llama3, make_qwen2, make_llama2, make_qwen2_vocab, make_unicode_classes,
                 make_unicode_sets, make_components, make_classes):
        make(writer)


if __name__ == "__main__":
    main()
