#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/tokenizers/json_field.h"

namespace sluice::tokenizers {

struct StringHash {
  using is_transparent = void;  // NOLINT(readability-identifier-naming): the library's name
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};
using Vocab = std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>>;

/// (left id, right id) -> (rank, merged id). Open addressing: it is asked for every pair of
/// neighbours.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;
    std::int32_t merged;
  };

  explicit MergeTable(std::size_t num_merges = 0);
  /// A pair that is there already gets the new rank. No more than num_merges insertions.
  void insert(std::int32_t left, std::int32_t right, Merge merge);
  const Merge* find(std::int32_t left, std::int32_t right) const;

 private:
  struct Slot {
    std::uint64_t pair = empty;
    Merge merge{};
  };
  static constexpr std::uint64_t empty = ~std::uint64_t{0};
  std::size_t slot_of(std::uint64_t pair) const;

  std::vector<Slot> slots_;
};

/// What the model section of tokenizer.json says besides vocabulary and merges.
struct BpeOptions {
  std::optional<std::string> unk_token;
  bool fuse_unk = false;
  bool byte_fallback = false;  ///< unknown characters become <0x..> tokens
  bool ignore_merges = false;  ///< a piece that is in the vocabulary is that token
};

/// Byte-pair encoding of one piece of text, as Hugging Face's BPE model does it. Immutable;
/// thread-safe.
class Bpe {
 public:
  /// Memory that encode() reuses from piece to piece.
  struct Scratch {
    struct Symbol {
      std::int32_t id;
      std::int32_t previous;  ///< index, or -1
      std::int32_t next;      ///< index, or -1
      bool is_merged_away;
    };
    std::vector<Symbol> symbols;
    std::vector<std::uint64_t> queue;
  };

  /// `where` begins every error message. Throws Error for a merge of unknown tokens.
  Bpe(Vocab vocab, const std::vector<std::pair<std::string, std::string>>& merges,
      BpeOptions options, std::string where);

  /// Appends the ids of one piece (well-formed UTF-8). Throws Error for an unknown character when
  /// the unknown token is not in the vocabulary.
  void encode(std::string_view piece, std::vector<std::int32_t>& ids, Scratch& scratch) const;

  const Vocab& vocab() const { return vocab_; }
  std::optional<std::int32_t> find(std::string_view token) const;

 private:
  void split_into_symbols(std::string_view piece, Scratch& scratch) const;
  std::int32_t character_id(std::string_view character) const;  ///< -1: unknown
  bool append_bytes(std::string_view character, Scratch& scratch) const;
  std::int32_t unknown_id(std::string_view character) const;
  void merge_few(Scratch& scratch) const;
  void merge_many(Scratch& scratch) const;

  Vocab vocab_;
  MergeTable merges_;
  BpeOptions options_;
  std::string where_;
  std::array<std::int32_t, 512> low_character_ids_;  ///< of the code points below 512
  std::array<std::int32_t, 256> byte_ids_;           ///< of <0x00> to <0xFF>
};

/// Reads tokenizer.json's "model", with the options `instead` of its own where they are given.
/// Throws Error that names what is not supported.
Bpe make_bpe(const JsonField& model, const std::optional<BpeOptions>& instead = std::nullopt);

/// Reads GPT-2's vocab.json.
Vocab make_vocab(const JsonField& field);

}  // namespace sluice::tokenizers
