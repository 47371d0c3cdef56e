#include "models/tokenizers/unicode.h"

#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>

#include "models/tokenizers/utf8.h"

namespace sluice::tokenizers {
namespace {

#include "models/tokenizers/unicode_tables.inc"

using Edges = std::span<const std::uint32_t>;  // first, last, first, last, ...
using Range = CodePointSet::Range;

struct Property {
  std::string_view name;  // loose
  Edges edges;
};
const Property properties[] = {
    {"alphabetic", property_alphabetic},
    {"alpha", property_alphabetic},
    {"uppercase", property_uppercase},
    {"upper", property_uppercase},
    {"lowercase", property_lowercase},
    {"lower", property_lowercase},
    {"ideographic", property_ideographic},
    {"emoji", property_emoji},
    {"emojipresentation", property_emoji_presentation},
    {"emojimodifier", property_emoji_modifier},
    {"emojimodifierbase", property_emoji_modifier_base},
    {"emojicomponent", property_emoji_component},
    {"extendedpictographic", property_extended_pictographic},
    {"regionalindicator", property_regional_indicator},
    {"variationselector", property_variation_selector},
    {"joincontrol", property_join_control},
};

struct CategoryName {
  std::string_view name;        // loose
  std::string_view categories;  // of two letters each
};
constexpr CategoryName category_groups[] = {
    {"c", "CcCfCoCn"},
    {"other", "CcCfCoCn"},
    {"cc", "Cc"},
    {"control", "Cc"},
    {"cntrl", "Cc"},
    {"cf", "Cf"},
    {"format", "Cf"},
    {"cn", "Cn"},
    {"unassigned", "Cn"},
    {"co", "Co"},
    {"privateuse", "Co"},
    {"l", "LuLlLtLmLo"},
    {"letter", "LuLlLtLmLo"},
    {"lc", "LuLlLt"},
    {"casedletter", "LuLlLt"},
    {"lu", "Lu"},
    {"uppercaseletter", "Lu"},
    {"ll", "Ll"},
    {"lowercaseletter", "Ll"},
    {"lt", "Lt"},
    {"titlecaseletter", "Lt"},
    {"lm", "Lm"},
    {"modifierletter", "Lm"},
    {"lo", "Lo"},
    {"otherletter", "Lo"},
    {"m", "MnMcMe"},
    {"mark", "MnMcMe"},
    {"combiningmark", "MnMcMe"},
    {"mn", "Mn"},
    {"nonspacingmark", "Mn"},
    {"mc", "Mc"},
    {"spacingmark", "Mc"},
    {"me", "Me"},
    {"enclosingmark", "Me"},
    {"n", "NdNlNo"},
    {"number", "NdNlNo"},
    {"nd", "Nd"},
    {"decimalnumber", "Nd"},
    {"digit", "Nd"},
    {"nl", "Nl"},
    {"letternumber", "Nl"},
    {"no", "No"},
    {"othernumber", "No"},
    {"p", "PcPdPsPePiPfPo"},
    {"punctuation", "PcPdPsPePiPfPo"},
    {"punct", "PcPdPsPePiPfPo"},
    {"pc", "Pc"},
    {"connectorpunctuation", "Pc"},
    {"pd", "Pd"},
    {"dashpunctuation", "Pd"},
    {"ps", "Ps"},
    {"openpunctuation", "Ps"},
    {"pe", "Pe"},
    {"closepunctuation", "Pe"},
    {"pi", "Pi"},
    {"initialpunctuation", "Pi"},
    {"pf", "Pf"},
    {"finalpunctuation", "Pf"},
    {"po", "Po"},
    {"otherpunctuation", "Po"},
    {"s", "SmScSkSo"},
    {"symbol", "SmScSkSo"},
    {"sm", "Sm"},
    {"mathsymbol", "Sm"},
    {"sc", "Sc"},
    {"currencysymbol", "Sc"},
    {"sk", "Sk"},
    {"modifiersymbol", "Sk"},
    {"so", "So"},
    {"othersymbol", "So"},
    {"z", "ZsZlZp"},
    {"separator", "ZsZlZp"},
    {"zs", "Zs"},
    {"spaceseparator", "Zs"},
    {"zl", "Zl"},
    {"lineseparator", "Zl"},
    {"zp", "Zp"},
    {"paragraphseparator", "Zp"},
};

/// The code points of one part of a partition table.
void append_part(std::span<const std::uint32_t> starts, std::size_t part, std::vector<Range>& out) {
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if ((starts[i] & 0xFF) != part) continue;
    const std::uint32_t end = i + 1 < starts.size() ? starts[i + 1] >> 8 : 0x110000;
    out.push_back({starts[i] >> 8, end - 1});
  }
}

CodePointSet of_categories(std::string_view names) {
  std::vector<Range> ranges;
  for (; !names.empty(); names.remove_prefix(2)) {
    const auto* const found =
        std::find(std::begin(category_names), std::end(category_names), names.substr(0, 2));
    append_part(category_starts, static_cast<std::size_t>(found - std::begin(category_names)),
                ranges);
  }
  return CodePointSet(std::move(ranges));
}

CodePointSet of_edges(Edges edges) {
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < edges.size(); i += 2) ranges.push_back({edges[i], edges[i + 1]});
  return CodePointSet(std::move(ranges));
}

bool is_within(Edges edges, char32_t c) {
  // The first edge above c is the last of the range that holds it, if one does.
  const auto above = std::upper_bound(edges.begin(), edges.end(), c);
  const bool inside = (above - edges.begin()) % 2 == 1;
  return inside || (above != edges.begin() && *(above - 1) == c);
}

CodePointSet white_space() {
  std::vector<Range> ranges;
  for (char32_t c = 0; c <= 0x3000; ++c) {
    if (is_white_space(c)) ranges.push_back({c, c});
  }
  return CodePointSet(std::move(ranges));
}

CodePointSet word_in_class() {
  return of_edges(property_alphabetic).united(of_categories("MnMcMeNdPc"));
}

CodePointSet word() {
  // Outside of a class, Oniguruma adds the numbers among Latin-1's symbols.
  return word_in_class().united(CodePointSet({{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}}));
}

CodePointSet graph() { return white_space().united(of_categories("CcCn")).complement(); }

/// POSIX names that mean the same in \p{} and in [[::]], and \w.
std::optional<CodePointSet> named_class(std::string_view name) {
  if (name == "any") return CodePointSet::all();
  if (name == "ascii") return CodePointSet(0, 0x7F);
  if (name == "assigned") return of_categories("Cn").complement();
  if (name == "space" || name == "whitespace") return white_space();
  if (name == "word") return word();
  if (name == "alnum") return of_edges(property_alphabetic).united(of_categories("Nd"));
  if (name == "graph") return graph();
  if (name == "print") return graph().united(of_categories("Zs"));
  if (name == "blank") return of_categories("Zs").united(CodePointSet('\t', '\t'));
  if (name == "xdigit") return CodePointSet({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
  return std::nullopt;
}

std::optional<CodePointSet> script(std::string_view name) {
  for (std::size_t i = 0; i < std::size(script_names); ++i) {
    if (loose_name(script_names[i]) != name) continue;
    std::vector<Range> ranges;
    append_part(script_starts, i / 2, ranges);
    return CodePointSet(std::move(ranges));
  }
  return std::nullopt;
}

/// The case variants of each character that has some.
using Orbits = std::unordered_map<char32_t, std::span<const std::uint32_t>>;

const Orbits& orbits() {
  static const Orbits all = [] {
    Orbits out;
    for (std::span<const std::uint32_t> rest = case_orbits; !rest.empty();
         rest = rest.subspan(1 + rest[0])) {
      for (const std::uint32_t c : rest.subspan(1, rest[0])) out[c] = rest.subspan(1, rest[0]);
    }
    return out;
  }();
  return all;
}

}  // namespace

CodePointSet::CodePointSet(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  for (const Range& range : ranges) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    } else {
      ranges_.push_back(range);
    }
  }
}

bool CodePointSet::contains(char32_t code_point) const {
  const auto found =
      std::lower_bound(ranges_.begin(), ranges_.end(), code_point,
                       [](const Range& range, char32_t point) { return range.last < point; });
  return found != ranges_.end() && code_point >= found->first;
}

CodePointSet CodePointSet::complement() const {
  CodePointSet out;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) out.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= 0x10FFFF) out.ranges_.push_back({next, 0x10FFFF});
  return out;
}

CodePointSet CodePointSet::united(const CodePointSet& other) const {
  std::vector<Range> ranges = ranges_;
  ranges.insert(ranges.end(), other.ranges_.begin(), other.ranges_.end());
  return CodePointSet(std::move(ranges));
}

CodePointSet CodePointSet::intersected(const CodePointSet& other) const {
  return complement().united(other.complement()).complement();
}

std::string loose_name(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == ' ' || c == '-' || c == '_') continue;
    out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return out;
}

std::optional<CodePointSet> unicode_property(std::string_view name) {
  const std::string loose = loose_name(name);
  if (auto set = named_class(loose)) return set;
  for (const CategoryName& group : category_groups) {
    if (group.name == loose) return of_categories(group.categories);
  }
  for (const Property& property : properties) {
    if (property.name == loose) return of_edges(property.edges);
  }
  return script(loose);
}

std::optional<CodePointSet> posix_class(std::string_view name) {
  if (name == "punct") return of_categories("PcPdPsPePiPfPoSmScSkSo");
  if (name == "word") return word_in_class();
  for (const char* known : {"alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower",
                            "print", "space", "upper", "xdigit"}) {
    if (name == known) return unicode_property(name);
  }
  return std::nullopt;
}

std::vector<char32_t> case_variants(char32_t code_point) {
  const auto found = orbits().find(code_point);
  if (found == orbits().end()) return {code_point};
  return {found->second.begin(), found->second.end()};
}

CodePointSet with_case_variants(const CodePointSet& set) {
  std::vector<Range> ranges = set.ranges();
  for (const auto& [code_point, orbit] : orbits()) {
    if (!set.contains(code_point)) continue;
    for (const std::uint32_t c : orbit) ranges.push_back({c, c});
  }
  return CodePointSet(std::move(ranges));
}

const std::vector<CaseSequence>& case_sequences() {
  static const std::vector<CaseSequence> all = [] {
    std::vector<CaseSequence> out;
    for (std::span<const std::uint32_t> rest = case_sequence_numbers; !rest.empty();
         rest = rest.subspan(2 + rest[1])) {
      const auto sequence = rest.subspan(2, rest[1]);
      out.push_back({rest[0], {sequence.begin(), sequence.end()}});
    }
    return out;
  }();
  return all;
}

bool is_word_character(char32_t code_point) { return is_within(rust_word_characters, code_point); }
bool is_punctuation(char32_t code_point) { return is_within(rust_punctuation, code_point); }
bool is_accent(char32_t code_point) { return is_within(removed_by_strip_accents, code_point); }
bool is_accent_to_bert(char32_t code_point) { return is_within(accents_to_bert, code_point); }
bool is_removed_by_nmt(char32_t code_point) { return is_within(removed_by_nmt, code_point); }
bool is_space_to_nmt(char32_t code_point) { return is_within(space_to_nmt, code_point); }
bool is_removed_by_bert(char32_t code_point) { return is_within(removed_by_bert, code_point); }
bool is_space_to_bert(char32_t code_point) { return is_within(space_to_bert, code_point); }
bool is_chinese_to_bert(char32_t code_point) { return is_within(chinese_to_bert, code_point); }

void append_lower_case(char32_t code_point, std::string& out) {
  if (code_point == 0x130) {  // the only character whose lower case has two
    out += "i\xCC\x87";
    return;
  }
  // Runs of four numbers: first, last, step, distance; they may overlap, as they alternate.
  const std::span<const std::uint32_t> runs = lower_case_runs;
  for (std::size_t i = 0; i < runs.size() && runs[i] <= code_point; i += 4) {
    if (code_point > runs[i + 1] || (code_point - runs[i]) % runs[i + 2] != 0) continue;
    code_point += runs[i + 3];  // modulo 2^32: the distance may be negative
    break;
  }
  append_utf8(code_point, out);
}

}  // namespace sluice::tokenizers
