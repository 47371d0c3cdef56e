// In place of fxt.cc where Sluice is built without FxT (SLUICE_FXT=OFF).
#include "base/error.h"
#include "engine/trace/fxt.h"

namespace sluice {

bool has_fxt() { return false; }

Trace read_fxt(const std::string& /*path*/, const StageParts& /*parts*/,
               const std::map<std::int64_t, std::string>& /*request_ids*/) {
  throw Error("this sluice was built without FxT, which reads StarPU's records");
}

}  // namespace sluice
