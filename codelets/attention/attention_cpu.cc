#include <algorithm>
#include <vector>

#include "codelets/attention/attention.h"

namespace sluice {
namespace {

/// Query rows of one job: enough to reuse a page's K and V, few enough to spread a prompt over
/// cores.
constexpr std::int64_t rows_per_job = 16;

struct Job {
  const BatchSequence* sequence;
  std::int64_t first_row;
  std::int64_t num_rows;
};

std::vector<Job> cut(const BatchView& batch) {
  std::vector<Job> jobs;
  for (const BatchSequence& sequence : batch.sequences()) {
    for (std::int64_t done = 0; done < sequence.num_rows; done += rows_per_job) {
      jobs.push_back(
          {&sequence, sequence.first_row + done, std::min(rows_per_job, sequence.num_rows - done)});
    }
  }
  std::reverse(jobs.begin(), jobs.end());  // a prompt's last rows see the most: longest jobs first
  return jobs;
}

}  // namespace

void attention_cpu(const CpuContext& cpu, const AttentionOperands& operands) {
  const DecoderShape& shape = operands.args->shape;
  const std::vector<Job> jobs = cut(operands.batch);
  const auto num_jobs = static_cast<std::int64_t>(jobs.size()) * shape.num_kv_heads;
  cpu.pool.run(num_jobs, [&](std::int64_t index) {
    thread_local Workspace scratch;
    const Job& job = jobs[static_cast<std::size_t>(index / shape.num_kv_heads)];
    const std::int64_t kv_head = index % shape.num_kv_heads;
    simd::AttentionBlock block = attention_block_of(shape, operands.batch, *job.sequence,
                                                    job.first_row, job.num_rows, kv_head);
    const std::size_t offset =
        static_cast<std::size_t>(job.first_row * shape.q_size() +
                                 kv_head * shape.group_size() * shape.head_dim) *
        size_bytes(shape.dtype);
    block.q = operands.q + offset;
    block.out = operands.out + offset;
    block.slab = operands.slab;
    simd::attention_block(block, scratch.reserve(simd::attention_scratch_bytes(
                                     rows_per_job, shape.group_size(), shape.head_dim)));
  });
}

}  // namespace sluice
