#include "models/embedded.h"

#include <array>

// The assembler reads the files. CMake gives SLUICE_EMBEDDED_DIR, and a rebuild when they change.
#define SLUICE_EMBED(symbol, file)                                           \
  asm(".pushsection .rodata\n"                                               \
      ".balign 64\n"                                                         \
      ".global " #symbol "\n" #symbol                                        \
      ":\n"                                                                  \
      ".incbin \"" SLUICE_EMBEDDED_DIR "/" file                              \
      "\"\n"                                                                 \
      ".global " #symbol "_end\n" #symbol                                    \
      "_end:\n"                                                              \
      ".byte 0\n"                                                            \
      ".popsection\n");                                                      \
  extern "C" const std::byte symbol[] __attribute__((visibility("hidden"))); \
  extern "C" const std::byte symbol##_end[] __attribute__((visibility("hidden")));

SLUICE_EMBED(sluice_tiny_config, "config.json")
SLUICE_EMBED(sluice_tiny_generation_config, "generation_config.json")
SLUICE_EMBED(sluice_tiny_model, "model.safetensors")
SLUICE_EMBED(sluice_tiny_tokenizer, "tokenizer.json")
SLUICE_EMBED(sluice_tiny_tokenizer_config, "tokenizer_config.json")

namespace sluice {

std::span<const EmbeddedFile> embedded_files() {
  static const std::array<EmbeddedFile, 5> files = {{
      {"config.json", {sluice_tiny_config, sluice_tiny_config_end}},
      {"generation_config.json",
       {sluice_tiny_generation_config, sluice_tiny_generation_config_end}},
      {"model.safetensors", {sluice_tiny_model, sluice_tiny_model_end}},
      {"tokenizer.json", {sluice_tiny_tokenizer, sluice_tiny_tokenizer_end}},
      {"tokenizer_config.json", {sluice_tiny_tokenizer_config, sluice_tiny_tokenizer_config_end}},
  }};
  return files;
}

}  // namespace sluice
