#include "engine/draw/picture.h"

#include <cairo-svg.h>

#include <array>
#include <cmath>
#include <memory>

#include "base/error.h"

namespace sluice {
namespace {

constexpr double font_size = 12;
constexpr double png_scale = 2;  ///< pixels a point

constexpr std::array<Colour, 7> colours = {{{0.00, 0.45, 0.70},
                                            {0.90, 0.62, 0.00},
                                            {0.00, 0.62, 0.45},
                                            {0.84, 0.37, 0.00},
                                            {0.80, 0.47, 0.65},
                                            {0.34, 0.71, 0.91},
                                            {0.60, 0.55, 0.05}}};

/// Above 0 so much nearer to white, below 0 to black.
constexpr std::array<double, 10> shades = {0,   0.5,   -0.45, 0.25,  -0.25,
                                           0.7, -0.65, 0.38,  -0.36, 0.85};

struct SurfaceDeleter {
  void operator()(cairo_surface_t* surface) const noexcept { cairo_surface_destroy(surface); }
};
struct ContextDeleter {
  void operator()(cairo_t* context) const noexcept { cairo_destroy(context); }
};
using SurfacePtr = std::unique_ptr<cairo_surface_t, SurfaceDeleter>;
using ContextPtr = std::unique_ptr<cairo_t, ContextDeleter>;

void check_cairo(cairo_status_t status) {
  if (status != CAIRO_STATUS_SUCCESS)
    throw Error("Cairo cannot draw the picture: {}", cairo_status_to_string(status));
}

cairo_status_t append(void* text, const unsigned char* data, unsigned int length) {
  try {
    static_cast<std::string*>(text)->append(reinterpret_cast<const char*>(data), length);
    return CAIRO_STATUS_SUCCESS;
  } catch (...) {
    return CAIRO_STATUS_NO_MEMORY;
  }
}

}  // namespace

std::string draw_picture(double width, double height, PictureFormat format,
                         const std::function<void(cairo_t*)>& paint) {
  std::string text;
  const bool png = format == PictureFormat::png;
  const SurfacePtr surface(png ? cairo_image_surface_create(CAIRO_FORMAT_RGB24,
                                                            static_cast<int>(width * png_scale),
                                                            static_cast<int>(height * png_scale))
                               : cairo_svg_surface_create_for_stream(append, &text, width, height));
  check_cairo(cairo_surface_status(surface.get()));
  const ContextPtr context(cairo_create(surface.get()));
  cairo_t* cairo = context.get();
  if (png) cairo_scale(cairo, png_scale, png_scale);
  cairo_set_source_rgb(cairo, 1, 1, 1);
  cairo_paint(cairo);
  cairo_set_source_rgb(cairo, 0, 0, 0);
  cairo_select_font_face(cairo, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(cairo, font_size);
  paint(cairo);
  check_cairo(cairo_status(cairo));
  if (png) check_cairo(cairo_surface_write_to_png_stream(surface.get(), append, &text));
  cairo_surface_finish(surface.get());
  check_cairo(cairo_surface_status(surface.get()));
  return text;
}

void show_text(cairo_t* cairo, double x, double y, const std::string& text, Anchor anchor) {
  cairo_text_extents_t extents;
  cairo_text_extents(cairo, text.c_str(), &extents);
  double shift = 0;
  if (anchor == Anchor::middle) shift = extents.x_advance / 2;
  if (anchor == Anchor::right) shift = extents.x_advance;
  cairo_move_to(cairo, x - shift, y);
  cairo_show_text(cairo, text.c_str());
}

double tick_distance(double range, int count) {
  const double rough = range / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

Colour colour_number(std::size_t index) {
  const Colour& base = colours.at(index % colours.size());
  const double shade = shades.at(index / colours.size() % shades.size());
  const auto mixed = [&](double value) {
    return shade >= 0 ? value + (1 - value) * shade : value * (1 + shade);
  };
  return {mixed(base.red), mixed(base.green), mixed(base.blue)};
}

void use_colour(cairo_t* cairo, std::size_t index) {
  const Colour colour = colour_number(index);
  cairo_set_source_rgb(cairo, colour.red, colour.green, colour.blue);
}

}  // namespace sluice
