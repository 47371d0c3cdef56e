// FastDecode+ as NEO's authors compare with it (NEO section 5.1): NEO's pipeline, with all KV in
// DDR and all decode attention on the CPU.
#include "schedulers/neo/neo_policy.h"
#include "schedulers/plugin.h"

namespace sluice {
namespace {

class FastDecode : public NeoPolicy {
 public:
  FastDecode() : NeoPolicy(Hiding::not_asked) {}
};

}  // namespace
}  // namespace sluice

SLUICE_BASELINE(sluice::FastDecode, "fastdecode",
                "FastDecode+: all decode attention on the CPU, beside another sub-batch");
