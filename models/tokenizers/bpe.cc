#include "models/tokenizers/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "models/tokenizers/utf8.h"

namespace sluice::tokenizers {
namespace {

// Below this many symbols a scan for the best merge beats a heap.
constexpr std::size_t few_symbols = 24;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(std::size_t num_merges) : slots_(std::bit_ceil(2 * num_merges + 2)) {}

std::size_t MergeTable::slot_of(std::uint64_t pair) const {
  std::uint64_t h = pair * 0x9E3779B97F4A7C15U;
  h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93U;
  std::size_t slot = (h ^ (h >> 32)) & (slots_.size() - 1);
  while (slots_[slot].pair != empty && slots_[slot].pair != pair)
    slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

void MergeTable::insert(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t pair = pair_key(left, right);
  slots_[slot_of(pair)] = {pair, merge};
}

const MergeTable::Merge* MergeTable::find(std::int32_t left, std::int32_t right) const {
  const Slot& slot = slots_[slot_of(pair_key(left, right))];
  return slot.pair == empty ? nullptr : &slot.merge;
}

Bpe::Bpe(Vocab vocab, const std::vector<std::pair<std::string, std::string>>& merges,
         BpeOptions options, std::string where)
    : vocab_(std::move(vocab)),
      merges_(merges.size()),
      options_(std::move(options)),
      where_(std::move(where)) {
  const auto known = [this](const std::string& token, std::size_t rank) {
    const auto id = find(token);
    if (!id)
      throw Error("{}: merge {} needs the token {}, which is not in the vocabulary", where_, rank,
                  quote(token));
    return *id;
  };
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const std::int32_t left_id = known(left, rank);
    const std::int32_t right_id = known(right, rank);
    merges_.insert(left_id, right_id,
                   {static_cast<std::uint32_t>(rank), known(left + right, rank)});
  }
  for (std::size_t c = 0; c < low_character_ids_.size(); ++c) {
    std::string character;
    append_utf8(static_cast<char32_t>(c), character);
    low_character_ids_[c] = find(character).value_or(-1);
  }
  for (std::size_t b = 0; b < byte_ids_.size(); ++b) {
    byte_ids_[b] = find(fmt::format("<0x{:02X}>", b)).value_or(-1);
  }
}

std::optional<std::int32_t> Bpe::find(std::string_view token) const {
  const auto found = vocab_.find(token);
  if (found == vocab_.end()) return std::nullopt;
  return found->second;
}

std::int32_t Bpe::character_id(std::string_view character) const {
  const char32_t code_point = decode_utf8(character);
  if (code_point < low_character_ids_.size()) return low_character_ids_[code_point];
  return find(character).value_or(-1);
}

bool Bpe::append_bytes(std::string_view character, Scratch& scratch) const {
  const auto id_of = [this](char c) { return byte_ids_[static_cast<std::uint8_t>(c)]; };
  if (std::any_of(character.begin(), character.end(), [&](char c) { return id_of(c) < 0; }))
    return false;
  for (const char c : character) scratch.symbols.push_back({id_of(c), -1, -1, false});
  return true;
}

std::int32_t Bpe::unknown_id(std::string_view character) const {
  const auto id = find(*options_.unk_token);
  if (!id) {
    throw Error(
        "{}: the character U+{:04X} is unknown, and the unknown token {} is not in the vocabulary",
        where_, static_cast<std::uint32_t>(decode_utf8(character)), quote(*options_.unk_token));
  }
  return *id;
}

void Bpe::split_into_symbols(std::string_view piece, Scratch& scratch) const {
  std::int32_t pending_unknown = -1;
  const auto flush = [&] {
    if (pending_unknown >= 0) scratch.symbols.push_back({pending_unknown, -1, -1, false});
    pending_unknown = -1;
  };
  scratch.symbols.clear();
  while (!piece.empty()) {
    const std::string_view character = piece.substr(0, utf8_length(piece[0]));
    piece.remove_prefix(character.size());
    const std::int32_t id = character_id(character);
    if (id >= 0) {
      flush();
      scratch.symbols.push_back({id, -1, -1, false});
    } else if (options_.byte_fallback && append_bytes(character, scratch)) {
      // As in Hugging Face's: an unknown token before these bytes comes after them.
    } else if (options_.unk_token) {
      if (!options_.fuse_unk) flush();
      pending_unknown = unknown_id(character);
    }
  }
  flush();
}

void Bpe::encode(std::string_view piece, std::vector<std::int32_t>& ids, Scratch& scratch) const {
  if (options_.ignore_merges) {
    if (const auto id = find(piece)) {
      ids.push_back(*id);
      return;
    }
  }
  if (piece.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw Error("{}: a piece of text has {} bytes, expected less than 2 GiB", where_, piece.size());
  }
  split_into_symbols(piece, scratch);
  if (scratch.symbols.size() <= few_symbols) {
    merge_few(scratch);
  } else {
    merge_many(scratch);
  }
  for (const auto& symbol : scratch.symbols) {
    if (!symbol.is_merged_away) ids.push_back(symbol.id);
  }
}

// Both do the same: the merge of lowest rank first, the leftmost among equals.
void Bpe::merge_few(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  while (symbols.size() > 1) {
    const MergeTable::Merge* best = nullptr;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto* merge = merges_.find(symbols[i].id, symbols[i + 1].id);
      if (merge != nullptr && (best == nullptr || merge->rank < best->rank)) {
        best = merge;
        at = i;
      }
    }
    if (best == nullptr) return;
    symbols[at].id = best->merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

void Bpe::merge_many(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& queue = scratch.queue;  // rank in the upper half, index of the left symbol in the lower
  const auto after = std::greater<>();
  const auto key = [](const MergeTable::Merge& merge, std::int32_t index) {
    return static_cast<std::uint64_t>(merge.rank) << 32 | static_cast<std::uint32_t>(index);
  };
  const auto push = [&](std::int32_t index) {
    if (index < 0 || symbols[index].next < 0) return;
    const auto* merge = merges_.find(symbols[index].id, symbols[symbols[index].next].id);
    if (merge == nullptr) return;
    queue.push_back(key(*merge, index));
    std::push_heap(queue.begin(), queue.end(), after);
  };

  queue.clear();
  const auto count = static_cast<std::int32_t>(symbols.size());
  for (std::int32_t i = 0; i < count; ++i) {
    symbols[i].previous = i - 1;
    symbols[i].next = i + 1 < count ? i + 1 : -1;
    if (i + 1 == count) break;
    if (const auto* merge = merges_.find(symbols[i].id, symbols[i + 1].id))
      queue.push_back(key(*merge, i));
  }
  std::make_heap(queue.begin(), queue.end(), after);

  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), after);
    const std::uint64_t top = queue.back();
    queue.pop_back();
    const auto index = static_cast<std::int32_t>(top & 0xFFFFFFFFU);
    auto& left = symbols[index];
    if (left.is_merged_away || left.next < 0) continue;
    auto& right = symbols[left.next];
    const auto* merge = merges_.find(left.id, right.id);
    if (merge == nullptr || merge->rank != top >> 32) continue;  // one of the two has changed since
    left.id = merge->merged;
    left.next = right.next;
    right.is_merged_away = true;
    if (right.next >= 0) symbols[right.next].previous = index;
    push(left.previous);
    push(index);
  }
}

Vocab make_vocab(const JsonField& field) {
  const nlohmann::json& json = field.value();
  if (!json.is_object())
    throw Error("{}: found {}, expected an object", field.where(), json.type_name());
  Vocab vocab;
  vocab.reserve(json.size());
  for (const auto& [token, id] : json.items()) {
    if (!id.is_number_unsigned() ||
        id.get<std::uint64_t>() > static_cast<std::uint64_t>(max_token_id)) {
      throw Error("{}: {} has the id {}, expected 0 to {}", field.where(), quote(token),
                  id.is_number() ? json_text(id) : id.type_name(), max_token_id);
    }
    vocab.emplace(token, id.get<std::int32_t>());
  }
  return vocab;
}

namespace {

std::pair<std::string, std::string> make_merge(const nlohmann::json& merge,
                                               const std::string& where, std::size_t index) {
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
             merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  throw Error("{}[{}]: found {}, expected \"left right\" or [\"left\", \"right\"]", where, index,
              merge.is_string() ? quote(merge.get_ref<const std::string&>()) : merge.type_name());
}

void refuse_affix(const JsonField& model, const std::string& key) {
  const auto affix = model.find(key);
  if (affix && !affix->text().empty()) {
    throw Error("{}: {} is not supported, expected none", affix->where(), quote(affix->text()));
  }
}

/// Older files leave the type out; then the fields tell, as they do to Hugging Face's.
std::string model_type(const JsonField& model) {
  if (const auto type = model.find("type")) return type->text();
  if (model.find("merges")) return "BPE";
  const auto vocab = model.find("vocab");
  if (vocab && vocab->value().is_array()) return "Unigram";
  if (model.find("max_input_chars_per_word")) return "WordPiece";
  return "BPE";
}

}  // namespace

Bpe make_bpe(const JsonField& model, const std::optional<BpeOptions>& instead) {
  const std::string type = model_type(model);
  if (type != "BPE")
    throw Error("{}: type {} is not supported (BPE is)", model.where(), quote(type));
  refuse_affix(model, "continuing_subword_prefix");
  refuse_affix(model, "end_of_word_suffix");
  const auto dropout = model.find("dropout");
  if (dropout && dropout->value() != 0.0)
    throw Error("{}: not supported, expected null", dropout->where());

  BpeOptions options;
  if (const auto unknown = model.find("unk_token")) options.unk_token = unknown->text();
  options.fuse_unk = model.boolean_or("fuse_unk", false);
  options.byte_fallback = model.boolean_or("byte_fallback", false);
  options.ignore_merges = model.boolean_or("ignore_merges", false);

  const JsonField list = model.at("merges");
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(list.size());
  for (const nlohmann::json& merge : list.value()) {
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) continue;
    merges.push_back(make_merge(merge, list.where(), merges.size()));
  }
  return {make_vocab(model.at("vocab")), merges, instead.value_or(options), model.where()};
}

}  // namespace sluice::tokenizers
