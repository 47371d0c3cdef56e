#!/usr/bin/env python3
"""Makes unicode_tables.inc: what each Unicode property holds to Hugging Face's `tokenizers`.

Every table is asked of the library itself, so that ours agrees with the Unicode versions of the engines inside it:
Oniguruma's for regular expressions, Rust's standard library's for lower case, and older crates' for punctuation and
marks. Needs the Python package tokenizers; no network. Usage: make_unicode_tables.py [output file]
"""
import os
import sys

from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
PROPERTIES = """Alphabetic Uppercase Lowercase Ideographic Emoji Emoji_Presentation Emoji_Modifier Emoji_Modifier_Base
    Emoji_Component Extended_Pictographic Regional_Indicator Variation_Selector Join_Control""".split()
# Unicode's scripts, long name and the code of four letters.
SCRIPTS = """Adlam Adlm;Caucasian_Albanian Aghb;Ahom Ahom;Arabic Arab;Imperial_Aramaic Armi;Armenian Armn;Avestan Avst;
    Balinese Bali;Bamum Bamu;Bassa_Vah Bass;Batak Batk;Bengali Beng;Bhaiksuki Bhks;Bopomofo Bopo;Brahmi Brah;Braille Brai;
    Buginese Bugi;Buhid Buhd;Chakma Cakm;Canadian_Aboriginal Cans;Carian Cari;Cham Cham;Cherokee Cher;Chorasmian Chrs;
    Coptic Copt;Cypro_Minoan Cpmn;Cypriot Cprt;Cyrillic Cyrl;Devanagari Deva;Dives_Akuru Diak;Dogra Dogr;Deseret Dsrt;
    Duployan Dupl;Egyptian_Hieroglyphs Egyp;Elbasan Elba;Elymaic Elym;Ethiopic Ethi;Garay Gara;Georgian Geor;
    Glagolitic Glag;Gunjala_Gondi Gong;Masaram_Gondi Gonm;Gothic Goth;Grantha Gran;Greek Grek;Gujarati Gujr;
    Gurung_Khema Gukh;Gurmukhi Guru;Hangul Hang;Han Hani;Hanunoo Hano;Hatran Hatr;Hebrew Hebr;Hiragana Hira;
    Anatolian_Hieroglyphs Hluw;Pahawh_Hmong Hmng;Nyiakeng_Puachue_Hmong Hmnp;Old_Hungarian Hung;Old_Italic Ital;
    Javanese Java;Kayah_Li Kali;Katakana Kana;Kawi Kawi;Kharoshthi Khar;Khmer Khmr;Khojki Khoj;Khitan_Small_Script Kits;
    Kannada Knda;Kirat_Rai Krai;Kaithi Kthi;Tai_Tham Lana;Lao Laoo;Latin Latn;Lepcha Lepc;Limbu Limb;Linear_A Lina;
    Linear_B Linb;Lisu Lisu;Lycian Lyci;Lydian Lydi;Mahajani Mahj;Makasar Maka;Mandaic Mand;Manichaean Mani;Marchen Marc;
    Medefaidrin Medf;Mende_Kikakui Mend;Meroitic_Cursive Merc;Meroitic_Hieroglyphs Mero;Malayalam Mlym;Modi Modi;
    Mongolian Mong;Mro Mroo;Meetei_Mayek Mtei;Multani Mult;Myanmar Mymr;Nag_Mundari Nagm;Nandinagari Nand;
    Old_North_Arabian Narb;Nabataean Nbat;Newa Newa;Nko Nkoo;Nushu Nshu;Ogham Ogam;Ol_Chiki Olck;Ol_Onal Onao;
    Old_Turkic Orkh;Oriya Orya;Osage Osge;Osmanya Osma;Old_Uyghur Ougr;Palmyrene Palm;Pau_Cin_Hau Pauc;Old_Permic Perm;
    Phags_Pa Phag;Inscriptional_Pahlavi Phli;Psalter_Pahlavi Phlp;Phoenician Phnx;Miao Plrd;Inscriptional_Parthian Prti;
    Rejang Rjng;Hanifi_Rohingya Rohg;Runic Runr;Samaritan Samr;Old_South_Arabian Sarb;Saurashtra Saur;SignWriting Sgnw;
    Shavian Shaw;Sharada Shrd;Siddham Sidd;Khudawadi Sind;Sinhala Sinh;Sogdian Sogd;Old_Sogdian Sogo;Sora_Sompeng Sora;
    Soyombo Soyo;Sundanese Sund;Sunuwar Sunu;Syloti_Nagri Sylo;Syriac Syrc;Tagbanwa Tagb;Takri Takr;Tai_Le Tale;
    New_Tai_Lue Talu;Tamil Taml;Tangut Tang;Tai_Viet Tavt;Telugu Telu;Tifinagh Tfng;Tagalog Tglg;Thaana Thaa;Thai Thai;
    Tibetan Tibt;Tirhuta Tirh;Tangsa Tnsa;Todhri Todr;Toto Toto;Tulu_Tigalari Tutg;Ugaritic Ugar;Vai Vaii;Vithkuqi Vith;
    Warang_Citi Wara;Wancho Wcho;Old_Persian Xpeo;Cuneiform Xsux;Yezidi Yezi;Yi Yiii;Zanabazar_Square Zanb;Inherited Zinh;
    Common Zyyy"""

CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ALL = "".join(CHARACTERS)


def code_point(index):
    return index if index < 0xD800 else index + 0x800


def ranges(points):
    out = []
    for point in sorted(points):
        if out and out[-1][1] == point - 1:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def cut(pre_tokenizer, text=ALL):
    """Where the pieces of a text begin and end, in characters."""
    return [span for _, span in pre_tokenizer.pre_tokenize_str(text)]


def members(expression):
    """Code points that a regular expression for one character matches."""
    out, done = set(), 0
    for begin, end in cut(pre_tokenizers.Split(Regex(f"(?:{expression})+"), "removed")) + [(len(ALL), len(ALL))]:
        out.update(code_point(i) for i in range(done, begin))
        done = end
    return out


def changed(normalizer):
    """{code point: what it becomes}, the unchanged ones left out. Each character stands between two digits."""
    out = {}
    for first in range(0, len(CHARACTERS), 4096):
        block = [c.replace("1", "0") for c in CHARACTERS[first:first + 4096]]
        results = normalizer.normalize_str("1" + "11".join(block) + "1")[1:-1].split("11")
        assert len(results) == len(block), first
        for before, after in zip(block, results):
            if before != after:
                out[ord(before)] = after
    return out


def rust_words():
    """What Rust's regex crate calls a word character: it joins the letter before it."""
    out = set()
    for first in range(0, len(CHARACTERS), 4096):
        block = CHARACTERS[first:first + 4096]
        for begin, end in cut(pre_tokenizers.Whitespace(), "".join("a" + c + "\n" for c in block)):
            if end - begin == 2 and begin % 3 == 0:
                out.add(ord(block[begin // 3]))
    return out


def punctuation():
    out = set()
    for first in range(0, len(CHARACTERS), 4096):
        block = CHARACTERS[first:first + 4096]
        whole = {begin for begin, end in cut(pre_tokenizers.Punctuation("contiguous"), "".join("a" + c + "a\n" for c in block))}
        out.update(ord(c) for i, c in enumerate(block) if 4 * i + 1 in whole)
    return out


def case_orbits():
    """Sets of characters that an expression without regard to case takes for each other, and the sequences of several
    characters that it takes for one."""
    cased = sorted(set(changed(normalizers.Lowercase())) | members(r"\p{Uppercase}|\p{Lowercase}|\p{Lt}|\p{Cased}"))
    text = "\n".join(chr(c) for c in cased)
    orbits, seen = [], set()
    for c in cased:
        if c in seen:
            continue
        found = pre_tokenizers.Split(Regex(r"(?i:\x{%x})" % c), "isolated").pre_tokenize_str(text)
        orbit = sorted({ord(piece) for piece, _ in found if len(piece) == 1 and piece != "\n"} | {c})
        seen.update(orbit)
        if len(orbit) > 1:
            orbits.append(orbit)
    known = {c: orbit[0] for orbit in orbits for c in orbit}
    sequences = {}
    for c in cased:
        for folded in {chr(c).casefold(), chr(c).lower()}:
            if len(folded) > 1 and normalizers.Replace(Regex(r"(?i:\x{%x})" % c), "").normalize_str(folded) == "":
                sequences[c] = [known.get(ord(f), ord(f)) for f in folded]
    return orbits, sequences


class Output:
    def __init__(self):
        self.parts = ["// Made by make_unicode_tables.py; do not edit.\n"]

    def numbers(self, declaration, numbers):
        lines, line = [], "   "
        for number in numbers:
            item = f" {number:#x},"
            if len(line) + len(item) > 100:
                lines.append(line)
                line = "   "
            line += item
        lines.append(line)
        self.parts.append(f"constexpr std::uint32_t {declaration}[] = {{\n" + "\n".join(lines) + "};\n")

    def partition(self, name, sets):
        """first code point << 8 | index of the set; the index after the last means none of them."""
        of = {}
        for index, points in enumerate(sets):
            assert not of.keys() & points
            of.update(dict.fromkeys(points, index))
        starts, previous = [], None
        for c in range(0x110000):
            if 0xD800 <= c < 0xE000:
                continue
            index = of.get(c, len(sets))
            if index != previous:
                starts.append(c << 8 | index)
            previous = index
        self.numbers(name, starts)

    def ranges(self, name, points):
        self.numbers(name, [edge for low, high in ranges(points) for edge in (low, high)])

    def names(self, name, names):
        lines, line = [], "   "
        for item in (f' "{n}",' for n in names):
            if len(line) + len(item) > 100:
                lines.append(line)
                line = "   "
            line += item
        lines.append(line)
        self.parts.append(f"constexpr std::string_view {name}[] = {{\n" + "\n".join(lines) + "};\n")


def lower_case_runs(mapping):
    """first, last, step, distance for characters that become one; the others as they are."""
    single = sorted((c, ord(to)) for c, to in mapping.items() if len(to) == 1)
    runs = []
    for c, to in single:
        run = runs[-1] if runs else None
        if run and to - c == run[3] and c - run[1] in (1, 2) and run[2] in (0, c - run[1]):
            run[1], run[2] = c, c - run[1]
        else:
            runs.append([c, c, 0, to - c])
    return [value & 0xFFFFFFFF for run in runs for value in (run[0], run[1], max(run[2], 1), run[3])]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "unicode_tables.inc")
    out = Output()
    out.names("category_names", CATEGORIES)
    out.partition("category_starts", [members(rf"\p{{{name}}}") for name in CATEGORIES])
    scripts = [pair.split() for pair in SCRIPTS.split(";")]
    out.names("script_names", [name for pair in scripts for name in pair])
    out.partition("script_starts", [members(rf"\p{{{name}}}") for name, _ in scripts])
    for name in PROPERTIES:
        out.ranges(f"property_{name.lower()}", members(rf"\p{{{name}}}"))
    out.ranges("rust_word_characters", rust_words())
    out.ranges("rust_punctuation", punctuation())
    out.ranges("removed_by_strip_accents", [c for c, to in changed(normalizers.StripAccents()).items() if to == ""])
    bert = changed(normalizers.BertNormalizer(True, False, False, False))
    out.ranges("removed_by_bert", [c for c, to in bert.items() if to == ""])
    out.ranges("space_to_bert", [c for c, to in bert.items() if to == " "])
    bert = changed(normalizers.BertNormalizer(False, False, True, False))
    out.ranges("accents_to_bert", [c for c, to in bert.items() if to == ""])
    nmt = changed(normalizers.Nmt())
    out.ranges("removed_by_nmt", [c for c, to in nmt.items() if to == ""])
    out.ranges("space_to_nmt", [c for c, to in nmt.items() if to == " "])
    bert = changed(normalizers.BertNormalizer(False, True, False, False))
    out.ranges("chinese_to_bert", bert)
    lower = changed(normalizers.Lowercase())
    out.numbers("lower_case_runs", lower_case_runs(lower))
    orbits, sequences = case_orbits()
    out.numbers("case_orbits", [value for orbit in orbits for value in (len(orbit), *orbit)])
    out.numbers("case_sequence_numbers", [value for c, to in sorted(sequences.items()) for value in (c, len(to), *to)])
    assert [c for c, to in lower.items() if len(to) != 1] == [0x130]  # unicode.cc has it
    with open(path, "w", encoding="ascii") as file:
        file.write("\n".join(out.parts))


if __name__ == "__main__":
    main()
