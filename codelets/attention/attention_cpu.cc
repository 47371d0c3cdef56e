#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rounding.h"
#include "codelets/attention/attention.h"
#include "codelets/kernels/strip_gemm.h"
#include "codelets/runtime/runtime.h"
#include "perfmodels/attention_jobs.h"

namespace sluice {
namespace {

/// A sequence with as many new rows goes through tiles: fewer share too little of a tile's work.
constexpr std::int64_t rows_worth_a_tile = 8;
/// Rows and tokens of a tile.
constexpr std::int64_t tile_rows = 64;
constexpr std::int64_t tile_tokens = 2 * strip_columns;
static_assert(tile_tokens <= simd::max_tile_tokens);
/// A job reads a chunk of a row's context: a half or a quarter of it, so that threads can share it,
/// but neither so few tokens that starting costs much nor more bytes than it takes to hide that. A
/// row's chunks are as long as each other, so that threads have as much to do.
constexpr std::int64_t whole_tokens = AttentionJobs::whole_tokens;
constexpr std::int64_t halved_tokens = 640;  // a quarter would be 160
constexpr std::int64_t max_chunk_tokens = 1024;
constexpr std::int64_t max_chunk_bytes = 2 << 20;

/// Some KV heads of one row (`num_rows` is 0), or one of a block of rows that goes through tiles.
struct Job {
  const BatchSequence* sequence;
  std::int64_t first_row;
  std::int64_t num_rows;
  std::int64_t first_head;
  std::int64_t num_heads = 1;  ///< KV heads
  // Rows only, whose context is cut into `num_chunks` jobs of `chunk_tokens` each:
  std::int64_t chunk_tokens = 0;
  std::int64_t chunk = 0;
  std::int64_t num_chunks = 1;
  std::int64_t parts = 0;    ///< float at which the row's partial results begin
  std::int64_t counter = 0;  ///< counts the chunks that are done
};

class Attention {
 public:
  Attention(const CpuContext& cpu, const AttentionOperands& operands)
      : cpu_(cpu),
        operands_(operands),
        shape_(operands.args->shape),
        out_stride_(activation_stride(shape_.q_size(), shape_.dtype)),
        heads_per_job_(AttentionJobs::heads(shape_.num_kv_heads,
                                            static_cast<std::int64_t>(shape_.page_bytes()))),
        max_chunk_tokens_(std::clamp(
            max_chunk_bytes * shape_.num_kv_heads /
                (static_cast<std::int64_t>(shape_.page_bytes()) * heads_per_job_) * page_tokens,
            page_tokens, max_chunk_tokens)) {}

  void run() {
    for (const BatchSequence& sequence : operands_.batch.sequences()) {
      const bool tiles = sequence.num_rows >= rows_worth_a_tile && fills_words();
      tiles ? add_tiles(sequence) : add_rows(sequence);
    }
    // A group's jobs are neighbours, and its heads' KV lies near to it.
    if (cpu_.pool.num_groups() > 1) {
      std::stable_sort(jobs_.begin(), jobs_.end(),
                       [](const Job& a, const Job& b) { return a.first_head < b.first_head; });
    }
    parts_ = reinterpret_cast<float*>(
        cpu_.workspace.reserve(static_cast<std::size_t>(num_part_floats_) * sizeof(float)));
    chunks_done_ = std::vector<std::atomic<std::int64_t>>(static_cast<std::size_t>(num_counters_));
    cpu_.pool.run(static_cast<std::int64_t>(jobs_.size()), [&](std::int64_t i) {
      const Job& job = jobs_[static_cast<std::size_t>(i)];
      job.num_rows == 0 ? attend_row(job) : attend_tile(job);
    });
  }

 private:
  /// Strips in bf16 hold pairs of dimensions.
  bool fills_words() const { return shape_.dtype == DType::f32 || shape_.head_dim % 2 == 0; }

  static std::int64_t position_of(const Job& job) {
    return job.sequence->context + job.first_row - job.sequence->first_row;
  }
  std::int64_t first_visible(std::int64_t position) const {
    return simd::first_visible_token(position, shape_.sliding_window_tokens);
  }
  const std::byte* q_at(std::int64_t row, std::int64_t head) const {
    return operands_.q + static_cast<std::size_t>(row * shape_.q_size() + head * shape_.head_dim) *
                             size_bytes(shape_.dtype);
  }
  std::byte* out_at(std::int64_t row, std::int64_t head) const {
    return operands_.out + static_cast<std::size_t>(row * out_stride_ + head * shape_.head_dim) *
                               size_bytes(shape_.dtype);
  }

  /// Of a head and those after it; or null.
  const float* sinks_at(std::int64_t head) const {
    const float* sinks = sinks_of(*operands_.args, operands_.vectors);
    return sinks == nullptr ? nullptr : sinks + head;
  }

  void add_tiles(const BatchSequence& sequence) {
    // The last rows see the most: longest jobs first.
    for (std::int64_t begin = (sequence.num_rows - 1) / tile_rows * tile_rows; begin >= 0;
         begin -= tile_rows) {
      for (std::int64_t head = 0; head < shape_.num_kv_heads; ++head) {
        jobs_.push_back({&sequence, sequence.first_row + begin,
                         std::min(tile_rows, sequence.num_rows - begin), head});
      }
    }
  }

  /// Where a row's chunks begin: a page.
  std::int64_t first_chunk_token(std::int64_t position) const {
    return first_visible(position) / page_tokens * page_tokens;
  }
  /// By the shape and the row's position alone, so that its bits do not depend on what else there
  /// is to do. Whole pages.
  std::int64_t chunk_tokens_of(std::int64_t position) const {
    const std::int64_t tokens = position + 1 - first_chunk_token(position);
    const std::int64_t shares = tokens <= whole_tokens ? 1 : tokens <= halved_tokens ? 2 : 4;
    const std::int64_t chunks = divide_up(divide_up(tokens, max_chunk_tokens_), shares) * shares;
    return divide_up(divide_up(tokens, page_tokens), chunks) * page_tokens;
  }

  void add_rows(const BatchSequence& sequence) {
    for (std::int64_t i = 0; i < sequence.num_rows; ++i) {
      const std::int64_t position = sequence.context + i;
      const std::int64_t chunk_tokens = chunk_tokens_of(position);
      const std::int64_t num_chunks =
          divide_up(position + 1 - first_chunk_token(position), chunk_tokens);
      for (std::int64_t head = 0; head < shape_.num_kv_heads; head += heads_per_job_) {
        const std::int64_t num_heads = std::min(heads_per_job_, shape_.num_kv_heads - head);
        for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) {
          jobs_.push_back({&sequence, sequence.first_row + i, 0, head, num_heads, chunk_tokens,
                           chunk, num_chunks, num_part_floats_, num_counters_});
        }
        ++num_counters_;
        num_part_floats_ += num_chunks * part_floats(num_heads);
      }
    }
  }

  std::int64_t part_floats(std::int64_t num_heads) const {
    return simd::PartialAttention::num_floats(num_heads * shape_.group_size(),
                                              shape_.padded_head_dim());
  }

  /// A chunk of a row's context. Who comes last puts the chunks together.
  void attend_row(const Job& job) {
    const std::int64_t group = shape_.group_size();
    const std::int64_t num_queries = job.num_heads * group;
    const simd::KvHeads kv = kv_heads_of(shape_, operands_.batch, *job.sequence, operands_.slab,
                                         job.first_head, job.num_heads);
    simd::GroupedQuery query =
        query_of(shape_, kv, position_of(job), group, q_at(job.first_row, job.first_head * group));
    query.sinks = sinks_at(job.first_head * group);
    const std::int64_t begin = first_chunk_token(position_of(job)) + job.chunk * job.chunk_tokens;
    query.first_token = std::max(query.first_token, begin);
    query.end_token = std::min(query.end_token, begin + job.chunk_tokens);
    float* parts = parts_ + job.parts;
    float* mine = parts + job.chunk * part_floats(job.num_heads);
    thread_local Workspace scratch;
    simd::attend(
        query, simd::PartialAttention::at(mine, num_queries, shape_.padded_head_dim()),
        scratch.reserve(simd::attend_scratch_bytes(num_queries, shape_.padded_head_dim())));
    auto& done = chunks_done_[static_cast<std::size_t>(job.counter)];
    if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == job.num_chunks) {
      simd::combine_attention(query, parts, job.num_chunks,
                              out_at(job.first_row, job.first_head * group));
    }
  }

  /// Scratch of one tile job. Keys and values lie in strips of 64 columns as strip_gemm() reads
  /// them, in words of 32 bits: two numbers of bf16, or one of f32.
  struct Tile {
    explicit Tile(const DecoderShape& shape)
        : k_words(divide_up(shape.head_dim, 2) * 2 / shape.elements_per_word()),
          v_words(tile_tokens / shape.elements_per_word()),
          sum_columns(divide_up(shape.head_dim, strip_columns) * strip_columns) {
      thread_local Workspace scratch;
      std::size_t size_bytes = 0;
      const auto plan = [&size_bytes](std::int64_t count, std::size_t each) {
        const std::size_t at = size_bytes;
        size_bytes += (static_cast<std::size_t>(count) * each + 63) / 64 * 64;
        return at;
      };
      const std::int64_t rows = shape.group_size() * tile_rows;
      const std::size_t k_at = plan(tile_tokens * k_words, 4);
      const std::size_t v_at = plan(sum_columns * v_words, 4);
      const std::size_t scores_at = plan(tile_rows * tile_tokens, 4);
      const std::size_t weights_at = plan(tile_rows * tile_tokens, 2);
      const std::size_t rests_at = plan(tile_rows * tile_tokens, 2);
      const std::size_t sum_at = plan(rows * sum_columns, 4);
      const std::size_t maximum_at = plan(rows, 4);
      const std::size_t denominator_at = plan(rows, 4);
      std::byte* memory = scratch.reserve(size_bytes);
      k = reinterpret_cast<std::uint32_t*>(memory + k_at);
      v = reinterpret_cast<std::uint32_t*>(memory + v_at);
      scores = reinterpret_cast<float*>(memory + scores_at);
      weights = reinterpret_cast<std::uint16_t*>(memory + weights_at);
      rests = reinterpret_cast<std::uint16_t*>(memory + rests_at);
      sum = reinterpret_cast<float*>(memory + sum_at);
      maximum = reinterpret_cast<float*>(memory + maximum_at);
      denominator = reinterpret_cast<float*>(memory + denominator_at);
      std::fill(sum, sum + rows * sum_columns, 0.0F);
      std::fill(maximum, maximum + rows, -std::numeric_limits<float>::infinity());
      std::fill(denominator, denominator + rows, 0.0F);
    }

    /// The strip of 64 tokens, or of 64 dimensions, that begins there.
    std::uint32_t* k_strip(std::int64_t token) const { return k + token * k_words; }
    std::uint32_t* v_strip(std::int64_t dim) const { return v + dim * v_words; }

    std::int64_t k_words;  ///< of a token: head_dim, to an even number
    std::int64_t v_words;  ///< of a dimension: tile_tokens
    std::int64_t sum_columns;
    std::uint32_t* k;        ///< strips of 64 tokens, each [k_words][64]
    std::uint32_t* v;        ///< strips of 64 dimensions, each [v_words][64]
    float* scores;           ///< [tile_rows, tile_tokens], then the softmax weights in f32
    std::uint16_t* weights;  ///< or the weights in bf16
    std::uint16_t* rests;    ///< and what those lack
    float* sum;              ///< [group, tile_rows, sum_columns]
    float* maximum;          ///< [group, tile_rows]
    float* denominator;      ///< [group, tile_rows]
  };

  /// Tokens that some row of a tile job sees.
  struct Visible {
    std::int64_t first, end;
  };

  /// Puts the keys and values of [first_token, + tile_tokens) side by side. Values that no row sees
  /// become zero: a weight of zero would not hide a NaN.
  void gather(const simd::KvHeads& kv, std::int64_t first_token, const Visible& visible,
              const Tile& tile) const {
    for (std::int64_t token = first_token; token < first_token + tile_tokens;
         token += page_tokens) {
      const std::int64_t at = token - first_token;
      const bool seen = token < visible.end && token + page_tokens > visible.first;
      gather_keys(seen ? kv.k(token / page_tokens, 0) : nullptr, at, tile);
      gather_values(seen ? kv.v(token / page_tokens, 0) : nullptr, at, tile);
      if (!seen) continue;
      for (std::int64_t t = 0; t < page_tokens; ++t) {
        if (token + t >= visible.first && token + t < visible.end) continue;
        clear_value(at + t, tile);
      }
    }
  }

  /// One page of keys (null: zeros) as tokens [at, at + 16) of the tile. An odd head_dim's last
  /// word is the page's padding, which is zero.
  static void gather_keys(const std::byte* page, std::int64_t at, const Tile& tile) {
    constexpr std::size_t row_bytes = 4 * page_tokens;
    std::uint32_t* to = tile.k_strip(at / strip_columns * strip_columns) + at % strip_columns;
    for (std::int64_t word = 0; word < tile.k_words; ++word, to += strip_columns) {
      if (page == nullptr) {
        std::memset(to, 0, row_bytes);
      } else {
        std::memcpy(to, page + static_cast<std::size_t>(word) * row_bytes, row_bytes);
      }
    }
  }

  void gather_values(const std::byte* page, std::int64_t at, const Tile& tile) const {
    const std::int64_t per_word = shape_.elements_per_word();
    for (std::int64_t strip = 0; strip < tile.sum_columns; strip += strip_columns) {
      const std::int64_t columns =
          page == nullptr ? 0 : std::min(strip_columns, shape_.padded_head_dim() - strip);
      for (std::int64_t word = 0; word < page_tokens / per_word; ++word) {
        std::uint32_t* to = tile.v_strip(strip) + (at / per_word + word) * strip_columns;
        if (columns > 0) {
          std::memcpy(to, page + (word * shape_.padded_head_dim() + strip) * 4,
                      static_cast<std::size_t>(columns) * 4);
        }
        std::memset(to + columns, 0, static_cast<std::size_t>(strip_columns - columns) * 4);
      }
    }
  }

  void clear_value(std::int64_t at, const Tile& tile) const {
    const std::int64_t per_word = shape_.elements_per_word();
    const std::uint32_t kept = per_word == 1 ? 0U : at % 2 == 0 ? 0xffff0000U : 0x0000ffffU;
    for (std::int64_t strip = 0; strip < tile.sum_columns; strip += strip_columns) {
      std::uint32_t* to = tile.v_strip(strip) + at / per_word * strip_columns;
      for (std::int64_t i = 0; i < strip_columns; ++i) to[i] &= kept;
    }
  }

  void attend_tile(const Job& job) {
    const Tile tile(shape_);
    const std::int64_t group = shape_.group_size();
    const std::int64_t position = position_of(job);
    const Visible visible{first_visible(position), position + job.num_rows};
    const simd::KvHeads kv =
        kv_heads_of(shape_, operands_.batch, *job.sequence, operands_.slab, job.first_head, 1);
    for (std::int64_t token = visible.first / tile_tokens * tile_tokens; token < visible.end;
         token += tile_tokens) {
      gather(kv, token, visible, tile);
      for (std::int64_t i = 0; i < group; ++i) {
        add_tile(job, i, token, std::min(tile_tokens, visible.end - token), tile);
      }
    }
    for (std::int64_t i = 0; i < group; ++i) {
      const std::int64_t head = job.first_head * group + i;
      const float* sink = sinks_at(head);
      for (std::int64_t r = 0; r < job.num_rows; ++r) {
        const std::int64_t at = i * tile_rows + r;
        float denominator = tile.denominator[at];
        if (sink != nullptr) denominator += simd::sink_weight(*sink, tile.maximum[at]);
        simd::store_attention_row(tile.sum + at * tile.sum_columns, denominator, shape_.head_dim,
                                  shape_.dtype, out_at(job.first_row + r, head));
      }
    }
  }

  /// `rows` of something `depth` wide, by a strip of keys or values.
  StripGemm product(std::int64_t rows, std::int64_t depth, const std::uint32_t* strip) const {
    StripGemm call{.dtype = shape_.dtype,
                   .rows = rows,
                   .depth = depth,
                   .b = reinterpret_cast<const std::byte*>(strip)};
    if (shape_.dtype == DType::f32) call.arithmetic = Bf16Arithmetic::portable;
    return call;
  }

  void set_rows(StripGemm& call, const std::byte* rows, std::int64_t stride) const {
    if (shape_.dtype == DType::f32) {
      call.wide_a = reinterpret_cast<const float*>(rows);
    } else {
      call.a = reinterpret_cast<const std::uint16_t*>(rows);
    }
    call.a_stride = stride;
  }

  /// One head of the job's rows against one tile of tokens, of which the first `num_tokens` count.
  void add_tile(const Job& job, std::int64_t head_in_group, std::int64_t first_token,
                std::int64_t num_tokens, const Tile& tile) const {
    const std::int64_t head = job.first_head * shape_.group_size() + head_in_group;
    const std::int64_t columns = (num_tokens + strip_columns - 1) / strip_columns * strip_columns;
    for (std::int64_t strip = 0; strip < columns; strip += strip_columns) {
      StripGemm call = product(job.num_rows, shape_.head_dim, tile.k_strip(strip));
      set_rows(call, q_at(job.first_row, head), shape_.q_size());
      call.c = tile.scores + strip;
      call.c_stride = tile_tokens;
      strip_gemm(call);
    }
    float* sum = tile.sum + head_in_group * tile_rows * tile.sum_columns;
    const bool wide =
        shape_.dtype == DType::f32 || fastest_bf16_arithmetic() != Bf16Arithmetic::dot_products;
    simd::softmax_tile({.rows = job.num_rows,
                        .columns = columns,
                        .scores = tile.scores,
                        .stride = tile_tokens,
                        .scale = attention_scale(shape_),
                        .first_position = position_of(job),
                        .first_token = first_token,
                        .sliding_window_tokens = shape_.sliding_window_tokens,
                        .weights = wide ? nullptr : tile.weights,
                        .rests = wide ? nullptr : tile.rests,
                        .maximum = tile.maximum + head_in_group * tile_rows,
                        .denominator = tile.denominator + head_in_group * tile_rows,
                        .sum = sum,
                        .sum_columns = tile.sum_columns});
    for (std::int64_t strip = 0; strip < tile.sum_columns; strip += strip_columns) {
      StripGemm call = product(job.num_rows, columns, tile.v_strip(strip));
      call.a_stride = tile_tokens;
      call.c = sum + strip;
      call.c_stride = tile.sum_columns;
      call.accumulate = true;
      if (wide) {
        call.wide_a = tile.scores;
        strip_gemm(call);
        continue;
      }
      for (const std::uint16_t* weights : {tile.weights, tile.rests}) {
        call.a = weights;
        strip_gemm(call);
      }
    }
  }

  const CpuContext& cpu_;
  const AttentionOperands& operands_;
  const DecoderShape& shape_;
  std::int64_t out_stride_;
  std::int64_t heads_per_job_;
  std::int64_t max_chunk_tokens_;
  std::vector<Job> jobs_;
  std::int64_t num_part_floats_ = 0;
  std::int64_t num_counters_ = 0;
  float* parts_ = nullptr;
  std::vector<std::atomic<std::int64_t>> chunks_done_;
};

}  // namespace

void attention_cpu(const CpuContext& cpu, const AttentionOperands& operands) {
  Attention(cpu, operands).run();
}

}  // namespace sluice
