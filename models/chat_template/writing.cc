// Values as text: str(), repr(), json.dumps() and printf-style formatting.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "models/chat_template/attributes.h"
#include "models/chat_template/operators.h"
#include "models/chat_template/text.h"
#include "models/tokenizers/utf8.h"

namespace sluice::jinja {
namespace {

class ReprWriter {
 public:
  explicit ReprWriter(Heap& heap) : heap_(heap) {}

  void write(const Value& value) {
    const Heap::Level level(heap_);
    heap_.step();
    if (const auto* const text = value.text()) {
      heap_.step_bytes(text->size());
      heap_.require_room(text->size());
      append(value.is_markup() ? fmt::format("Markup({})", quoted_text(*text))
                               : quoted_text(*text));
    } else if (const auto* const sequence = value.sequence()) {
      write_sequence(*sequence);
    } else if (const auto* const mapping = value.mapping()) {
      write_mapping(*mapping);
    } else if (const auto* const space = value.as<Namespace*>()) {
      write_namespace(**space);
    } else {
      write_simple(value);
    }
  }

  std::string take() { return std::move(out_); }

 private:
  void append(std::string_view text) {
    out_ += text;
    heap_.require_room(out_.size());
  }

  void write_simple(const Value& value) {
    if (value.is<None>()) return append("None");
    if (const auto* const boolean = value.as<bool>()) return append(*boolean ? "True" : "False");
    if (const auto* const integer = value.as<std::int64_t>())
      return append(std::to_string(*integer));
    if (const auto* const real = value.as<double>()) return append(float_text(*real));
    if (const auto* const loop = value.as<Loop*>())
      return append(fmt::format("<LoopContext {}/{}>", (*loop)->index + 1, (*loop)->length));
    if (const auto* const callable = value.as<std::shared_ptr<Callable>>())
      return append((*callable)->describe());
    append("Undefined");
  }

  void write_items(const std::vector<Value>& items) {
    const char* separator = "";
    for (const Value& item : items) {
      append(separator);
      write(item);
      separator = ", ";
    }
  }

  void write_sequence(const Sequence& sequence) {
    switch (sequence.kind) {
      case SequenceKind::list:
        append("[");
        write_items(sequence.items);
        return append("]");
      case SequenceKind::tuple:
        append("(");
        write_items(sequence.items);
        return append(sequence.items.size() == 1 ? ",)" : ")");
      case SequenceKind::range:
        throw Error("a range cannot be written; make it a list first: range(...)|list");
      case SequenceKind::generator:
        throw Error("what a filter such as map or select gives cannot be written; add |list");
      default:
        append(type_name(Value(const_cast<Sequence*>(&sequence))));
        append("([");
        write_items(sequence.items);
        return append("])");
    }
  }

  void write_entry(std::string_view separator, const Value& key, const Value& value) {
    append(separator);
    write(key);
    append(": ");
    write(value);
  }

  void write_mapping(const Mapping& mapping) {
    const char* separator = "";
    append("{");
    for (const auto& [key, value] : mapping.entries) {
      write_entry(separator, key, value);
      separator = ", ";
    }
    append("}");
  }

  void write_namespace(const Namespace& space) {
    const char* separator = "";
    append("<Namespace {");
    for (const auto& [name, value] : space.attributes) {
      write_entry(separator, Value::constant(name), value);
      separator = ", ";
    }
    append("}>");
  }

  Heap& heap_;
  std::string out_;
};

void append_json_escape(char32_t character, std::string& out) {
  constexpr char32_t first_pair = 0x10000;
  if (character < first_pair) {
    out += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(character));
    return;
  }
  const auto rest = static_cast<std::uint32_t>(character - first_pair);
  out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800U + (rest >> 10U), 0xDC00U + (rest & 0x3FFU));
}

/// The two-character escape of a character, or nothing.
std::string_view short_json_escape(char32_t character) {
  switch (character) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\f':
      return "\\f";
    case '\b':
      return "\\b";
    default:
      return {};
  }
}

std::string json_string(std::string_view text, bool ensure_ascii) {
  constexpr char32_t last_ascii = 0x7E;
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size(); i += tokenizers::utf8_length(text[i])) {
    const std::size_t num_plain = plain_start(text.substr(i), "\"\\");
    out += text.substr(i, num_plain);
    i += num_plain;
    if (i == text.size()) break;
    const char32_t character = tokenizers::decode_utf8(text.substr(i));
    const std::string_view escape = short_json_escape(character);
    if (!escape.empty()) {
      out += escape;
    } else if (character < ' ' || (ensure_ascii && character > last_ascii)) {
      append_json_escape(character, out);
    } else {
      tokenizers::append_utf8(character, out);
    }
  }
  return out += '"';
}

std::string json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return float_text(value);
}

class JsonWriter {
 public:
  JsonWriter(Heap& heap, const JsonFormat& format) : heap_(heap), format_(format) {}

  void write(const Value& value) {
    const Heap::Level level(heap_);
    heap_.step();
    if (const auto* const mapping = value.mapping()) {
      write_mapping(*mapping);
    } else if (const auto* const sequence = value.sequence();
               sequence != nullptr &&
               (sequence->kind == SequenceKind::list || sequence->kind == SequenceKind::tuple)) {
      write_list(*sequence);
    } else {
      append(simple(value));
    }
  }

  std::string take() { return std::move(out_); }

 private:
  void append(std::string_view text) {
    out_ += text;
    heap_.require_room(out_.size());
  }

  std::string simple(const Value& value) const {
    if (const auto* const text = value.text()) {
      heap_.step_bytes(text->size());
      heap_.require_room(text->size());
      return json_string(*text, format_.ensure_ascii);
    }
    if (value.is<None>()) return "null";
    if (const auto* const boolean = value.as<bool>()) return *boolean ? "true" : "false";
    if (const auto* const integer = value.as<std::int64_t>()) return std::to_string(*integer);
    if (const auto* const real = value.as<double>()) return json_number(*real);
    require_defined(value);
    throw Error("tojson: {} cannot be written as JSON", object_name(value));
  }

  std::string key_text(const Value& key) const {
    if (key.text() != nullptr) return simple(key);
    if (key.sequence() != nullptr) throw Error("tojson: a tuple cannot be a key");
    return json_string(simple(key), false);
  }

  void new_line() {
    if (!format_.is_indented) return;
    append("\n");
    for (int i = 0; i < depth_; ++i) append(format_.indent);
  }

  void write_list(const Sequence& list) {
    if (list.items.empty()) return append("[]");
    append("[");
    ++depth_;
    bool is_first = true;
    for (const Value& item : list.items) {
      if (!is_first) append(format_.item_separator);
      is_first = false;
      new_line();
      write(item);
    }
    --depth_;
    new_line();
    append("]");
  }

  void write_mapping(const Mapping& mapping) {
    if (mapping.entries.empty()) return append("{}");
    std::vector<Entry> entries = mapping.entries;
    if (format_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [this](const Entry& a, const Entry& b) {
        return std::is_lt(compare(heap_, a.first, b.first));
      });
    }
    append("{");
    ++depth_;
    bool is_first = true;
    for (const auto& [key, value] : entries) {
      if (!is_first) append(format_.item_separator);
      is_first = false;
      new_line();
      append(key_text(key));
      append(format_.key_separator);
      write(value);
    }
    --depth_;
    new_line();
    append("}");
  }

  Heap& heap_;
  const JsonFormat& format_;
  std::string out_;
  int depth_ = 0;
};

/// One "%-5.2f".
struct Conversion {
  std::string flags;
  int width = 0;
  int precision = -1;
  char type = 's';
  std::optional<std::string> key;  ///< %(key)s
};

class PercentFormatter {
 public:
  PercentFormatter(Heap& heap, std::string_view format, const Value& value)
      : heap_(heap), rest_(format), value_(value) {
    const Sequence* const sequence = value.sequence();
    is_tuple_ = sequence != nullptr && sequence->kind == SequenceKind::tuple;
  }

  std::string format() {
    std::string out;
    while (!rest_.empty()) {
      const std::size_t at = std::min(rest_.find('%'), rest_.size());
      out += rest_.substr(0, at);
      rest_.remove_prefix(at);
      if (rest_.empty()) break;
      out += convert(read_conversion());
      heap_.step();
      heap_.require_room(out.size());
    }
    const bool has_left = is_tuple_ ? next_ < value_.sequence()->items.size()
                                    : value_.mapping() == nullptr && next_ == 0;
    if (has_left) throw Error("not all arguments were used by the format");
    return out;
  }

 private:
  char take() {
    if (rest_.empty()) throw Error("a format ends within '%'");
    const char byte = rest_.front();
    rest_.remove_prefix(1);
    return byte;
  }

  int read_number() {
    constexpr int highest = 10'000;
    int number = 0;
    while (!rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9') {
      number = number * 10 + (take() - '0');
      if (number > highest) throw Error("a format's width is more than {}", highest);
    }
    return number;
  }

  Conversion read_conversion() {
    Conversion conversion;
    take();
    if (rest_.starts_with('(')) {
      const std::size_t end = rest_.find(')');
      if (end == std::string_view::npos) throw Error("a format lacks ')'");
      conversion.key = std::string(rest_.substr(1, end - 1));
      rest_.remove_prefix(end + 1);
    }
    while (!rest_.empty() && std::string_view("-+ 0#").find(rest_.front()) != std::string::npos)
      conversion.flags += take();
    conversion.width = read_number();
    if (rest_.starts_with('.')) {
      take();
      conversion.precision = read_number();
    }
    conversion.type = take();
    return conversion;
  }

  Value next_value(const Conversion& conversion) {
    if (conversion.key) {
      if (value_.mapping() == nullptr) throw Error("a format with a name needs a dict");
      const Value* const entry =
          find_entry(heap_, *value_.mapping(), Value::constant(*conversion.key));
      if (entry == nullptr)
        throw Error("a format names {}, which is not there", quote(*conversion.key));
      return *entry;
    }
    const std::size_t count = is_tuple_ ? value_.sequence()->items.size() : 1;
    if (next_ >= count) throw Error("not enough arguments for the format");
    const std::size_t index = next_++;
    return is_tuple_ ? value_.sequence()->items[index] : value_;
  }

  std::string convert(const Conversion& conversion) {
    if (conversion.type == '%') return "%";
    const Value value = next_value(conversion);
    switch (conversion.type) {
      case 's':
        return padded(conversion, cut(conversion, to_text(heap_, value)));
      case 'r':
        return padded(conversion, cut(conversion, to_repr(heap_, value)));
      case 'c':
        return padded(conversion, to_text(heap_, value));
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        return integer(conversion, value);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        return real(conversion, value);
      default:
        throw Error("a format has the unknown type {}", quote({&conversion.type, 1}));
    }
  }

  static std::string cut(const Conversion& conversion, std::string text) {
    if (conversion.precision >= 0)
      text.resize(character_offset(text, static_cast<std::size_t>(conversion.precision)));
    return text;
  }

  static std::string padded(const Conversion& conversion, std::string text) {
    const auto width = static_cast<std::size_t>(conversion.width);
    const std::size_t length = num_characters(text);
    if (length >= width) return text;
    const std::string blanks(width - length, ' ');
    const bool is_left = conversion.flags.find('-') != std::string::npos;
    return is_left ? text + blanks : blanks + text;
  }

  /// C's printf with the same flags, width and precision.
  template <typename Number>
  static std::string printed(const Conversion& conversion, std::string_view type, Number number) {
    std::string format = "%" + conversion.flags;
    if (conversion.width > 0) format += std::to_string(conversion.width);
    if (conversion.precision >= 0) format += "." + std::to_string(conversion.precision);
    format += type;
    const int size = std::snprintf(nullptr, 0, format.c_str(), number);
    std::string text(static_cast<std::size_t>(std::max(size, 0)) + 1, '\0');
    std::snprintf(text.data(), text.size(), format.c_str(), number);
    text.pop_back();
    return text;
  }

  static std::string integer(const Conversion& conversion, const Value& value) {
    auto number = as_integer(value);
    const bool is_decimal = std::string_view("diu").find(conversion.type) != std::string::npos;
    if (const auto* const real = value.as<double>(); is_decimal && real != nullptr) {
      constexpr double limit = 0x1p63;
      if (!(std::abs(*real) < limit)) throw Error("a format's number leaves 64 bits");
      number = static_cast<std::int64_t>(*real);
    }
    if (!number) throw Error("a format needs a number, not {}", object_name(value));
    if (!is_decimal && *number < 0) throw Error("a format with %x or %o needs a number from 0");
    const std::string type = is_decimal ? "lld" : std::string("ll") + conversion.type;
    return printed(conversion, type, static_cast<long long>(*number));
  }

  static std::string real(const Conversion& conversion, const Value& value) {
    double number = 0;
    if (const auto* const given = value.as<double>()) {
      number = *given;
    } else if (const auto integer = as_integer(value)) {
      number = static_cast<double>(*integer);
    } else {
      throw Error("a format needs a number, not {}", object_name(value));
    }
    return printed(conversion, std::string(1, conversion.type), number);
  }

  Heap& heap_;
  std::string_view rest_;
  const Value& value_;
  bool is_tuple_ = false;
  std::size_t next_ = 0;
};

}  // namespace

std::string to_repr(Heap& heap, const Value& value) {
  ReprWriter writer(heap);
  writer.write(value);
  return writer.take();
}

std::string to_text(Heap& heap, const Value& value) {
  if (const auto* const text = value.text()) return *text;
  if (value.is<Undefined>()) return {};
  return to_repr(heap, value);
}

std::string to_json(Heap& heap, const Value& value, const JsonFormat& format) {
  JsonWriter writer(heap, format);
  writer.write(value);
  return writer.take();
}

std::string format_percent(Heap& heap, std::string_view format, const Value& value) {
  return PercentFormatter(heap, format, value).format();
}

}  // namespace sluice::jinja
