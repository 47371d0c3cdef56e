#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sluice {

/// How a command prints its results.
enum class OutputFormat : std::uint8_t { table, markdown, csv, json };

using TableRows = std::vector<std::vector<std::string>>;

/// Cells as aligned columns or as a Markdown table; the first row is the header. Numbers (cells
/// that begin with a digit) stand at the right.
std::string format_table(const TableRows& rows);
std::string format_markdown(const TableRows& rows);
/// Quoted where needed (RFC 4180).
std::string format_csv(const TableRows& rows);

/// Objects with the same keys as CSV: every value but lists.
std::string format_objects_csv(const nlohmann::ordered_json& objects);
/// The same as JSON, or as CSV for every other format.
std::string format_objects(OutputFormat format, const nlohmann::ordered_json& objects);

}  // namespace sluice
