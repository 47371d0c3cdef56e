"""Faults that scripts/mutate puts into the code, one at a time. Each is a mistake that a change might make, and which
some fast test is to see. `search` stands once in the file; `tests` are the programs to run, with a filter where the
whole program takes long."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    name: str
    file: str
    search: str
    replace: str
    tests: tuple[str, ...]


KERNELS = ("codelets_test",)
GRAPHS = ("graphs_test", "kv_path_test")
ENGINE = ("engine_test",)
MODELS = ("models_test",)
TOKENIZERS = ("tokenizer_test",)
COSTS = ("perfmodels_test",)

FAULTS = [
    # Kernels
    Fault("rope-sign", "codelets/kernels/simd.cc",
          "hn::StoreU(hn::Add(hn::Mul(high, c), hn::Mul(low, s)), d, x + half + i);",
          "hn::StoreU(hn::Sub(hn::Mul(high, c), hn::Mul(low, s)), d, x + half + i);", KERNELS),
    Fault("rope-tail-left-out", "codelets/kernels/simd.cc", "for (; i < half; ++i) {\n    const float low = x[i];",
          "for (; i + 1 < half; ++i) {\n    const float low = x[i];", KERNELS),
    Fault("rope-of-q-only", "codelets/qkv/qkv_cpu.cc", "head < shape.num_heads + shape.num_kv_heads; ++head",
          "head < shape.num_heads; ++head", KERNELS),
    Fault("rope-angle-of-next-position", "codelets/embedding/embedding_cpu.cc",
          "static_cast<float>(position) * operands.frequencies[i]",
          "static_cast<float>(position + 1) * operands.frequencies[i]", KERNELS),
    Fault("learned-position-without-offset", "codelets/embedding/embedding_cpu.cc",
          "table_row(operands.positions, row.position + args.position_offset, hidden,",
          "table_row(operands.positions, row.position, hidden,", KERNELS),
    Fault("kv-swapped", "codelets/kernels/kv_page.h", "const From* v = k + shape.kv_size();",
          "const From* v = k;", KERNELS),
    Fault("kv-into-first-page", "codelets/kernels/kv_page.h",
          "batch.pages(sequence)[static_cast<std::size_t>(row.position / page_tokens)];",
          "batch.pages(sequence)[static_cast<std::size_t>(0 * row.position / page_tokens)];", KERNELS),
    Fault("window-one-too-wide", "codelets/kernels/attention_simd.h",
          "window > 0 && position >= window ? position - window + 1 : 0",
          "window > 0 && position >= window ? position - window : 0", KERNELS),
    Fault("tile-sees-one-token-too-many", "codelets/kernels/attention_simd.cc",
          "const std::int64_t high = position + 1 - tile.first_token;",
          "const std::int64_t high = position + 2 - tile.first_token;", KERNELS),
    Fault("attention-scale", "codelets/attention/attention.h",
          "return 1.0F / std::sqrt(static_cast<float>(shape.head_dim));",
          "return 1.0F / static_cast<float>(shape.head_dim);", KERNELS),
    Fault("merge-without-last-chunk", "codelets/kernels/attention_simd.cc",
          "for (std::int64_t p = 1; p < num_parts; ++p) {\n      const PartialAttention from = part(p);",
          "for (std::int64_t p = 1; p + 1 < num_parts; ++p) {\n      const PartialAttention from = part(p);", KERNELS),
    Fault("merge-without-rescaling", "codelets/kernels/attention_simd.cc",
          "scale_row(first_factor, kv.padded_head_dim, sum);", "scale_row(1.0F, kv.padded_head_dim, sum);", KERNELS),
    Fault("chunk-starts-one-late", "codelets/attention/attention_cpu.cc",
          "query.first_token = std::max(query.first_token, begin);",
          "query.first_token = std::max(query.first_token, job.chunk > 0 ? begin + 1 : begin);", KERNELS),
    Fault("tile-of-wrong-head", "codelets/attention/attention_cpu.cc",
          "const std::int64_t head = job.first_head * shape_.group_size() + head_in_group;",
          "const std::int64_t head = job.first_head * shape_.group_size();", KERNELS),
    Fault("norm-place-ignored", "codelets/kernels/norm.cc", "if (shape.norm_place != NormPlace::post) return;",
          "if (shape.norm_place == NormPlace::post) return;", KERNELS + GRAPHS),
    Fault("fc1-without-bias", "codelets/fc1/fc1_cpu.cc", ".bias = VectorLayout::at(operands.vectors, at.fc1_bias),\n",
          ".bias = nullptr,\n", KERNELS),
    Fault("gate-and-up-swapped", "codelets/fc1/fc1_cpu.cc", ".packed_gate = operands.gate,",
          ".packed_gate = operands.weight,", KERNELS),
    Fault("residual-overwritten", "codelets/out_proj/out_proj_cpu.cc", ".epilogue = Epilogue::accumulate,",
          ".epilogue = Epilogue::store,", KERNELS),
    Fault("head-without-final-norm-bias", "codelets/lm_head/lm_head_cpu.cc",
          "args.norm_bias && weight != nullptr ? weight + hidden : nullptr",
          "args.norm_bias && weight != nullptr ? nullptr : nullptr", KERNELS),
    # Sampling
    Fault("penalty-wrong-for-negative-logits", "codelets/sampling/sampling.h",
          "return logit > 0 ? logit / penalty : logit * penalty;", "return logit / penalty;", KERNELS),
    Fault("top-k-one-too-many", "codelets/sampling/sampling_cpu.cc", "sorted.begin() + (k - 1), sorted.end()",
          "sorted.begin() + k, sorted.end()", KERNELS),
    Fault("top-p-drops-the-one-that-crosses", "codelets/sampling/sampling_cpu.cc",
          "before += static_cast<double>(probabilities[static_cast<std::size_t>(sorted[kept++])]);",
          "before += static_cast<double>(probabilities[static_cast<std::size_t>(sorted[kept])]);\n"
          "      if (kept == 0 || before <= static_cast<double>(row.top_p)) ++kept;\n      else break;", KERNELS),
    Fault("draw-ignores-the-step", "codelets/sampling/sampling.h", "(static_cast<std::uint64_t>(row.step) + 1)",
          "(static_cast<std::uint64_t>(0 * row.step) + 1)", KERNELS + ENGINE),
    Fault("greedy-takes-the-last-of-equals", "codelets/sampling/sampling_cpu.cc",
          "if (best < 0 || logit > best_logit) {", "if (best < 0 || logit >= best_logit) {", KERNELS),
    Fault("seen-tokens-kept-for-the-next-request", "codelets/sampling/sampling_cpu.cc",
          "if (sequence.fresh != 0) std::fill", "if (sequence.fresh > 1) std::fill", KERNELS + ENGINE),
    # Batches, KV and graphs
    Fault("joined-batch-keeps-rows-of-the-first", "codelets/runtime/batch.cc", "row.sequence += first_sequence;",
          "row.sequence += 0 * first_sequence;", KERNELS + GRAPHS + ENGINE),
    Fault("joined-batch-pages-of-the-first", "codelets/runtime/batch.cc", "sequence.first_page += first_page;",
          "sequence.first_page += 0 * first_page;", KERNELS + GRAPHS + ENGINE),
    Fault("logits-of-the-first-row", "codelets/runtime/batch.cc",
          "(logits == LogitRows::last && i == num_tokens - 1)", "(logits == LogitRows::last && i == 0)",
          KERNELS + GRAPHS + ENGINE),
    Fault("pages-given-back-twice", "graphs/kv_cache.cc",
          "free_pages_.resize(free_pages_.size() - static_cast<std::size_t>(count));",
          "free_pages_.resize(free_pages_.size() - static_cast<std::size_t>(count > 1 ? count - 1 : count));",
          GRAPHS + ENGINE),
    Fault("last-layer-left-out", "graphs/decoder_graph.cc",
          "layer < model_.config().num_layers; layer = next) {",
          "layer + 1 < model_.config().num_layers; layer = next) {", GRAPHS),
    Fault("parts-share-one-kv", "graphs/decoder_graph.cc", ".slab = cohorts_[rows.cohort].slab(layer),\n",
          ".slab = cohorts_[0].slab(layer),\n", GRAPHS + ENGINE),
    Fault("penalty-of-the-first-part-only", "graphs/decoder_graph.cc",
          "const bool track_seen = std::any_of(parts.begin(), parts.end(),",
          "const bool track_seen = std::any_of(parts.begin(), parts.begin() + 1,", GRAPHS + ENGINE),
    # The engine
    Fault("second-eos-ignored", "engine/generator.cc",
          "const bool is_eos = std::find(eos.begin(), eos.end(), token) != eos.end();",
          "const bool is_eos = !eos.empty() && eos.front() == token;", ENGINE),
    Fault("one-token-too-many", "engine/generator.cc",
          "if (static_cast<std::int64_t>(sequence.token_ids.size()) == sequence.max_new_tokens) {",
          "if (static_cast<std::int64_t>(sequence.token_ids.size()) == sequence.max_new_tokens + 1) {", ENGINE),
    Fault("prompt-piece-draws", "engine/generator.cc", "draws = tokens.size() == rest.size();",
          "draws = tokens.size() <= rest.size();", ENGINE),
    Fault("slots-leak", "engine/generator.cc", "  free_slots_.push_back(sequence.slot);\n", "", ENGINE),
    Fault("seed-upper-half-lost", "engine/generator.cc",
          ".seed_high = static_cast<std::uint32_t>(params.seed >> 32),", ".seed_high = 0,", ENGINE),
    Fault("stop-text-across-tokens-missed", "engine/text_output.cc",
          "return release(begin_of_held_back());", "return release(pending_.text.size());", ENGINE),
    Fault("resume-keeps-a-cut-line", "engine/output_file.cc", "text.resize(whole);  // what follows",
          "// what follows", ENGINE),
    # Models and tokenizers
    Fault("safetensors-hole-accepted", "models/safetensors.cc", "if (tensor->begin != position) {",
          "if (tensor->begin < position) {", MODELS),
    Fault("safetensors-offset", "models/safetensors.cc", "subspan(data_offset_ + tensor.begin,",
          "subspan(data_offset_ - kLengthBytes + tensor.begin,", MODELS),
    Fault("bpe-rightmost-of-equals", "models/tokenizers/bpe.cc",
          "(best == nullptr || merge->rank < best->rank)", "(best == nullptr || merge->rank <= best->rank)", TOKENIZERS),
    Fault("bpe-heap-forgets-the-left-neighbour", "models/tokenizers/bpe.cc", "    push(left.previous);\n", "",
          TOKENIZERS),
    Fault("added-token-shortest-match", "models/tokenizers/added_tokens.cc",
          "if (token >= 0) best = {token, i + 1};", "if (token >= 0 && best.first < 0) best = {token, i + 1};",
          TOKENIZERS),
    Fault("byte-fallback-digits-swapped", "models/tokenizers/decoder.cc", "high * 16 + low", "low * 16 + high",
          TOKENIZERS),
    # Costs, plans and loading
    Fault("kv-counted-once", "perfmodels/work.cc",
          "return 2 * model.kv_size() * static_cast<double>(model.kv_element_bytes);",
          "return model.kv_size() * static_cast<double>(model.kv_element_bytes);", COSTS),
    Fault("window-forgets-the-rows", "perfmodels/work.cc", "std::min(all, window + shape.rows - 1)",
          "std::min(all, window)", COSTS),
    Fault("gate-not-counted", "perfmodels/work.cc", "return experts * hidden * ffn * (model.gated_ffn ? 2 : 1);",
          "return experts * hidden * ffn;", COSTS),
    Fault("curve-linear", "perfmodels/curve.cc",
          "return {above - 1, above, (std::log(x) - from) / (std::log(axis[above]) - from)};",
          "return {above - 1, above, (x - std::exp(from)) / (axis[above] - axis[above - 1])};", COSTS),
    Fault("residual-crosses-for-nothing", "perfmodels/layer_cost.cc",
          "if (sublayer == Sublayer::fc2 && device != p[Sublayer::out_proj])",
          "if (sublayer == Sublayer::fc2 && device != p[Sublayer::fc1])", COSTS),
    Fault("values-do-not-hold-up-weights", "perfmodels/timeline.cc", "load.end += seconds;  // it stops meanwhile",
          "load.end += 0 * seconds;  // it stops meanwhile", COSTS),
    Fault("weights-one-unit-late", "perfmodels/timeline.cc",
          "if (++unit_passed_[unit] == chains_.size() && unit + 2 < unit_passed_.size())\n      load(unit + 2,",
          "if (++unit_passed_[unit] == chains_.size() && unit + 3 < unit_passed_.size())\n      load(unit + 3,", COSTS),
    Fault("direct-file-tail-left-out", "base/direct_file.cc",
          "if (direct_size < size)\n    read_all(cached_, offset + direct_size, size - direct_size, to + direct_size);",
          "", ("base_test",)),
    Fault("disk-piece-offset", "codelets/runtime/disk_node.cc", "extent.offset_ + offset + done,",
          "extent.offset_ + offset,", ("disk_node_test",)),
]
