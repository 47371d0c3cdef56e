#pragma once

#include <cstdint>

namespace sluice {

/// LIA Table 1's six sublayers and what stands around them. Values 1..6 are LIA's numbers.
enum class Sublayer : std::uint8_t {
  embedding = 0,
  qkv = 1,
  qk = 2,
  sv = 3,
  out_proj = 4,
  fc1 = 5,
  fc2 = 6,
  attention = 7,  ///< qk and sv as one flash-style stage
  lm_head = 8,
  sampling = 9,
  kv_store = 10,  ///< new tokens' KV into the slab, where sublayers 1 to 3 do not all run beside it
  attention_join = 11,  ///< what the parts of a sub-batch attended apart, as one
  select_rows = 12,     ///< before the last layer's sublayer 4: the rows that tokens are drawn from
  kv_move = 13,         ///< pages of KV that go to another tier, out of a slab or into one
  logprobs = 14,        ///< of drawn tokens, or of a prompt's
  router = 15,          ///< which experts of a mixture each row goes through
  shared_ffn = 16,      ///< an FFN that all rows go through beside their experts
  expert_join = 17,     ///< what the experts give, added to the hidden states
};

constexpr Sublayer last_sublayer_value = Sublayer::expert_join;

/// KV is kept in pages of so many tokens.
constexpr std::int64_t page_tokens = 16;

enum class Phase : std::uint8_t { prefill, decode };

/// What computes. The values are LIA's p (section 5.1): 1 = CPU, 0 = GPU.
enum class Device : std::uint8_t { gpu = 0, cpu = 1 };

/// Where data lives: GPU memory, the CPUs' memory, memory behind CXL, a disk.
enum class Tier : std::uint8_t { hbm, ddr, cxl, disk };

/// What a task is for; the first member of every codelet's argument struct, so that a scheduling
/// policy finds it at `task->cl_arg`.
struct TaskTag {
  static constexpr std::uint32_t expected_magic = 0x51a1ce04;
  std::uint32_t magic = expected_magic;
  std::int32_t layer = -1;  ///< -1 outside of the layers
  Sublayer sublayer = Sublayer::embedding;
  Sublayer last_sublayer = Sublayer::embedding;  ///< of a stage; of any other task the same one
  Phase phase = Phase::prefill;
  Device device = Device::cpu;  ///< where the policy's placement wants it
  std::int16_t sub_batch = 0;
  std::int16_t num_layers = 1;  ///< of a stage of whole layers: `layer` and those behind it
  std::int64_t iteration = 0;
  std::int64_t num_tokens = 0;  ///< rows that this task computes
  std::int64_t context_tokens =
      0;  ///< KV tokens that the sub-batch's attention reads, summed over sequences
  std::int64_t num_sequences = 0;
  std::int64_t num_logit_rows = 0;  ///< rows that the LM head computes
  std::int64_t num_experts = 0;     ///< of a task with some of a mixture's experts; else 0
  bool experts_are_hot = false;     ///< of such a task: MemoryPlan::hot_experts
  /// Its iteration has prompts: processors run it by their prefill plan, whatever its phase.
  bool beside_prompts = false;
};

}  // namespace sluice
