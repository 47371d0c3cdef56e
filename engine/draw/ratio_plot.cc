#include "engine/draw/ratio_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace sluice {
namespace {

// In points.
constexpr double area_height = 150;
constexpr double left_margin = 58;
constexpr double right_margin = 14;
constexpr double title_height = 34;
constexpr double labels_height = 38;  ///< the groups' labels and what they are
constexpr double legend_height = 30;
constexpr double wide_bar = 30;
constexpr double narrow_bar = 13;
constexpr double group_gap = 14;
constexpr double letter_width = 7;  ///< about
constexpr double most_wide_bars = 36;
constexpr double label_size = 9.5;
constexpr double text_size = 12;
const double quarter_turn = std::acos(-1.0) / 2;

/// Two or three digits.
std::string ratio_text(double ratio) {
  if (ratio < 0.0995) return fmt::format("{:.3f}", ratio);
  if (ratio < 9.995) return fmt::format("{:.2f}", ratio);
  return ratio < 99.95 ? fmt::format("{:.1f}", ratio) : fmt::format("{:.0f}", ratio);
}

/// "4 x", "1/4 x"
std::string power_text(int power) {
  return power < 0 ? fmt::format("1/{:g} x", std::exp2(-power))
                   : fmt::format("{:g} x", std::exp2(power));
}

bool has_figures(const RatioPlot& plot) {
  return std::any_of(plot.figures.begin(), plot.figures.end(), [](const auto& group) {
    return std::any_of(group.begin(), group.end(), [](const auto& text) { return !text.empty(); });
  });
}

bool has_none(const RatioPlot& plot) {
  for (std::size_t group = 0; group < plot.ratios.size(); ++group) {
    for (std::size_t series = 0; series < plot.ratios[group].size(); ++series) {
      const bool has_figure = !plot.figures.empty() && !plot.figures[group][series].empty();
      if (!plot.ratios[group][series] && !has_figure) return true;
    }
  }
  return false;
}

class GridPainter {
 public:
  explicit GridPainter(const RatioGrid& grid) : grid_(grid) {
    const auto num_bars = static_cast<double>(grid.groups.size() * grid.series.size());
    bar_width_ = num_bars <= most_wide_bars ? wide_bar : narrow_bar;
    std::size_t longest = 0;
    for (const std::string& group : grid.groups) longest = std::max(longest, group.size());
    group_width_ = group_gap + std::max(bar_width_ * static_cast<double>(grid.series.size()),
                                        letter_width * static_cast<double>(longest));
    for (const auto& row : grid.rows) {
      for (const RatioPlot& plot : row)
        area_width_ = std::max(area_width_, letter_width * static_cast<double>(plot.title.size()));
    }
    area_width_ = std::max(area_width_, group_width_ * static_cast<double>(grid.groups.size()));
  }

  double width() const { return plot_width() * static_cast<double>(grid_.rows.front().size()); }
  double height() const {
    return plot_height * static_cast<double>(grid_.rows.size()) + legend_height;
  }

  void draw(cairo_t* cairo) {
    cairo_ = cairo;
    for (std::size_t y = 0; y < grid_.rows.size(); ++y) {
      set_range(grid_.rows[y]);
      for (std::size_t x = 0; x < grid_.rows[y].size(); ++x) {
        cairo_save(cairo_);
        cairo_translate(cairo_, plot_width() * static_cast<double>(x),
                        plot_height * static_cast<double>(y));
        draw_plot(grid_.rows[y][x]);
        cairo_restore(cairo_);
      }
    }
    draw_legend(plot_height * static_cast<double>(grid_.rows.size()) + 14);
  }

 private:
  static constexpr double plot_height = title_height + area_height + labels_height;
  static constexpr double bottom = title_height + area_height;

  double plot_width() const { return left_margin + area_width_ + right_margin; }
  double y_at(double ratio) const {
    return bottom - (std::log2(ratio) - low_power_) / (high_power_ - low_power_) * area_height;
  }
  void black() { cairo_set_source_rgb(cairo_, 0, 0, 0); }
  void grey() { cairo_set_source_rgb(cairo_, 0.5, 0.5, 0.5); }

  /// All of a row's ratios and 1, with room for the bars' labels.
  void set_range(const std::vector<RatioPlot>& row) {
    double least = 1;
    double most = 1;
    for (const RatioPlot& plot : row) {
      for (const auto& group : plot.ratios) {
        for (const std::optional<double>& ratio : group) {
          if (!ratio) continue;
          least = std::min(least, *ratio);
          most = std::max(most, *ratio);
        }
      }
    }
    double label = bar_width_ == wide_bar ? 16 : 32;
    if (std::any_of(row.begin(), row.end(), has_figures)) label = 48;
    const double below = least < 1 ? label : 0;
    const double powers = std::max(1.0, std::log2(most) - std::log2(least));
    const double per_point = powers / (area_height - below - label);
    low_power_ = std::log2(least) - below * per_point;
    high_power_ = low_power_ + area_height * per_point;
  }

  void draw_plot(const RatioPlot& plot) {
    show_text(cairo_, left_margin + area_width_ / 2, title_height - 12, plot.title, Anchor::middle);
    draw_axis();
    for (std::size_t group = 0; group < grid_.groups.size(); ++group) draw_group(plot, group);
    black();
    cairo_rectangle(cairo_, left_margin, title_height, area_width_, area_height);
    cairo_move_to(cairo_, left_margin, y_at(1));
    cairo_line_to(cairo_, left_margin + area_width_, y_at(1));
    cairo_stroke(cairo_);
    show_text(cairo_, left_margin + area_width_ / 2, bottom + 30, grid_.group_label,
              Anchor::middle);
  }

  void draw_axis() {
    const int step = std::max(1, static_cast<int>(std::lround((high_power_ - low_power_) / 6)));
    cairo_set_line_width(cairo_, 1);
    for (int power = static_cast<int>(std::ceil(low_power_)); power <= high_power_; ++power) {
      if (power % step != 0) continue;
      const double y = y_at(std::exp2(power));
      cairo_set_source_rgb(cairo_, 0.88, 0.88, 0.88);
      cairo_move_to(cairo_, left_margin, y);
      cairo_line_to(cairo_, left_margin + area_width_, y);
      cairo_stroke(cairo_);
      black();
      show_text(cairo_, left_margin - 6, y + 4, power_text(power), Anchor::right);
    }
  }

  void draw_group(const RatioPlot& plot, std::size_t group) {
    const double slot = area_width_ / static_cast<double>(grid_.groups.size());
    const double middle = left_margin + slot * (static_cast<double>(group) + 0.5);
    const double first = middle - bar_width_ * static_cast<double>(grid_.series.size()) / 2;
    for (std::size_t series = 0; series < grid_.series.size(); ++series) {
      const double x = first + bar_width_ * static_cast<double>(series);
      if (plot.figures.empty() || plot.figures[group][series].empty()) {
        draw_bar(x, plot.ratios[group][series], series);
      } else {
        draw_figure(x, plot.figures[group][series], series);
      }
    }
    black();
    show_text(cairo_, middle, bottom + 14, grid_.groups[group], Anchor::middle);
  }

  void draw_bar(double x, const std::optional<double>& ratio, std::size_t series) {
    const double y = y_at(ratio.value_or(1));
    const double base = y_at(1);
    if (ratio) {
      use_colour(cairo_, series);
      cairo_rectangle(cairo_, x + 1, std::min(y, base), bar_width_ - 2, std::abs(y - base));
      cairo_fill(cairo_);
    }
    ratio ? black() : grey();
    const std::string text = ratio ? ratio_text(*ratio) : "none";
    const bool below = ratio && *ratio < 1;
    cairo_set_font_size(cairo_, label_size);
    if (bar_width_ == wide_bar) {
      show_text(cairo_, x + bar_width_ / 2, below ? y + 11 : y - 4, text, Anchor::middle);
    } else {
      cairo_save(cairo_);
      cairo_translate(cairo_, x + bar_width_ / 2 + 3.5, below ? y + 3 : y - 3);
      cairo_rotate(cairo_, -quarter_turn);
      show_text(cairo_, 0, 0, text, below ? Anchor::right : Anchor::left);
      cairo_restore(cairo_);
    }
    cairo_set_font_size(cairo_, text_size);
  }

  /// Upright on the line of 1, on a sliver in the series' colour.
  void draw_figure(double x, const std::string& text, std::size_t series) {
    use_colour(cairo_, series);
    cairo_rectangle(cairo_, x + 1, y_at(1) - 2, bar_width_ - 2, 4);
    cairo_fill(cairo_);
    black();
    cairo_set_font_size(cairo_, label_size);
    cairo_save(cairo_);
    cairo_translate(cairo_, x + bar_width_ / 2 + 3.5, y_at(1) - 5);
    cairo_rotate(cairo_, -quarter_turn);
    show_text(cairo_, 0, 0, text, Anchor::left);
    cairo_restore(cairo_);
    cairo_set_font_size(cairo_, text_size);
  }

  bool any_plot(bool (*has)(const RatioPlot& plot)) const {
    return std::any_of(grid_.rows.begin(), grid_.rows.end(),
                       [&](const auto& row) { return std::any_of(row.begin(), row.end(), has); });
  }

  void draw_legend(double y) {
    double x = left_margin;
    for (std::size_t series = 0; series < grid_.series.size(); ++series) {
      use_colour(cairo_, series);
      cairo_rectangle(cairo_, x, y - 10, 12, 12);
      cairo_fill(cairo_);
      black();
      show_text(cairo_, x + 17, y, grid_.series[series], Anchor::left);
      cairo_get_current_point(cairo_, &x, nullptr);
      x += 20;
    }
    std::string rest = fmt::format("1 x: {}", grid_.baseline);
    if (any_plot(has_figures))
      rest += fmt::format("; figures with units: where {} cannot run", grid_.baseline);
    if (any_plot(has_none)) rest += "; none: cannot run, or has no such figure";
    show_text(cairo_, x, y, rest, Anchor::left);
  }

  const RatioGrid& grid_;
  cairo_t* cairo_ = nullptr;
  double bar_width_ = wide_bar;
  double group_width_ = 0;
  double area_width_ = 0;
  double low_power_ = 0;  ///< of two, of the row that is drawn
  double high_power_ = 1;
};

}  // namespace

std::string draw_ratios(const RatioGrid& grid, PictureFormat format) {
  GridPainter painter(grid);
  return draw_picture(painter.width(), painter.height(), format,
                      [&](cairo_t* cairo) { painter.draw(cairo); });
}

}  // namespace sluice
