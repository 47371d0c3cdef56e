#pragma once

#include <string>
#include <vector>

#include "models/make_model.h"
#include "models/model.h"
#include "models/quantized/compressed_tensors_writer.h"
#include "tests/support/temporary_folder.h"

namespace sluice::test {

/// A small model of random weights, quantised, in a folder of its own.
class QuantizedModel {
 public:
  static constexpr std::int32_t vocab_size = 331;

  /// `head` may be null: plain.
  QuantizedModel(const char* layers, const char* head, std::vector<TensorRole> keep = {}) {
    ModelConfig config = find_shape("llama-3.2-1b");
    config.num_layers = 3;
    config.hidden_size = config.embed_size = 256;
    config.num_heads = 8;
    config.num_kv_heads = 2;
    config.head_dim = 32;
    config.ffn_size = 384;
    config.vocab_size = vocab_size;
    config.max_positions = 256;
    config.tied_embeddings = false;
    write_model(config, folder_.file("plain"), {.dtype = DType::f32, .seed = 11});
    QuantizeModelOptions options;
    options.layers = parse_weight_format(layers);
    if (head != nullptr) options.head = parse_weight_format(head);
    options.keep = std::move(keep);
    write_compressed_tensors(open_model(folder_.file("plain")), path(), options);
  }

  std::string path() const { return folder_.file("coded"); }

 private:
  TemporaryFolder folder_;
};

}  // namespace sluice::test
