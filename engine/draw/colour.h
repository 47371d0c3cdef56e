#pragma once

namespace sluice {

struct Colour {
  double red, green, blue;  ///< 0 to 1
};

}  // namespace sluice
