// The floor under weight streaming: what a bare loop of copies and matrix products takes, two
// buffers deep, without a runtime, attention, or anything else around it. Sluice's decode with
// streamed weights is compared with it (scripts/gpu-check.sh).
//
//   streaming_floor HIDDEN FFN LAYERS RESIDENT_LAYERS BATCH PASSES
//
// A layer is OPT's four matrices in bf16: [3 HIDDEN, HIDDEN], [HIDDEN, HIDDEN], [FFN, HIDDEN] and
// [HIDDEN, FFN]. Prints one JSON object: seconds a pass (median), the copy rate of pinned memory
// alone.

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "streaming_floor: %s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}
void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "streaming_floor: %s: %s\n", what, cublasGetStatusString(status));
  std::exit(1);
}

struct Matrix {
  std::int64_t out, in;
  std::int64_t elements() const { return out * in; }
};

struct Settings {
  std::int64_t hidden, ffn, layers, resident, batch, passes;

  std::array<Matrix, 4> matrices() const {
    return {{{3 * hidden, hidden}, {hidden, hidden}, {ffn, hidden}, {hidden, ffn}}};
  }
  std::size_t layer_bytes() const {
    std::int64_t elements = 0;
    for (const Matrix& matrix : matrices()) elements += matrix.elements();
    return static_cast<std::size_t>(elements) * sizeof(__nv_bfloat16);
  }
};

void* on_device(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes), "taking device memory");
  check(cudaMemset(memory, 0, bytes), "clearing device memory");
  return memory;
}

class Floor {
 public:
  explicit Floor(const Settings& settings) : settings_(settings) {
    check(cublasCreate(&blas_), "starting cuBLAS");
    check(cudaStreamCreate(&copying_), "making a stream");
    check(cudaStreamCreate(&computing_), "making a stream");
    check(cublasSetStream(blas_, computing_), "setting cuBLAS's stream");
    // One layer's pinned memory stands for all: what is copied does not change how long it takes.
    check(cudaMallocHost(&host_, settings.layer_bytes()), "taking pinned memory");
    std::fill_n(static_cast<unsigned char*>(host_), settings.layer_bytes(),
                static_cast<unsigned char>(0));
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      buffers_[i] = on_device(settings.layer_bytes());
      check(cudaEventCreateWithFlags(&copied_[i], cudaEventDisableTiming), "making an event");
      check(cudaEventCreateWithFlags(&used_[i], cudaEventDisableTiming), "making an event");
    }
    for (std::int64_t i = 0; i < settings.resident; ++i)
      resident_.push_back(on_device(settings.layer_bytes()));
    const std::int64_t widest = std::max(3 * settings.hidden, settings.ffn);
    for (void*& activation : activations_)
      activation =
          on_device(static_cast<std::size_t>(settings.batch * widest) * sizeof(__nv_bfloat16));
  }

  /// Bytes a second of copies alone.
  double copy_rate() {
    constexpr int copies = 8;
    const auto copy_all = [&] {
      for (int i = 0; i < copies; ++i) copy(buffers_[0]);
      check(cudaStreamSynchronize(copying_), "copying");
    };
    copy_all();
    const double seconds = timed(copy_all);
    return copies * static_cast<double>(settings_.layer_bytes()) / seconds;
  }

  double median_pass_s() {
    pass();
    std::vector<double> seconds;
    for (std::int64_t i = 0; i < settings_.passes; ++i) seconds.push_back(timed([&] { pass(); }));
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

 private:
  template <typename Work>
  static double timed(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void copy(void* to) {
    check(cudaMemcpyAsync(to, host_, settings_.layer_bytes(), cudaMemcpyHostToDevice, copying_),
          "copying");
  }

  /// Resident layers stand between the streamed ones, evenly.
  bool is_resident(std::int64_t layer) const {
    return layer * settings_.resident / settings_.layers !=
           (layer + 1) * settings_.resident / settings_.layers;
  }

  void pass() {
    std::size_t next_buffer = 0;
    std::size_t next_resident = 0;
    for (std::int64_t layer = 0; layer < settings_.layers; ++layer) {
      if (is_resident(layer)) {
        compute(resident_[next_resident++]);
        continue;
      }
      const std::size_t buffer = next_buffer++ % buffers_.size();
      check(cudaStreamWaitEvent(copying_, used_[buffer], 0), "waiting for a buffer");
      copy(buffers_[buffer]);
      check(cudaEventRecord(copied_[buffer], copying_), "noting a copy");
      check(cudaStreamWaitEvent(computing_, copied_[buffer], 0), "waiting for a copy");
      compute(buffers_[buffer]);
      check(cudaEventRecord(used_[buffer], computing_), "noting a use");
    }
    check(cudaStreamSynchronize(computing_), "computing");
  }

  void compute(const void* layer) {
    const float one = 1;
    const float zero = 0;
    const auto* weight = static_cast<const __nv_bfloat16*>(layer);
    int from = 0;
    for (const Matrix& matrix : settings_.matrices()) {
      check(
          cublasGemmEx(blas_, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(matrix.out),
                       static_cast<int>(settings_.batch), static_cast<int>(matrix.in), &one, weight,
                       CUDA_R_16BF, static_cast<int>(matrix.in), activations_[from], CUDA_R_16BF,
                       static_cast<int>(matrix.in), &zero, activations_[1 - from], CUDA_R_16BF,
                       static_cast<int>(matrix.out), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "multiplying");
      weight += matrix.elements();
      from = 1 - from;
    }
  }

  Settings settings_;
  cublasHandle_t blas_ = nullptr;
  cudaStream_t copying_ = nullptr;
  cudaStream_t computing_ = nullptr;
  void* host_ = nullptr;
  std::array<void*, 2> buffers_{};
  std::array<cudaEvent_t, 2> copied_{};
  std::array<cudaEvent_t, 2> used_{};
  std::vector<void*> resident_;
  std::array<void*, 2> activations_{};
};

}  // namespace

int main(int argc, char** argv) {
  constexpr int num_arguments = 6;
  std::array<std::int64_t, num_arguments> given{};
  for (int i = 0; i < num_arguments && i + 1 < argc; ++i)
    given[static_cast<std::size_t>(i)] = std::atoll(argv[i + 1]);
  const Settings settings{given[0], given[1], given[2], given[3], given[4], given[5]};
  const bool sensible = settings.hidden > 0 && settings.ffn > 0 && settings.layers > 0 &&
                        settings.resident >= 0 && settings.resident <= settings.layers &&
                        settings.batch > 0 && settings.passes > 0;
  if (argc != num_arguments + 1 || !sensible) {
    std::fprintf(stderr, "usage: streaming_floor HIDDEN FFN LAYERS RESIDENT_LAYERS BATCH PASSES\n");
    return 2;
  }
  Floor floor(settings);
  const double rate = floor.copy_rate();
  std::printf("{\"pass_s\": %.6f, \"copy_gb_per_s\": %.3f, \"streamed_bytes\": %.0f}\n",
              floor.median_pass_s(), rate * 1e-9,
              static_cast<double>(settings.layer_bytes()) *
                  static_cast<double>(settings.layers - settings.resident));
  return 0;
}
