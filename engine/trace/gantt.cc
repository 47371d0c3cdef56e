#include "engine/trace/gantt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"
#include "codelets/runtime/kernel_times.h"
#include "engine/trace/trace_analysis.h"
#include "perfmodels/placement.h"

namespace sluice {
namespace {

// In points.
constexpr double picture_width = 1400;
constexpr double left_margin = 96;
constexpr double right_margin = 32;
constexpr double time_width = picture_width - left_margin - right_margin;
constexpr double legend_height = 56;
constexpr double title_height = 34;
constexpr double task_height = 20;
constexpr double sublayer_height = 24;
constexpr double transfer_height = 20;
constexpr double lane_height = 14;         ///< of transfers that overlap: as much as a label needs
constexpr double most_lanes_height = 112;  ///< of a link; more lanes are lower, and have no labels
constexpr double row_gap = 8;
constexpr double axis_height = 26;
constexpr double width_per_box = 250;  ///< as much as a stage's sublayers need for their names
constexpr double max_height = 16000;   ///< Cairo draws 32767 pixels, two a point

struct Fill {
  Colour colour;
  bool white_text;
};

Fill fill_of(Sublayer sublayer) {
  const auto& [red, green, blue] = properties_of(sublayer).colour;
  const Colour colour = {red, green, blue};
  const double luma = 0.299 * colour.red + 0.587 * colour.green + 0.114 * colour.blue;
  return {colour, luma < 0.55};
}

/// Of tasks, by their sub-batches; further ones begin again with the first.
constexpr std::array<Fill, 3> sub_batch_fills = {
    {{{0.88, 0.92, 0.98}, false}, {{0.99, 0.89, 0.78}, false}, {{0.88, 0.96, 0.86}, false}}};

constexpr Fill fetch_fill = {{0.90, 0.62, 0.00}, false};
constexpr Fill prefetch_fill = {{0.78, 0.90, 0.66}, false};

Fill fill_of(std::int16_t sub_batch) {
  const auto number = static_cast<std::size_t>(std::max<std::int16_t>(0, sub_batch));
  return sub_batch_fills.at(number % sub_batch_fills.size());
}

std::string format_time(double ns) {
  if (ns < 1e6) return fmt::format("{:.4g} us", ns * 1e-3);
  return ns < 1e9 ? fmt::format("{:.4g} ms", ns * 1e-6) : fmt::format("{:.4g} s", ns * 1e-9);
}

/// With as many decimals as tell it from the next one.
std::string format_tick(double ns, double distance_ns) {
  const auto [unit_ns, unit] = ns < 1e6   ? std::pair(1e3, "us")
                               : ns < 1e9 ? std::pair(1e6, "ms")
                                          : std::pair(1e9, "s");
  const int decimals = -static_cast<int>(std::floor(std::log10(distance_ns / unit_ns) + 1e-9));
  return fmt::format("{:.{}f} {}", ns / unit_ns, std::max(0, decimals), unit);
}

std::string format_size(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value < 1e6) return fmt::format("{:.3g} kB", value * 1e-3);
  return value < 1e9 ? fmt::format("{:.3g} MB", value * 1e-6)
                     : fmt::format("{:.3g} GB", value * 1e-9);
}

/// What is drawn of a task.
struct Box {
  std::int64_t start_ns, end_ns;
  std::int32_t layer;
  int num_layers;
};

/// The whole of it, or a box a layer where its sublayers tell them apart.
std::vector<Box> boxes_of(const TraceTask& task) {
  std::vector<Box> boxes;
  for (const TraceSublayer& at : task.sublayers) {
    if (boxes.empty() || boxes.back().layer != at.layer)
      boxes.push_back({at.start_ns, at.end_ns, at.layer, 1});
    boxes.back().end_ns = at.end_ns;
  }
  if (boxes.size() > 1) return boxes;
  return {{task.start_ns, task.end_ns, task.tag.layer, task.tag.num_layers}};
}

/// An iteration, what is drawn of it, and how that is cut.
struct Panel {
  IterationPath path;
  double start_ns = 0;
  double end_ns = 0;
  int num_lines = 1;

  double line_ns() const { return std::max(1.0, (end_ns - start_ns) / num_lines); }
  bool shows(std::int64_t start, std::int64_t end) const {
    return static_cast<double>(end) > start_ns && static_cast<double>(start) < end_ns;
  }
};

std::vector<Panel> panels_of(const Trace& trace, const std::vector<std::int64_t>& iterations,
                             const TimeRange& range) {
  std::vector<Panel> panels;
  for (const std::int64_t iteration : iterations) {
    Panel panel;
    panel.path = critical_path(trace, iteration);
    const std::int64_t duration_ns = panel.path.duration_ns();
    if (range.from_ns > 0 && range.from_ns >= duration_ns) {
      throw Error("iteration {} takes {}: nothing of it is at {} and later", iteration,
                  format_time(static_cast<double>(duration_ns)),
                  format_time(static_cast<double>(range.from_ns)));
    }
    const auto start_ns = static_cast<double>(panel.path.start_ns);
    panel.start_ns = start_ns + static_cast<double>(range.from_ns);
    panel.end_ns = start_ns + static_cast<double>(std::min(range.to_ns, duration_ns));
    panels.push_back(std::move(panel));
  }
  return panels;
}

/// So many that the fullest worker's boxes have room for names, as long as Cairo has.
void cut_into_lines(const Trace& trace, double line_height, std::vector<Panel>& panels) {
  int lines = 0;
  for (Panel& panel : panels) {
    std::map<int, std::size_t> boxes;  // by worker
    std::size_t most = 1;
    for (const TraceTask& task : trace.tasks) {
      if (!task.tagged || task.tag.iteration != panel.path.iteration) continue;
      for (const Box& box : boxes_of(task)) {
        if (panel.shows(box.start_ns, box.end_ns)) most = std::max(most, ++boxes[task.worker]);
      }
    }
    panel.num_lines =
        static_cast<int>(std::ceil(static_cast<double>(most) * width_per_box / time_width));
    lines += panel.num_lines;
  }
  const double room =
      max_height - legend_height - title_height * static_cast<double>(panels.size());
  const double share = room / (line_height * lines);
  if (share >= 1) return;
  for (Panel& panel : panels)
    panel.num_lines = std::max(1, static_cast<int>(panel.num_lines * share));
}

/// A link's transfers, those that overlap in lanes below each other.
struct LinkRow {
  struct Drawn {
    const TraceTransfer* transfer;
    std::size_t lane;
  };
  int from = 0;
  int to = 0;
  std::size_t num_lanes = 1;
  std::vector<Drawn> drawn;

  double height() const {
    if (num_lanes == 1) return transfer_height;
    return std::min(most_lanes_height, lane_height * static_cast<double>(num_lanes));
  }
};

/// Of every link; a transfer takes the first lane that is free when it begins.
std::vector<LinkRow> link_rows(const Trace& trace, const std::vector<Panel>& panels) {
  std::vector<LinkRow> rows;
  for (const LinkUse& link : link_use(trace)) {
    LinkRow& row = rows.emplace_back();
    row.from = link.from;
    row.to = link.to;
    for (const TraceTransfer& transfer : trace.transfers) {
      const bool shown = std::any_of(panels.begin(), panels.end(), [&](const Panel& panel) {
        return panel.shows(transfer.start_ns, transfer.end_ns);
      });
      if (shown && transfer.from == row.from && transfer.to == row.to)
        row.drawn.push_back({&transfer, 0});
    }
    std::stable_sort(row.drawn.begin(), row.drawn.end(), [](const auto& a, const auto& b) {
      return a.transfer->start_ns < b.transfer->start_ns;
    });
    std::vector<std::int64_t> ends;  // by lane
    for (LinkRow::Drawn& each : row.drawn) {
      const auto free = std::find_if(ends.begin(), ends.end(), [&](std::int64_t end) {
        return end <= each.transfer->start_ns;
      });
      each.lane = static_cast<std::size_t>(free - ends.begin());
      if (free == ends.end()) ends.push_back(0);
      ends[each.lane] = each.transfer->end_ns;
    }
    row.num_lanes = std::max<std::size_t>(1, ends.size());
  }
  return rows;
}

class Painter {
 public:
  Painter(const Trace& trace, const std::vector<std::int64_t>& iterations, const TimeRange& range)
      : trace_(trace),
        panels_(panels_of(trace, iterations, range)),
        links_(link_rows(trace, panels_)) {
    cut_into_lines(trace, line_height(), panels_);
  }

  double height() const {
    double sum = legend_height;
    for (const Panel& panel : panels_) sum += title_height + line_height() * panel.num_lines;
    return sum;
  }

  void draw(cairo_t* cairo) {
    cairo_ = cairo;
    cairo_set_line_width(cairo_, 0.6);
    draw_legend();
    y_ = legend_height;
    for (const Panel& panel : panels_) draw_panel(panel);
  }

 private:
  double line_height() const {
    double height =
        static_cast<double>(trace_.workers.size()) * (task_height + sublayer_height + row_gap);
    for (const LinkRow& link : links_) height += link.height() + row_gap;
    return height + axis_height;
  }

  void black() { cairo_set_source_rgb(cairo_, 0, 0, 0); }

  double text_width(const std::string& text) const {
    cairo_text_extents_t extents;
    cairo_text_extents(cairo_, text.c_str(), &extents);
    return extents.x_advance;
  }

  void key(double& x, double y, const Fill& fill, const std::string& text) {
    cairo_set_source_rgb(cairo_, fill.colour.red, fill.colour.green, fill.colour.blue);
    cairo_rectangle(cairo_, x, y - 11, 14, 14);
    cairo_fill_preserve(cairo_);
    black();
    cairo_stroke(cairo_);
    show_text(cairo_, x + 19, y, text, Anchor::left);
    x += 19 + text_width(text) + 16;
  }

  void draw_legend() {
    double x = left_margin;
    for (int i = 0; i < static_cast<int>(num_sublayers); ++i) {
      const auto sublayer = static_cast<Sublayer>(i);
      if (shows(sublayer)) key(x, 20, fill_of(sublayer), std::string(to_string(sublayer)));
    }
    x = left_margin;
    draw_sub_batches(x);
    if (!links_.empty()) {
      key(x, 42, fetch_fill, "fetch: a task waits for it");
      key(x, 42, prefetch_fill, "prefetch: ahead of need");
    }
    show_text(cairo_, x, 42, "upper row: tasks (layer, stage); lower row: the sublayers inside",
              Anchor::left);
  }

  /// A key a fill, however many sub-batches there are.
  void draw_sub_batches(double& x) {
    const int last = last_sub_batch();
    const int num_fills = static_cast<int>(sub_batch_fills.size());
    for (int i = 0; i < std::min(num_fills, last + 1); ++i) {
      std::string text = fmt::format("sub-batch {}", i);
      if (i + num_fills <= last) text += fmt::format(", {}", i + num_fills);
      if (i + 2 * num_fills <= last) text += ", ...";
      key(x, 42, fill_of(static_cast<std::int16_t>(i)), text);
    }
  }

  bool shows(Sublayer sublayer) const {
    return std::any_of(trace_.tasks.begin(), trace_.tasks.end(), [&](const TraceTask& task) {
      return std::any_of(task.sublayers.begin(), task.sublayers.end(),
                         [&](const TraceSublayer& at) { return at.sublayer == sublayer; });
    });
  }

  std::int16_t last_sub_batch() const {
    std::int16_t last = 0;
    for (const TraceTask& task : trace_.tasks)
      last = std::max(last, task.tagged ? task.tag.sub_batch : std::int16_t{0});
    return last;
  }

  void draw_panel(const Panel& panel) {
    black();
    const IterationPath& path = panel.path;
    std::string title =
        fmt::format("iteration {}: {} tasks in {}, critical path {}", path.iteration,
                    path.num_tasks, format_time(static_cast<double>(path.duration_ns())),
                    format_time(static_cast<double>(path.length_ns())));
    const auto start_ns = static_cast<double>(path.start_ns);
    if (panel.end_ns - panel.start_ns < static_cast<double>(path.duration_ns())) {
      if (panel.start_ns > start_ns)
        title += fmt::format("; from {}", format_time(panel.start_ns - start_ns));
      title += fmt::format("; up to {}", format_time(panel.end_ns - start_ns));
    }
    show_text(cairo_, left_margin, y_ + 22, title, Anchor::left);
    y_ += title_height;
    for (int i = 0; i < panel.num_lines; ++i) draw_line(panel, i);
  }

  void draw_line(const Panel& panel, int number) {
    iteration_ = panel.path.iteration;
    line_ns_ = panel.line_ns();
    line_start_ = panel.start_ns + number * line_ns_;
    const double top = y_;
    for (const TraceWorker& worker : trace_.workers) draw_worker(worker);
    for (const LinkRow& link : links_) draw_link(link);
    draw_axis(top, static_cast<double>(panel.path.start_ns));
    y_ += axis_height;
  }

  double x_at(double ns) const {
    return left_margin + std::clamp((ns - line_start_) / line_ns_, 0.0, 1.0) * time_width;
  }
  bool on_line(std::int64_t start, std::int64_t end) const {
    return static_cast<double>(end) > line_start_ &&
           static_cast<double>(start) < line_start_ + line_ns_;
  }

  /// The longest of the labels that fits.
  void draw_box(std::int64_t start, std::int64_t end, double y, double height, const Fill& fill,
                bool pale, const std::vector<std::string>& labels) {
    const double left = x_at(static_cast<double>(start));
    const double right = x_at(static_cast<double>(end));
    cairo_set_source_rgba(cairo_, fill.colour.red, fill.colour.green, fill.colour.blue,
                          pale ? 0.3 : 1);
    cairo_rectangle(cairo_, left, y, std::max(0.4, right - left), height);
    cairo_fill_preserve(cairo_);
    cairo_set_source_rgb(cairo_, 0.25, 0.25, 0.25);
    cairo_stroke(cairo_);
    for (const std::string& label : labels) {
      if (text_width(label) + 4 > right - left) continue;
      if (fill.white_text && !pale) {
        cairo_set_source_rgb(cairo_, 1, 1, 1);
      } else {
        black();
      }
      show_text(cairo_, (left + right) / 2, y + height / 2 + 4, label, Anchor::middle);
      break;
    }
  }

  static std::vector<std::string> labels_of(const TraceTask& task, std::int32_t layer) {
    const std::string what = task_label(task);
    if (!task.tagged || layer < 0) return {what};
    const std::string number = fmt::format("layer {}", layer);
    return {number + ": " + what, number, std::to_string(layer)};
  }

  void draw_task(const TraceTask& task, bool pale) {
    const Fill fill = fill_of(task.tagged ? task.tag.sub_batch : std::int16_t{0});
    for (const Box& box : boxes_of(task)) {
      if (!on_line(box.start_ns, box.end_ns)) continue;
      std::vector<std::string> labels = labels_of(task, box.layer);
      if (box.num_layers > 1)
        labels = {layers_of(task.tag) + ": " + task_label(task), layers_of(task.tag)};
      draw_box(box.start_ns, box.end_ns, y_, task_height, fill, pale, labels);
    }
  }

  void draw_worker(const TraceWorker& worker) {
    black();
    show_text(cairo_, left_margin - 8, y_ + task_height + 4, worker.name, Anchor::right);
    for (const TraceTask& task : trace_.tasks) {
      if (task.worker != worker.id || !on_line(task.start_ns, task.end_ns)) continue;
      const bool pale = !task.tagged || task.tag.iteration != iteration_;
      draw_task(task, pale);
      for (const TraceSublayer& at : task.sublayers) {
        if (!on_line(at.start_ns, at.end_ns)) continue;
        draw_box(at.start_ns, at.end_ns, y_ + task_height, sublayer_height, fill_of(at.sublayer),
                 pale, names_of(at.sublayer));
      }
    }
    y_ += task_height + sublayer_height + row_gap;
  }

  static std::vector<std::string> names_of(Sublayer sublayer) {
    const SublayerProperties& properties = properties_of(sublayer);
    return {std::string(properties.name), std::string(properties.short_name)};
  }

  std::string node_name(int id) const {
    for (const TraceNode& node : trace_.nodes) {
      if (node.id == id) return std::string(to_string(node.tier));
    }
    return "?";
  }

  void draw_link(const LinkRow& link) {
    black();
    const double height = link.height() / static_cast<double>(link.num_lanes);
    show_text(cairo_, left_margin - 8, y_ + link.height() / 2 + 4,
              node_name(link.from) + " to " + node_name(link.to), Anchor::right);
    for (const LinkRow::Drawn& each : link.drawn) {
      const TraceTransfer& transfer = *each.transfer;
      if (!on_line(transfer.start_ns, transfer.end_ns)) continue;
      std::vector<std::string> labels;
      if (height >= lane_height) labels.push_back(format_size(transfer.bytes));
      draw_box(transfer.start_ns, transfer.end_ns, y_ + height * static_cast<double>(each.lane),
               height, transfer.prefetch ? prefetch_fill : fetch_fill, false, labels);
    }
    y_ += link.height() + row_gap;
  }

  void draw_axis(double top, double begin) {
    cairo_set_source_rgb(cairo_, 0.3, 0.3, 0.3);
    const double y = y_ - row_gap + 4;
    cairo_move_to(cairo_, left_margin, y);
    cairo_line_to(cairo_, left_margin + time_width, y);
    cairo_stroke(cairo_);
    const double tick = tick_distance(line_ns_, 10);
    const double first = std::ceil((line_start_ - begin) / tick - 1e-9) * tick;
    for (double at = first; at <= line_start_ - begin + line_ns_ * (1 - 1e-9); at += tick) {
      const double x = x_at(begin + at);
      cairo_set_source_rgba(cairo_, 0.3, 0.3, 0.3, 0.25);
      cairo_move_to(cairo_, x, top);
      cairo_line_to(cairo_, x, y);
      cairo_stroke(cairo_);
      cairo_set_source_rgb(cairo_, 0.3, 0.3, 0.3);
      show_text(cairo_, x, y + 14, at < tick / 2 ? "0" : format_tick(at, tick), Anchor::middle);
    }
  }

  const Trace& trace_;
  std::vector<Panel> panels_;
  std::vector<LinkRow> links_;
  cairo_t* cairo_ = nullptr;
  double y_ = 0;
  std::int64_t iteration_ = 0;
  double line_start_ = 0;
  double line_ns_ = 1;
};

}  // namespace

std::string draw_gantt(const Trace& trace, const std::vector<std::int64_t>& iterations,
                       PictureFormat format, const TimeRange& range) {
  Painter painter(trace, iterations, range);
  return draw_picture(picture_width, painter.height(), format,
                      [&](cairo_t* cairo) { painter.draw(cairo); });
}

}  // namespace sluice
