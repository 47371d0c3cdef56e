#include "engine/draw/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/draw/picture.h"

namespace sluice {
namespace {

// In points.
constexpr double plot_width = 480;
constexpr double area_height = 300;
constexpr double left_margin = 66;
constexpr double right_margin = 24;
constexpr double top_margin = 36;
constexpr double axis_height = 48;  ///< below the area: tick labels and the axis' label
constexpr double legend_line = 17;
constexpr std::size_t most_marks = 64;  ///< of one line

/// Draws one plot whose upper left corner is the origin.
class Painter {
 public:
  Painter(cairo_t* cairo, const LinePlot& plot) : cairo_(cairo), plot_(plot) {
    double least = 1e300;
    double most = 0;
    y_max_ = plot.limit;
    for (const PlotSeries& series : plot.series) {
      for (const auto& [x, y] : series.points) {
        least = std::min(least, x);
        most = std::max(most, x);
        y_max_ = std::max(y_max_, y);
      }
    }
    if (most == 0) least = most = 1;
    if (y_max_ <= 0) y_max_ = 1;
    span_x(least, most);
    y_tick_ = tick_distance(plot.y_top > 0 ? plot.y_top : y_max_, 5);
    y_max_ = plot.y_top > 0 ? plot.y_top : std::ceil(y_max_ / y_tick_ * 1.02) * y_tick_;
  }

  void draw() {
    cairo_set_line_width(cairo_, 1);
    black();
    show_text(cairo_, left_margin + area_width / 2, top_margin - 14, plot_.title, Anchor::middle);
    draw_x_axis();
    draw_y_axis();
    cairo_rectangle(cairo_, left_margin, top_margin, area_width, area_height);
    cairo_stroke(cairo_);
    for (std::size_t i = 0; i < plot_.series.size(); ++i) draw_series(i);
    if (plot_.limit > 0) draw_limit();
  }

 private:
  static constexpr double area_width = plot_width - left_margin - right_margin;
  static constexpr double bottom = top_margin + area_height;

  /// On the axis, where powers of two are as far from each other as whole numbers are.
  double axis_place(double x) const { return plot_.x_axis == XAxis::linear ? x : std::log2(x); }

  /// Ticks from the last one below `least` to the first one above `most`.
  void span_x(double least, double most) {
    if (plot_.x_axis == XAxis::linear) {
      x_tick_ = tick_distance(most, 8);
      last_tick_ = static_cast<int>(std::ceil(most / x_tick_));
      return;
    }
    first_tick_ = static_cast<int>(std::floor(std::log2(least)));
    last_tick_ = std::max(first_tick_ + 1, static_cast<int>(std::ceil(std::log2(most))));
  }

  double x_at(double x) const {
    return left_margin +
           (axis_place(x) / x_tick_ - first_tick_) / (last_tick_ - first_tick_) * area_width;
  }
  double y_at(double y) const { return bottom - y / y_max_ * area_height; }

  void black() { cairo_set_source_rgb(cairo_, 0, 0, 0); }

  void grid_line(double x0, double y0, double x1, double y1) {
    cairo_set_source_rgb(cairo_, 0.88, 0.88, 0.88);
    cairo_move_to(cairo_, x0, y0);
    cairo_line_to(cairo_, x1, y1);
    cairo_stroke(cairo_);
    black();
  }

  void draw_x_axis() {
    for (int tick = first_tick_; tick <= last_tick_; ++tick) {
      const bool linear = plot_.x_axis == XAxis::linear;
      const double value = linear ? tick * x_tick_ : std::exp2(tick);
      const double x = x_at(value);
      grid_line(x, top_margin, x, bottom);
      show_text(cairo_, x, bottom + 16,
                linear ? fmt::format("{:.6g}", value) : fmt::format("{}", value), Anchor::middle);
    }
    show_text(cairo_, left_margin + area_width / 2, bottom + 36, plot_.x_label, Anchor::middle);
  }

  void draw_y_axis() {
    for (int i = 0; i * y_tick_ <= y_max_ * 1.001; ++i) {
      const double y = y_at(i * y_tick_);
      grid_line(left_margin, y, left_margin + area_width, y);
      show_text(cairo_, left_margin - 6, y + 4, fmt::format("{:.6g}", i * y_tick_), Anchor::right);
    }
    cairo_save(cairo_);
    cairo_translate(cairo_, 18, top_margin + area_height / 2);
    cairo_rotate(cairo_, -std::acos(-1.0) / 2);
    show_text(cairo_, 0, 0, plot_.y_label, Anchor::middle);
    cairo_restore(cairo_);
  }

  /// Where the legend's entry `index` begins: two columns below the axis.
  static std::pair<double, double> legend_place(std::size_t index) {
    const std::size_t line = index / 2;
    return {left_margin + static_cast<double>(index % 2) * area_width / 2,
            bottom + axis_height + static_cast<double>(line) * legend_line + 8};
  }

  void use_style(const PlotSeries& series) {
    use_colour(cairo_, series.colour);
    cairo_set_line_width(cairo_, 2);
    const std::array<double, 2> dashes = {5, 3};
    cairo_set_dash(cairo_, dashes.data(), series.style == LineStyle::solid ? 0 : 2, 0);
  }

  void stroke_solid_next() {
    cairo_stroke(cairo_);
    cairo_set_dash(cairo_, nullptr, 0, 0);
    cairo_set_line_width(cairo_, 1);
  }

  void draw_series(std::size_t index) {
    const PlotSeries& series = plot_.series[index];
    cairo_save(cairo_);
    cairo_rectangle(cairo_, left_margin, top_margin, area_width, area_height);
    cairo_clip(cairo_);
    use_style(series);
    for (const auto& [x, y] : series.points) cairo_line_to(cairo_, x_at(x), y_at(y));
    stroke_solid_next();
    cairo_restore(cairo_);
    draw_marks(series);
    const auto [legend_x, legend_y] = legend_place(index);
    use_style(series);
    cairo_move_to(cairo_, legend_x, legend_y - 4);
    cairo_line_to(cairo_, legend_x + 24, legend_y - 4);
    stroke_solid_next();
    black();
    show_text(cairo_, legend_x + 30, legend_y, series.label, Anchor::left);
  }

  void draw_marks(const PlotSeries& series) {
    if (series.points.size() > most_marks) return;
    use_colour(cairo_, series.colour);
    for (const auto& [x, y] : series.points) {
      if (y > y_max_) continue;
      cairo_arc(cairo_, x_at(x), y_at(y), 2.5, 0, 2 * std::acos(-1.0));
      cairo_fill(cairo_);
    }
  }

  void draw_limit() {
    const auto [legend_x, legend_y] = legend_place(plot_.series.size());
    const std::array<double, 2> dashes = {2, 3};
    cairo_set_dash(cairo_, dashes.data(), 2, 0);
    cairo_move_to(cairo_, left_margin, y_at(plot_.limit));
    cairo_line_to(cairo_, left_margin + area_width, y_at(plot_.limit));
    cairo_move_to(cairo_, legend_x, legend_y - 4);
    cairo_line_to(cairo_, legend_x + 24, legend_y - 4);
    stroke_solid_next();
    show_text(cairo_, legend_x + 30, legend_y, plot_.limit_label, Anchor::left);
  }

  cairo_t* cairo_;
  const LinePlot& plot_;
  double x_tick_ = 1;  ///< what lies between ticks of a linear axis
  int first_tick_ = 0;
  int last_tick_ = 1;
  double y_max_ = 1;
  double y_tick_ = 1;
};

double height_of(const std::vector<LinePlot>& plots) {
  std::size_t lines = 0;
  for (const LinePlot& plot : plots) {
    const std::size_t entries = plot.series.size() + (plot.limit > 0 ? 1 : 0);
    lines = std::max(lines, (entries + 1) / 2);
  }
  return top_margin + area_height + axis_height + static_cast<double>(lines) * legend_line + 8;
}

}  // namespace

std::string draw_plots(const std::vector<LinePlot>& plots, PictureFormat format) {
  const double width = plot_width * static_cast<double>(plots.size());
  const double height = height_of(plots);
  return draw_picture(width, height, format, [&](cairo_t* cairo) {
    for (const LinePlot& plot : plots) {
      Painter(cairo, plot).draw();
      cairo_translate(cairo, plot_width, 0);
    }
  });
}

}  // namespace sluice
