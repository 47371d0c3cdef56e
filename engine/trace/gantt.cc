#include "engine/trace/gantt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "codelets/runtime/kernel_times.h"
#include "engine/trace/sublayer_colour.h"
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
constexpr double row_gap = 8;
constexpr double axis_height = 26;
constexpr double width_per_box = 250;  ///< as much as a stage's sublayers need for their names
constexpr double max_height = 16000;   ///< Cairo draws 32767 pixels, two a point

struct Fill {
  Colour colour;
  bool white_text;
};

Fill fill_of(Sublayer sublayer) {
  const Colour colour = colour_of(sublayer);
  const double luma = 0.299 * colour.red + 0.587 * colour.green + 0.114 * colour.blue;
  return {colour, luma < 0.55};
}

/// Of tasks, by their sub-batches; further ones begin again with the first.
constexpr std::array<Fill, 3> sub_batch_fills = {
    {{{0.88, 0.92, 0.98}, false}, {{0.99, 0.89, 0.78}, false}, {{0.88, 0.96, 0.86}, false}}};

Fill fill_of(std::int16_t sub_batch) {
  const auto number = static_cast<std::size_t>(std::max<std::int16_t>(0, sub_batch));
  return sub_batch_fills.at(number % sub_batch_fills.size());
}

std::string format_time(double ns) {
  if (ns < 1e6) return fmt::format("{:.4g} us", ns * 1e-3);
  return ns < 1e9 ? fmt::format("{:.4g} ms", ns * 1e-6) : fmt::format("{:.4g} s", ns * 1e-9);
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

/// An iteration and how it is cut.
struct Panel {
  IterationPath path;
  int num_lines = 1;

  double line_ns() const {
    return std::max(1.0, static_cast<double>(path.duration_ns()) / num_lines);
  }
};

std::vector<Panel> panels_of(const Trace& trace, const std::vector<std::int64_t>& iterations,
                             double line_height) {
  std::vector<Panel> panels;
  int lines = 0;
  for (const std::int64_t iteration : iterations) {
    Panel panel;
    panel.path = critical_path(trace, iteration);
    std::map<int, std::size_t> boxes;  // by worker
    std::size_t most = 1;
    for (const TraceTask& task : trace.tasks) {
      if (task.tagged && task.tag.iteration == iteration)
        most = std::max(most, boxes[task.worker] += boxes_of(task).size());
    }
    panel.num_lines =
        static_cast<int>(std::ceil(static_cast<double>(most) * width_per_box / time_width));
    lines += panel.num_lines;
    panels.push_back(std::move(panel));
  }
  const double room =
      max_height - legend_height - title_height * static_cast<double>(panels.size());
  const double share = room / (line_height * lines);
  if (share >= 1) return panels;
  for (Panel& panel : panels)
    panel.num_lines = std::max(1, static_cast<int>(panel.num_lines * share));
  return panels;
}

class Painter {
 public:
  Painter(const Trace& trace, const std::vector<std::int64_t>& iterations)
      : trace_(trace),
        links_(link_use(trace)),
        panels_(panels_of(trace, iterations, line_height())) {}

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
    return static_cast<double>(trace_.workers.size()) * (task_height + sublayer_height + row_gap) +
           static_cast<double>(links_.size()) * (transfer_height + row_gap) + axis_height;
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
    show_text(cairo_, left_margin, y_ + 22,
              fmt::format("iteration {}: {} tasks in {}, critical path {}", path.iteration,
                          path.num_tasks, format_time(static_cast<double>(path.duration_ns())),
                          format_time(static_cast<double>(path.length_ns()))),
              Anchor::left);
    y_ += title_height;
    for (int i = 0; i < panel.num_lines; ++i) draw_line(panel, i);
  }

  void draw_line(const Panel& panel, int number) {
    iteration_ = panel.path.iteration;
    line_ns_ = panel.line_ns();
    line_start_ = static_cast<double>(panel.path.start_ns) + number * line_ns_;
    const double top = y_;
    for (const TraceWorker& worker : trace_.workers) draw_worker(worker);
    for (const LinkUse& link : links_) draw_link(link);
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
                 pale, short_names(at.sublayer));
      }
    }
    y_ += task_height + sublayer_height + row_gap;
  }

  static std::vector<std::string> short_names(Sublayer sublayer) {
    std::vector<std::string> names = {std::string(to_string(sublayer))};
    if (sublayer == Sublayer::attention) names.emplace_back("att");
    if (sublayer == Sublayer::out_proj) names.emplace_back("out");
    if (sublayer == Sublayer::embedding) names.emplace_back("emb");
    return names;
  }

  std::string node_name(int id) const {
    for (const TraceNode& node : trace_.nodes) {
      if (node.id == id) return std::string(to_string(node.tier));
    }
    return "?";
  }

  void draw_link(const LinkUse& link) {
    black();
    show_text(cairo_, left_margin - 8, y_ + transfer_height - 6,
              node_name(link.from) + " to " + node_name(link.to), Anchor::right);
    constexpr Fill fetch = {{0.93, 0.93, 0.60}, false};
    constexpr Fill prefetch = {{0.82, 0.90, 0.70}, false};
    for (const TraceTransfer& transfer : trace_.transfers) {
      if (transfer.from != link.from || transfer.to != link.to ||
          !on_line(transfer.start_ns, transfer.end_ns))
        continue;
      draw_box(transfer.start_ns, transfer.end_ns, y_, transfer_height,
               transfer.prefetch ? prefetch : fetch, false, {format_size(transfer.bytes)});
    }
    y_ += transfer_height + row_gap;
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
      show_text(cairo_, x, y + 14, at < tick / 2 ? "0" : format_time(at), Anchor::middle);
    }
  }

  const Trace& trace_;
  std::vector<LinkUse> links_;
  std::vector<Panel> panels_;
  cairo_t* cairo_ = nullptr;
  double y_ = 0;
  std::int64_t iteration_ = 0;
  double line_start_ = 0;
  double line_ns_ = 1;
};

}  // namespace

std::string draw_gantt(const Trace& trace, const std::vector<std::int64_t>& iterations,
                       PictureFormat format) {
  Painter painter(trace, iterations);
  return draw_picture(picture_width, painter.height(), format,
                      [&](cairo_t* cairo) { painter.draw(cairo); });
}

}  // namespace sluice
