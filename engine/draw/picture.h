#pragma once

#include <cairo.h>

#include <cstdint>
#include <functional>
#include <string>

#include "engine/draw/colour.h"

namespace sluice {

enum class PictureFormat : std::uint8_t { svg, png };

/// What `paint` draws on white, `width` by `height` points, as the bytes of a file; a PNG has two
/// pixels a point. Throws Error when Cairo cannot draw.
std::string draw_picture(double width, double height, PictureFormat format,
                         const std::function<void(cairo_t*)>& paint);

enum class Anchor : std::uint8_t { left, middle, right };
/// `y` is the line that letters stand on.
void show_text(cairo_t* cairo, double x, double y, const std::string& text, Anchor anchor);

/// 1, 2 or 5 times a power of ten, so that about `count` of them make up `range`.
double tick_distance(double range, int count);

/// Seven colours that colour-blind readers can tell apart (Okabe and Ito's), then lighter and
/// darker shades of them: 70 in all, counted round.
Colour colour_number(std::size_t index);
void use_colour(cairo_t* cairo, std::size_t index);

}  // namespace sluice
