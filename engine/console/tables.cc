#include "engine/console/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace sluice {
namespace {

using Rows = TableRows;
using Json = nlohmann::ordered_json;

/// Characters that a terminal shows, not bytes.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

std::vector<std::size_t> column_widths(const Rows& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  return widths;
}

/// A column of figures: its first value begins with a digit.
bool is_number_column(const Rows& rows, std::size_t column) {
  if (rows.size() < 2) return false;
  const std::string& cell = rows[1][column];
  return !cell.empty() && (cell[0] >= '0' && cell[0] <= '9');
}

std::string joined(const Rows& rows, const std::vector<std::string>& row,
                   std::string_view between) {
  const std::vector<std::size_t> widths = column_widths(rows);
  std::string line;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::string padding(widths[i] - width_of(row[i]), ' ');
    if (i > 0) line += between;
    line += is_number_column(rows, i) ? padding + row[i] : row[i] + padding;
  }
  return line;
}

}  // namespace

std::string format_objects_csv(const nlohmann::ordered_json& objects) {
  Rows rows;
  for (const Json& object : objects) {
    if (rows.empty()) {
      std::vector<std::string>& header = rows.emplace_back();
      for (const auto& [key, value] : object.items()) {
        if (!value.is_array()) header.push_back(key);
      }
    }
    std::vector<std::string>& row = rows.emplace_back();
    for (const Json& value : object) {
      if (value.is_array()) continue;
      if (value.is_null()) {
        row.emplace_back();
      } else {
        row.push_back(value.is_string() ? value.get<std::string>() : json_text(value));
      }
    }
  }
  return format_csv(rows);
}

std::string format_objects(OutputFormat format, const nlohmann::ordered_json& objects) {
  return format == OutputFormat::json ? json_text(objects, 2) + "\n" : format_objects_csv(objects);
}

std::string format_table(const Rows& rows) {
  Rows shown = rows;
  for (auto& row : shown) {
    for (std::string& cell : row) cell = printable(cell);
  }
  std::string text;
  for (const auto& row : shown) {
    std::string line = joined(shown, row, "  ");
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string format_markdown(const Rows& rows) {
  const std::vector<std::size_t> widths = column_widths(rows);
  std::string text = "| " + joined(rows, rows.front(), " | ") + " |\n|";
  for (std::size_t i = 0; i < widths.size(); ++i)
    text += std::string(widths[i] + 1, '-') + (is_number_column(rows, i) ? ":|" : "-|");
  text += "\n";
  for (std::size_t i = 1; i < rows.size(); ++i)
    text += "| " + joined(rows, rows[i], " | ") + " |\n";
  return text;
}

std::string format_csv(const Rows& rows) {
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::string cell = row[i];
      if (cell.find_first_of(",\"\n") != std::string::npos) {
        for (std::size_t at = 0; (at = cell.find('"', at)) != std::string::npos; at += 2)
          cell.insert(at, "\"");
        cell = fmt::format("\"{}\"", cell);
      }
      text += (i > 0 ? "," : "") + cell;
    }
    text += "\n";
  }
  return text;
}

}  // namespace sluice
