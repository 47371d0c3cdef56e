// NEO (sections 3.1 and 3.2; docs/reference/policies.md#neo).
#include "schedulers/neo/neo_policy.h"
#include "schedulers/plugin.h"

namespace sluice {
namespace {

class Neo : public NeoPolicy {
 public:
  Neo() : NeoPolicy(Hiding::required) {}
};

}  // namespace
}  // namespace sluice

SLUICE_POLICY(sluice::Neo, "neo",
              "NEO: requests whose KV does not fit HBM attend on the CPU, beside the others");
