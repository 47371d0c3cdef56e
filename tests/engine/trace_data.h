#pragma once

#include "engine/trace/trace.h"

namespace sluice::testing {

/// An iteration of two sub-batches on a GPU with its own memory and a CPU, and a task of the next
/// one, small enough to work out every figure by hand. Times are in units of 1000 ns:
///
///   GPU  [0 waits for data 5) qkv 5-15 (1)  [15-20 data) out, fc1, fc2 20-24-34-40 (3)
///        [40-47 dependency) out, fc1, fc2 47-51-61-67 (4)  [67-100)
///   CPU  [0-16 dependency) attention 16-46 (2)  [46-82) attention 82-92 (5)  [92-100)
///   ddr to hbm  0-5 for task 1, 5-20 for task 3 (prefetch);  hbm to ddr  41-45
///
/// Task 2 depends on 1, 4 on 2, 5 on 4. Task 3 is sub-batch 1; task 5 iteration 1, submitted at 80.
Trace two_sub_batches();

}  // namespace sluice::testing
