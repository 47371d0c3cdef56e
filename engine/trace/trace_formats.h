#pragma once

#include <string>

#include "engine/trace/trace.h"

namespace sluice {

/// A trace for ViTE and pajeng, times in ms. A worker has a row of sublayers (layer, sub-batch,
/// iteration, phase, tokens and task as fields of each state) and below it one of tasks; a memory
/// node has the variable of its use; transfers are links from node to node with their bytes;
/// iterations and requests are events of the machine.
std::string trace_as_paje(const Trace& trace);

/// A trace for ui.perfetto.dev and chrome://tracing, times in us: sublayers inside of their tasks.
std::string trace_as_perfetto(const Trace& trace);

/// The tasks that ran and what each depended on, for Graphviz: a cluster an iteration.
std::string trace_as_dot(const Trace& trace);

}  // namespace sluice
