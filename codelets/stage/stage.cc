#include "codelets/stage/stage.h"

#include <algorithm>
#include <array>
#include <utility>

#include "codelets/expert_join/expert_join.h"
#include "codelets/experts/experts.h"
#include "codelets/fc1/fc1.h"
#include "codelets/kv_store/attention_kv.h"
#include "codelets/qk/qk.h"
#include "codelets/qkv/qkv.h"
#include "codelets/residual/residual.h"
#include "codelets/router/router.h"
#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"
#include "codelets/runtime/recurring.h"
#include "codelets/runtime/stage_memory.h"
#include "codelets/shared_ffn/shared_ffn.h"
#include "codelets/sv/sv.h"

namespace sluice {
namespace {

/// How a range uses something that one sublayer writes and a later one reads.
struct Passing {
  bool produced, consumed;

  bool crosses() const { return produced != consumed; }
  bool inside() const { return produced && consumed; }
};

Passing q_of(const SublayerRange& range) {
  return {range.has(Sublayer::qkv), range.has(Sublayer::qk)};
}
Passing scores_of(const SublayerRange& range) {
  return {range.has(Sublayer::qk), range.has(Sublayer::sv)};
}
Passing context_of(const SublayerRange& range) {
  return {range.has(Sublayer::sv), range.has(Sublayer::out_proj)};
}
Passing h_of(const StageArgs& args) {
  if (args.has_experts()) return {false, false};
  return {args.range().has(Sublayer::fc1), args.range().has(Sublayer::fc2)};
}
/// What the router gives the experts.
Passing routing_of(const StageArgs& args) {
  if (!args.has_experts()) return {false, false};
  return {args.range().has(Sublayer::out_proj), args.range().has(Sublayer::fc2)};
}

/// Whether the FFN that all rows go through runs in the stage. Where the experts are tasks of their
/// own it is one, too: it may run beside them.
bool has_shared_ffn(const StageArgs& args) {
  return routing_of(args).inside() && args.mixture.shared_ffn;
}

bool reads_x(const SublayerRange& range) {
  return range.has(Sublayer::qkv) || range.has(Sublayer::fc1);
}
bool updates_x(const SublayerRange& range) {
  return range.has(Sublayer::out_proj) || range.has(Sublayer::fc2);
}
bool uses_batch(const SublayerRange& range) { return range.first <= Sublayer::sv; }
bool uses_vectors(const StageArgs& args) {
  const SublayerRange range = args.range();
  return range.has(Sublayer::qkv) || range.last >= Sublayer::out_proj ||
         (range.has(Sublayer::sv) && args.vectors.attention_sinks >= 0);
}

bool reads_weight(const StageArgs& args, LayerWeight weight) {
  if (weight == LayerWeight::router) return routing_of(args).produced;
  if (is_shared(weight))
    return has_shared_ffn(args) && (weight != LayerWeight::shared_gate || args.shape.gated_ffn);
  if (args.has_experts() && is_of_ffn(weight)) return false;  // they are in the chunks
  return args.range().has(sublayer_of(weight)) &&
         (weight != LayerWeight::gate || args.shape.gated_ffn);
}

/// Of the i-th layer, that the range reads.
std::int32_t num_chunks(const StageArgs& args, std::size_t i) {
  return routing_of(args).consumed ? args.chunks.at(i).count() : 0;
}

/// A layer's buffers.
struct LayerOperands {
  const float* vectors = nullptr;
  PerLayerWeight<Weight> weights;
  std::array<const std::byte*, most_chunks_in_stage> chunks{};  ///< of the experts
  KvBuffers kv;

  LayerOperands() = default;
  /// Of the i-th layer.
  LayerOperands(const StageArgs& args, std::size_t i, Buffers& buffers) {
    const SublayerRange range = args.range();
    const LayerWeightTypes& types = args.weights.at(i);
    vectors = buffers.take_if<float>(uses_vectors(args));
    for (const LayerWeight weight : all_layer_weights)
      weights[weight] = {types[weight], buffers.take_if<std::byte>(reads_weight(args, weight))};
    for (std::int32_t chunk = 0; chunk < num_chunks(args, i); ++chunk)
      chunks.at(static_cast<std::size_t>(chunk)) = buffers.take<std::byte>();
    kv = KvAccess(args.kv, range).take_from(buffers);
  }
};

struct StageOperands;

/// What the layers of a stage share.
struct StageData {
  using Handles = StageHandles;
  using Operands = StageOperands;

  template <typename Data>
  static void list(const StageArgs& args, Data& data);
};

/// The buffers of a running stage, and its scratch.
struct StageOperands {
  BatchView batch{nullptr};
  float* x = nullptr;
  const float* rope = nullptr;
  std::byte* q = nullptr;
  float* scores = nullptr;
  std::byte* context = nullptr;
  std::byte* h = nullptr;
  std::byte* normed = nullptr;
  ExpertChoice* routing = nullptr;
  float* expert_sum = nullptr;
  std::array<LayerOperands, most_layers_of_task> layers;  ///< args.tag.num_layers of them

  template <typename Context>
  StageOperands(const Context& device, const StageArgs& args, Buffers buffers) {
    BufferTaker taker(*this, buffers);
    StageData::list(args, taker);
    for (std::size_t i = 0; i < static_cast<std::size_t>(args.tag.num_layers); ++i)
      layers.at(i) = LayerOperands(args, i, buffers);
    take_scratch(device, args);
  }

 private:
  template <typename Context>
  void take_scratch(const Context& device, const StageArgs& args) {
    const DecoderShape& shape = args.shape;
    constexpr std::size_t alignment = 256;  // what CUDA's memory has
    const auto bytes = [&](bool needed, std::int64_t width) {
      if (!needed) return std::size_t{0};
      return (static_cast<std::size_t>(args.tag.num_tokens * width) * size_bytes(shape.dtype) +
              alignment - 1) /
             alignment * alignment;
    };
    const std::size_t q_bytes = bytes(q_of(args.range()).inside(), shape.q_size());
    const std::size_t context_bytes =
        bytes(context_of(args.range()).inside(), activation_stride(shape.q_size(), shape.dtype));
    const std::size_t h_bytes =
        bytes(h_of(args).inside(), activation_stride(shape.ffn_size, shape.dtype));
    const bool has_experts = routing_of(args).inside();
    const std::size_t normed_bytes =
        bytes(has_experts, activation_stride(shape.hidden_size, shape.dtype));
    const auto four_bytes = [&](std::int64_t width) {
      if (!has_experts) return std::size_t{0};
      return (static_cast<std::size_t>(args.tag.num_tokens * width) * 4 + alignment - 1) /
             alignment * alignment;
    };
    const std::size_t routing_bytes = four_bytes(2 * std::int64_t{args.mixture.experts_per_token});
    const std::size_t sum_bytes = four_bytes(shape.hidden_size);
    const std::size_t all_bytes =
        q_bytes + context_bytes + h_bytes + normed_bytes + routing_bytes + sum_bytes;
    std::byte* memory = nullptr;
    if constexpr (is_gpu<Context>) {
      memory = gpu_kernels().stage_memory(device, all_bytes);
    } else {
      memory = stage_memory(device, all_bytes);
    }
    if (q_bytes != 0) q = memory;
    if (context_bytes != 0) context = memory + q_bytes;
    if (h_bytes != 0) h = memory + q_bytes + context_bytes;
    if (!has_experts) return;
    normed = memory + q_bytes + context_bytes + h_bytes;
    routing = reinterpret_cast<ExpertChoice*>(normed + normed_bytes);
    expert_sum = reinterpret_cast<float*>(normed + normed_bytes + routing_bytes);
  }
};

template <typename Data>
void StageData::list(const StageArgs& args, Data& data) {
  const SublayerRange range = args.range();
  const auto passes = [&](const Passing& passing, auto handle, auto operand) {
    if (!passing.crosses()) return;
    passing.produced ? data.writes(handle, operand) : data.reads(handle, operand);
  };
  data.reads_if(uses_batch(range), &Handles::batch, &Operands::batch);
  if (updates_x(range)) {
    data.updates(&Handles::x, &Operands::x);
  } else {
    data.reads_if(reads_x(range), &Handles::x, &Operands::x);
  }
  data.reads_if(range.has(Sublayer::qkv) && args.shape.rope, &Handles::rope, &Operands::rope);
  passes(q_of(range), &Handles::q, &Operands::q);
  passes(scores_of(range), &Handles::scores, &Operands::scores);
  passes(context_of(range), &Handles::context, &Operands::context);
  passes(h_of(args), &Handles::h, &Operands::h);
  passes(routing_of(args), &Handles::normed, &Operands::normed);
  passes(routing_of(args), &Handles::routing, &Operands::routing);
}

SublayerClock clock_of(const CpuContext& cpu, Phase phase) { return {cpu.times, phase}; }
GpuSublayerClock clock_of(const cuda::Context& gpu, Phase phase) { return {gpu, phase}; }

template <typename Context>
void run_qkv(const Context& context, const StageArgs& args, const StageOperands& at,
             const LayerOperands& layer) {
  const QkvArgs qkv{args.tag, args.shape, args.vectors, args.kv,
                    layer.weights[LayerWeight::qkv].type};
  // Elsewhere only attention has the slab.
  std::byte* slab = at_home(args.kv) ? layer.kv.slab : nullptr;
  const QkvOperands operands{&qkv,    at.batch,      at.x,
                             at.rope, layer.vectors, layer.weights[LayerWeight::qkv],
                             at.q,    slab,          layer.kv.new_kv};
  if constexpr (is_gpu<Context>) {
    gpu_kernels().qkv(context, operands);
  } else {
    qkv_cpu(context, operands);
  }
}

/// What a range has of sublayers 2 and 3.
Sublayer attention_part(const SublayerRange& range) {
  if (scores_of(range).inside()) return Sublayer::attention;
  return range.has(Sublayer::qk) ? Sublayer::qk : Sublayer::sv;
}

void attend(const CpuContext& cpu, const AttentionArgs& args, Sublayer part,
            const StageOperands& at, const LayerOperands& layer) {
  const AttentionKv kv(cpu, args.shape, args.kv, at.batch, layer.kv.slab, layer.kv.new_kv);
  if (part == Sublayer::attention) {
    attention_cpu(cpu, {&args, kv.batch(), at.q, kv.slab(), at.context, nullptr, layer.vectors});
  } else if (part == Sublayer::qk) {
    qk_cpu(cpu, {&args, kv.batch(), at.q, kv.slab(), at.scores});
  } else {
    sv_cpu(cpu, {&args, kv.batch(), at.scores, kv.slab(), at.context, nullptr, layer.vectors});
  }
}

/// A GPU's kernels find the KV themselves.
void attend(const cuda::Context& gpu, const AttentionArgs& args, Sublayer part,
            const StageOperands& at, const LayerOperands& layer) {
  const KvBuffers& kv = layer.kv;
  if (part == Sublayer::attention) {
    gpu_kernels().attention(gpu,
                            {&args, at.batch, at.q, kv.slab, at.context, kv.new_kv, layer.vectors});
  } else if (part == Sublayer::qk) {
    gpu_kernels().qk(gpu, {&args, at.batch, at.q, kv.slab, at.scores, kv.new_kv});
  } else {
    gpu_kernels().sv(gpu,
                     {&args, at.batch, at.scores, kv.slab, at.context, kv.new_kv, layer.vectors});
  }
}

/// Sublayer 4 or 6, whose input is attention's output or h.
template <typename Context>
void run_residual(const Context& context, const StageArgs& args, Sublayer sublayer,
                  const StageOperands& at, const LayerOperands& layer) {
  const bool is_out_proj = sublayer == Sublayer::out_proj;
  const Weight& weight = layer.weights[is_out_proj ? LayerWeight::out : LayerWeight::fc2];
  const ResidualArgs residual{args.tag, args.shape, ResidualVectors::of(args.vectors, sublayer),
                              weight.type};
  const ResidualOperands operands{&residual, is_out_proj ? at.context : at.h, layer.vectors, weight,
                                  at.x};
  if constexpr (is_gpu<Context>) {
    gpu_kernels().residual(context, operands);
  } else {
    residual_cpu(context, operands);
  }
}

template <typename Context>
void run_fc1(const Context& context, const StageArgs& args, const StageOperands& at,
             const LayerOperands& layer) {
  const Fc1Args fc1{args.tag, args.shape, args.vectors, layer.weights[LayerWeight::fc1].type,
                    layer.weights[LayerWeight::gate].type};
  const Fc1Operands operands{
      &fc1, at.x, layer.vectors, layer.weights[LayerWeight::fc1], layer.weights[LayerWeight::gate],
      at.h};
  if constexpr (is_gpu<Context>) {
    gpu_kernels().fc1(context, operands);
  } else {
    fc1_cpu(context, operands);
  }
}

template <typename Context>
void run_router(const Context& context, const StageArgs& args, const StageOperands& at,
                std::size_t i) {
  const LayerOperands& layer = at.layers.at(i);
  const Weight& weight = layer.weights[LayerWeight::router];
  const RouterArgs router{args.tag_of(i), args.shape, args.vectors, weight.type, args.mixture};
  const RouterOperands operands{&router, at.x, layer.vectors, weight, at.normed, at.routing};
  if constexpr (is_gpu<Context>) {
    gpu_kernels().router(context, operands);
  } else {
    router_cpu(context, operands);
  }
}

template <typename Context>
void run_shared_ffn(const Context& context, const StageArgs& args, const StageOperands& at,
                    std::size_t i) {
  const PerLayerWeight<Weight>& weights = at.layers.at(i).weights;
  const Weight& gate = weights[LayerWeight::shared_gate];
  const Weight& fc1 = weights[LayerWeight::shared_fc1];
  const Weight& fc2 = weights[LayerWeight::shared_fc2];
  const SharedFfnArgs shared{args.tag_of(i), args.shape, gate.type, fc1.type, fc2.type};
  const SharedFfnOperands operands{&shared, at.normed, gate, fc1, fc2, at.x};
  if constexpr (is_gpu<Context>) {
    gpu_kernels().shared_ffn(context, operands);
  } else {
    shared_ffn_cpu(context, operands);
  }
}

/// On the CPU; a GPU's are tasks of their own. They keep their times themselves.
void run_experts(const CpuContext& cpu, const StageArgs& args, const StageOperands& at,
                 std::size_t i, SublayerClock& clock) {
  const LayerOperands& layer = at.layers.at(i);
  const ExpertsArgs experts{args.tag_of(i), args.shape, args.mixture,
                            ExpertLayout::of(args.weights.at(i), args.mixture), args.chunks.at(i)};
  ExpertsOperands operands{
      .args = &experts, .normed = at.normed, .routing = at.routing, .sum = at.expert_sum};
  std::ranges::copy(layer.chunks, operands.chunks.begin());
  experts_cpu(cpu, operands);
  const ExpertJoinArgs join{args.tag, args.shape, args.vectors};
  clock.restart();
  expert_join_cpu(cpu, {.args = &join, .sum = at.expert_sum, .vectors = layer.vectors, .x = at.x});
  clock.end_of(Sublayer::expert_join);
}
void run_experts(const cuda::Context& /*gpu*/, const StageArgs& args, const StageOperands& /*at*/,
                 std::size_t /*i*/, GpuSublayerClock& /*clock*/) {
  throw Error("layer {}'s experts are part of a GPU's stage", args.tag.layer);
}

template <typename Context>
void run_layers(const Context& context, const StageArgs& args, const StageOperands& at) {
  auto clock = clock_of(context, args.tag.phase);
  const SublayerRange range = args.range();
  for (std::int16_t i = 0; i < args.tag.num_layers; ++i) {
    const LayerOperands& layer = at.layers.at(static_cast<std::size_t>(i));
    if (range.has(Sublayer::qkv)) {
      run_qkv(context, args, at, layer);
      clock.end_of(Sublayer::qkv);
    }
    if (range.has(Sublayer::qk) || range.has(Sublayer::sv)) {
      const AttentionArgs attention{args.tag, args.layer_shape(i), args.kv, args.vectors};
      attend(context, attention, attention_part(range), at, layer);
      clock.end_of(attention_part(range));
    }
    if (range.has(Sublayer::out_proj)) {
      run_residual(context, args, Sublayer::out_proj, at, layer);
      clock.end_of(Sublayer::out_proj);
    }
    if (args.has_experts()) {
      if (!routing_of(args).produced) continue;
      run_router(context, args, at, static_cast<std::size_t>(i));
      clock.end_of(Sublayer::router);
      if (!routing_of(args).consumed) continue;
      if (has_shared_ffn(args)) {
        run_shared_ffn(context, args, at, static_cast<std::size_t>(i));
        clock.end_of(Sublayer::shared_ffn);
      }
      run_experts(context, args, at, static_cast<std::size_t>(i), clock);
      continue;
    }
    if (range.has(Sublayer::fc1)) {
      run_fc1(context, args, at, layer);
      clock.end_of(Sublayer::fc1);
    }
    if (range.has(Sublayer::fc2)) {
      run_residual(context, args, Sublayer::fc2, at, layer);
      clock.end_of(Sublayer::fc2);
    }
  }
}

/// As a CUDA graph where the run makes some. The simulator runs no kernels.
[[maybe_unused]] void run_recurring(const cuda::Context& gpu, const StageArgs& args,
                                    const StageOperands& at) {
  StageArgs sizes = args;
  const TaskTag& tag = args.tag;
  sizes.tag.context_tokens = recurring_context_tokens(tag.context_tokens, tag.num_sequences);
  TaskKey key;
  key.add(sizes.shape);
  key.add(sizes.vectors);
  key.add(sizes.kv);
  key.add(sizes.window_tokens);
  key.add(sizes.weights);
  key.add(sizes.mixture);
  key.add(sizes.range());
  key.add(tag.num_layers);
  key.add(tag.num_tokens);
  key.add(tag.num_sequences);
  key.add(sizes.tag.context_tokens);
  key.add(at);
  gpu_kernels().run_in_graph(gpu, std::move(key), [&] { run_layers(gpu, sizes, at); });
}

struct Run {
  template <typename Context>
  void operator()(const Context& context, const StageArgs& args, Buffers buffers) const {
    const StageOperands at(context, args, buffers);
    if constexpr (is_gpu<Context>) {
      if (args.recurs) return run_recurring(context, args, at);
    }
    run_layers(context, args, at);
  }
};

/// One codelet a range: the range is part of its name, hence of its performance model.
const Codelet<StageArgs>& codelet_of(const StageArgs& args) {
  constexpr std::size_t count = 6;
  using ByRange = std::array<std::array<Codelet<StageArgs>, count>, count>;
  const auto make = [](const char* ending) {
    ByRange made;
    for (std::size_t first = 0; first < count; ++first) {
      for (std::size_t last = first; last < count; ++last) {
        made.at(first).at(last) = Codelet<StageArgs>::with_all<Run>(
            fmt::format("stage_{}_{}{}", first + 1, last + 1, ending).c_str());
      }
    }
    return made;
  };
  static const ByRange dense = make("");
  static const ByRange with_experts = make("_experts");
  const SublayerRange range = args.range();
  return (routing_of(args).produced ? with_experts : dense)
      .at(static_cast<std::size_t>(range.first) - 1)
      .at(static_cast<std::size_t>(range.last) - 1);
}

/// Of the range's first weight, after which the codelet's variant is called.
WeightFormat first_format(const StageArgs& args) {
  for (const LayerWeight weight : {LayerWeight::qkv, LayerWeight::out, LayerWeight::fc1}) {
    if (sublayer_of(weight) >= args.range().first) return args.weights.front()[weight].format;
  }
  return args.weights.front()[LayerWeight::fc2].format;
}

void submit_single(const StageArgs& args, const StageHandles& handles) {
  const AttentionArgs attention{args.tag, args.layer_shape(0), args.kv, args.vectors};
  const LayerHandles& layer = handles.layers.front();
  const LayerWeightTypes& types = args.weights.front();
  switch (args.range().first) {
    case Sublayer::qkv:
      return submit_qkv({args.tag, args.shape, args.vectors, args.kv, types[LayerWeight::qkv]},
                        {handles.batch, handles.x, handles.rope, layer.vectors,
                         *layer.matrices[LayerWeight::qkv], handles.q, layer.slab, layer.new_kv});
    case Sublayer::qk:
      return submit_qk(attention,
                       {handles.batch, handles.q, layer.slab, layer.new_kv, handles.scores});
    case Sublayer::sv:
      return submit_sv(attention, {handles.batch, handles.scores, layer.slab, layer.new_kv,
                                   handles.context, layer.vectors});
    case Sublayer::out_proj:
    case Sublayer::fc2: {
      const bool is_out_proj = args.range().first == Sublayer::out_proj;
      const LayerWeight weight = is_out_proj ? LayerWeight::out : LayerWeight::fc2;
      return submit_residual({args.tag, args.shape,
                              ResidualVectors::of(args.vectors, args.range().first), types[weight]},
                             {is_out_proj ? handles.context : handles.h, layer.vectors,
                              *layer.matrices[weight], handles.x});
    }
    case Sublayer::fc1:
      return submit_fc1(
          {args.tag, args.shape, args.vectors, types[LayerWeight::fc1], types[LayerWeight::gate]},
          {handles.x, layer.vectors, *layer.matrices[LayerWeight::fc1],
           *layer.matrices[LayerWeight::gate], handles.h});
    default:
      throw Error("sublayer {} is no part of a layer", static_cast<int>(args.range().first));
  }
}

}  // namespace

void submit_stage(const StageArgs& args, const StageHandles& handles) {
  const SublayerRange range = args.range();
  if (range.is_single()) return submit_single(args, handles);
  if (range == SublayerRange{Sublayer::qk, Sublayer::sv}) {
    TaskTag tag = args.tag;
    tag.sublayer = tag.last_sublayer = Sublayer::attention;
    const LayerHandles& layer = handles.layers.front();
    return submit_attention(
        {tag, args.layer_shape(0), args.kv, args.vectors},
        {handles.batch, handles.q, layer.slab, layer.new_kv, handles.context, layer.vectors});
  }
  AccessList accesses{};
  AccessMaker maker(handles, accesses);
  StageData::list(args, maker);
  for (const LayerHandles& layer : handles.layers) {
    accesses.add_if(uses_vectors(args), reads(layer.vectors));
    for (const LayerWeight weight : all_layer_weights)
      accesses.add_if(reads_weight(args, weight), reads(*layer.matrices[weight]));
    if (routing_of(args).consumed) {
      for (const DataHandle& chunk : layer.chunks) accesses.add(reads(chunk));
    }
    KvAccess(args.kv, range).add_to(accesses, layer.slab, layer.new_kv);
  }
  codelet_of(args).submit(args.shape.dtype, args, accesses, first_format(args));
}

}  // namespace sluice
