#include "codelets/cuda/sublayer_events.h"

#include "codelets/cuda/context.h"

namespace sluice::cuda {

SublayerEvents::~SublayerEvents() {
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

std::size_t SublayerEvents::record() {
  if (num_recorded_ == events_.size()) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "making an event");
    events_.push_back(event);
  }
  check(cudaEventRecord(events_[num_recorded_], stream_), "recording an event");
  return num_recorded_++;
}

void SublayerEvents::start() { record(); }

void SublayerEvents::end_of(Phase phase, Sublayer sublayer) {
  const std::size_t end = record();
  spans_.push_back({phase, sublayer, end - 1, end});
}

void SublayerEvents::collect(KernelTimes& times) {
  check(cudaStreamSynchronize(stream_), "waiting for kernels");
  for (const Span& span : spans_) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events_[span.begin], events_[span.end]), "timing kernels");
    const std::chrono::duration<float, std::milli> spent(ms);
    times.add(span.phase, span.sublayer,
              std::chrono::duration_cast<KernelTimes::Clock::duration>(spent));
  }
  spans_.clear();
  num_recorded_ = 0;
}

}  // namespace sluice::cuda
