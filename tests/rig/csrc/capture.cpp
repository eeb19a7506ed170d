// Captures and graphs: see device.h.
#include <algorithm>

#include "state.h"

namespace rig {

constexpr int global_mode = 0, thread_local_mode = 1, relaxed_mode = 2;
static thread_local int mode_of_thread = global_mode;

int* capture_mode_of_thread() { return &mode_of_thread; }

bool is_capturing(const Capture* capture, uint64_t id) {
  for (auto* each : state().captures)
    if (each == capture) return each->id == id;
  return false;
}

int check_capture(const char* call) {
  Locked lock;
  if (mode_of_thread == relaxed_mode) return ok;
  int error = ok;
  for (auto* capture : state().captures) {
    bool mine = pthread_equal(capture->thread, pthread_self());
    if (capture->mode == relaxed_mode || (capture->mode == thread_local_mode && !mine)) continue;
    capture->invalid = true;
    error = capture_unsupported;
    hazard(format("%s during a capture", call));
  }
  return error;
}

void Capture::add(Stream* stream, Work&& work, const std::vector<uintptr_t>& pointers) {
  for (const auto& range : work.ranges)
    if (work.kind == Work::Kind::copy && memory_of((void*)range.begin) != Memory::device)
      hazard(format("a copy between host and device (%zu bytes) was captured", range.end - range.begin));
  graph->pointers.insert(graph->pointers.end(), pointers.begin(), pointers.end());
  for (const auto& range : work.ranges) graph->pointers.push_back(range.begin);
  graph->nodes.push_back({std::move(work), stream->frontier});
  stream->frontier = {(int)graph->nodes.size() - 1};
}

bool Graph::touches(uintptr_t begin, uintptr_t end) const {
  auto found = std::lower_bound(pointers.begin(), pointers.end(), begin);
  return found != pointers.end() && *found < end;
}

int begin_capture(void* handle, int mode) {
  Locked lock;
  State& it = state();
  Stream* stream = stream_of(handle);
  if (stream == it.streams[0]) {
    hazard("capture of the default stream");
    return capture_unsupported;
  }
  if (stream->capture) return invalid_value;
  auto* graph = new Graph;
  graph->id = it.next_capture;
  it.live["graphs"]++;
  stream->capture = new Capture{it.next_capture++, mode, pthread_self(), stream, graph};
  stream->frontier.clear();
  it.captures.push_back(stream->capture);
  it.counts["capture"]++;
  return ok;
}

// A stream that waits for an event of a capture is captured from then on.
void join_capture(Stream* stream, const Event* event) {
  if (!stream->capture) {
    stream->capture = event->capture;
    stream->frontier.clear();
  }
  for (int node : event->frontier)
    if (std::find(stream->frontier.begin(), stream->frontier.end(), node) == stream->frontier.end())
      stream->frontier.push_back(node);
}

// Whether each node comes before what is in `frontier`.
static bool all_joined(const Graph& graph, std::vector<int> frontier) {
  std::vector<bool> reached(graph.nodes.size());
  while (!frontier.empty()) {
    int node = frontier.back();
    frontier.pop_back();
    if (reached[node]) continue;
    reached[node] = true;
    frontier.insert(frontier.end(), graph.nodes[node].after.begin(), graph.nodes[node].after.end());
  }
  return std::all_of(reached.begin(), reached.end(), [](bool each) { return each; });
}

int end_capture(void* handle, Graph** result) {
  Locked lock;
  State& it = state();
  Stream* stream = stream_of(handle);
  Capture* capture = stream->capture;
  *result = nullptr;
  if (!capture) return invalid_value;
  bool joined = all_joined(*capture->graph, stream->frontier);
  for (auto* each : it.streams)
    if (each->capture == capture) each->capture = nullptr;
  it.captures.erase(std::find(it.captures.begin(), it.captures.end(), capture));
  int error = capture->invalid ? capture_invalidated : joined ? ok : capture_unjoined;
  if (!joined) hazard("a capture ends while a stream that it forked has not joined it");
  auto& pointers = capture->graph->pointers;
  std::sort(pointers.begin(), pointers.end());
  pointers.erase(std::unique(pointers.begin(), pointers.end()), pointers.end());
  if (error == ok) {
    *result = capture->graph;
    it.counts["graph_kernels"] += capture->graph->nodes.size();
  } else {
    release_graph(capture->graph, false);
  }
  delete capture;
  return error;
}

bool capture_info(void* handle, uint64_t* id, Graph** graph) {
  Locked lock;
  Capture* capture = stream_of(handle)->capture;
  if (id) *id = capture ? capture->id : 0;
  if (graph) *graph = capture ? capture->graph : nullptr;
  return capture != nullptr;
}

int instantiate_graph(Graph* graph) {
  Locked lock;
  graph->has_executable = true;
  return ok;
}

size_t num_nodes(Graph* graph) { return graph->nodes.size(); }

void release_graph(Graph* graph, bool executable) {
  Locked lock;
  (executable ? graph->has_executable : graph->has_template) = false;
  if (graph->has_executable || graph->has_template) return;
  if (!graph->collectives.empty()) state().live["graphs_with_collectives"]--;
  state().live["graphs"]--;
  for (auto* stream : state().streams) {
    auto of_graph = [&](const GraphUse& use) { return use.graph == graph; };
    stream->graphs.erase(std::remove_if(stream->graphs.begin(), stream->graphs.end(), of_graph), stream->graphs.end());
  }
  delete graph;
}

static bool check_memory(Graph* graph) {
  if (graph->checked_at_free == state().frees) return true;
  for (uintptr_t pointer : graph->pointers)
    if (memory_of((void*)pointer) != Memory::device) {
      hazard(format("graph %llu reads or writes memory that was given back", (unsigned long long)graph->id));
      return false;
    }
  graph->checked_at_free = state().frees;
  return true;
}

int launch_graph(Graph* graph, void* handle) {
  Locked lock;
  State& it = state();
  Stream* stream = stream_of(handle);
  it.counts["graph_launch"]++;
  check_escaped(stream, "a graph");
  next_operation(stream, "a graph");
  if (!check_memory(graph)) return it.device_error;
  if (it.checking) check_graph_races(stream, graph);
  for (const auto& line : graph->collectives)
    if (it.collectives) fprintf(it.collectives, "%s\n", line.c_str());
  std::vector<std::function<void()>> runs;
  for (auto& node : graph->nodes)
    if (node.work.run) runs.push_back(node.work.run);
  queue(stream, runs.empty() ? std::function<void()>() : [runs] {
    for (const auto& run : runs) run();
  });
  return it.device_error;
}

void collective_called(const std::string& line) {
  Locked lock;
  State& it = state();
  for (auto* capture : it.captures)
    if (pthread_equal(capture->thread, pthread_self())) {
      if (capture->graph->collectives.empty()) it.live["graphs_with_collectives"]++;
      capture->graph->collectives.push_back(line);
      return;
    }
  if (it.collectives) fprintf(it.collectives, "%s\n", line.c_str());
}

void communicators(int change) {
  Locked lock;
  state().live["communicators"] += change;
  if (change < 0 && state().live["graphs_with_collectives"] > 0)
    hazard(format("a communicator is destroyed while %lld graphs hold its collectives",
                  (long long)state().live["graphs_with_collectives"]));
}

}  // namespace rig
