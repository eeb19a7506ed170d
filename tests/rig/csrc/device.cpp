// Streams, events, and the order of things: see device.h.
#include "device.h"

#include <algorithm>
#include <cstdarg>

#include "state.h"

namespace rig {

State& state() {
  static State* it = new State;  // never destroyed: other libraries call in while the process ends
  return *it;
}

Locked::Locked() {
  state().mutex.lock();
  state().depth++;
}

Locked::~Locked() {
  std::vector<std::string> sentences;
  if (--state().depth == 0) sentences.swap(state().found);
  state().mutex.unlock();
  auto* report = state().on_hazard.load();  // may take Python's lock, which another thread holds while it waits for ours
  for (const auto& sentence : sentences)
    if (report) report(sentence.c_str());
}

void hazard(const std::string& sentence) {
  state().hazards.push_back(sentence);
  if (state().hazard_log) fprintf(state().hazard_log, "%s\n", sentence.c_str());
  state().found.push_back(sentence);
}

std::string format(const char* pattern, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

void count(const char* name, uint64_t by) {
  Locked lock;
  state().counts[name] += by;
}

void unmodelled(const char* function) {
  Locked lock;
  state().counts["unmodelled_call"]++;
  if (state().unmodelled.insert(function).second) hazard(format("%s was called, which the rig does not know", function));
}

// ---- happens before

static Seq known(const Clock& clock, int stream) { return stream < (int)clock.size() ? clock[stream] : 0; }

static void merge(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); i++) into[i] = std::max(into[i], from[i]);
}

static void set_known(Clock& clock, int stream, Seq seq) {
  if ((int)clock.size() <= stream) clock.resize(stream + 1);
  clock[stream] = std::max(clock[stream], seq);
}

// Carry out what is queued in `stream` up to `seq`, after all that comes before it in other streams.
static void run_until(Stream* stream, Seq seq) {
  while (!stream->queue.empty() && stream->queue.front().seq <= seq) {
    Queued queued = std::move(stream->queue.front());
    stream->queue.pop_front();
    for (auto* other : state().streams)
      if (other != stream) run_until(other, known(queued.clock, other->id));
    queued.run();
  }
}

static void run_all(const Clock& clock) {
  for (auto* stream : state().streams) run_until(stream, known(clock, stream->id));
}

// The host has seen that all before `clock` is done: what it calls from now on comes after.
static void completed(const Clock& clock) {
  run_all(clock);
  merge(state().completed, clock);
}

static void let_time_pass() {
  State& it = state();
  if (it.schedule == Schedule::eager) {
    for (auto* stream : it.streams) run_until(stream, stream->seq);
  } else if (it.schedule == Schedule::random && it.random() % 3 == 0) {
    Stream* stream = it.streams[it.random() % it.streams.size()];
    if (!stream->queue.empty()) run_until(stream, stream->queue.front().seq);
  }
}

// ---- races: two accesses of the same memory from two streams, one of them a write, and neither before the other

static void prune(Stream* stream) {
  Seq done = known(state().completed, stream->id);
  auto is_done = [&](const auto& access) { return access.seq <= done; };
  auto& accesses = stream->accesses;
  accesses.erase(std::remove_if(accesses.begin(), accesses.end(), is_done), accesses.end());
  auto& graphs = stream->graphs;
  graphs.erase(std::remove_if(graphs.begin(), graphs.end(), is_done), graphs.end());
  if (stream->touched.size() > 4096)
    for (auto it = stream->touched.begin(); it != stream->touched.end();)
      it = it->second.seq <= done ? stream->touched.erase(it) : std::next(it);
}

static void race(const Stream* stream, const char* name, const Stream* other, const char* other_name) {
  hazard(format("race: %s in stream %d and %s in stream %d use the same memory in no order", name, stream->id,
                other_name, other->id));
}

static void check_range(Stream* stream, const Clock& clock, const char* name, const Range& range) {
  for (auto* other : state().streams) {
    if (other == stream) continue;
    Seq ordered = known(clock, other->id);
    auto touch = other->touched.lower_bound(range.begin);
    for (; touch != other->touched.end() && touch->first < range.end; ++touch)
      if (touch->second.seq > ordered) return race(stream, name, other, touch->second.name);
    for (const auto& [graph, seq] : other->graphs)
      if (seq > ordered && graph->touches(range.begin, range.end)) return race(stream, name, other, "a graph");
    for (const auto& access : other->accesses)
      if (access.seq > ordered && (range.writes || access.range.writes) && access.range.begin < range.end &&
          range.begin < access.range.end)
        return race(stream, name, other, access.name);
  }
}

template <typename Touches>
static void check_copies(Stream* stream, const Clock& clock, const char* name, Touches touches) {
  for (auto* other : state().streams) {
    if (other == stream) continue;
    for (const auto& access : other->accesses)
      if (access.seq > known(clock, other->id) && touches(access.range.begin, access.range.end))
        return race(stream, name, other, access.name);
  }
}

static std::vector<uintptr_t> pointers_of(const Work& work) {
  std::vector<uintptr_t> pointers;
  for (const auto& param : work.params)
    if (param.size == 8 && memory_of((void*)param.value) == Memory::device) pointers.push_back(param.value);
  return pointers;
}

static void check_races(Stream* stream, const Work& work) {
  prune(stream);
  for (const auto& range : work.ranges) {
    check_range(stream, stream->clock, work.name, range);
    stream->accesses.push_back({range, stream->seq, work.name});
  }
  if (work.kind != Work::Kind::kernel) return;
  auto pointers = pointers_of(work);
  check_copies(stream, stream->clock, work.name, [&](uintptr_t begin, uintptr_t end) {
    return std::any_of(pointers.begin(), pointers.end(), [&](uintptr_t each) { return begin <= each && each < end; });
  });
  for (uintptr_t pointer : pointers) stream->touched[pointer] = {stream->seq, work.name};
}

void check_graph_races(Stream* stream, const Graph* graph) {
  prune(stream);
  check_copies(stream, stream->clock, "a graph",
               [&](uintptr_t begin, uintptr_t end) { return graph->touches(begin, end); });
  stream->graphs.push_back({graph, stream->seq});
}

void check_unused(uintptr_t begin, uintptr_t end, const char* call) {
  for (auto* stream : state().streams) {
    Seq done = known(state().completed, stream->id);
    const char* user = nullptr;
    for (const auto& access : stream->accesses)
      if (access.seq > done && access.range.begin < end && begin < access.range.end) user = access.name;
    for (auto touch = stream->touched.lower_bound(begin); touch != stream->touched.end() && touch->first < end; ++touch)
      if (touch->second.seq > done) user = touch->second.name;
    for (const auto& [graph, seq] : stream->graphs)
      if (seq > done && graph->touches(begin, end)) user = "a graph";
    if (!user) continue;
    hazard(format("%s takes memory away that %s in stream %d may still use", call, user, stream->id));
    run_until(stream, stream->seq);
  }
}

// ---- streams

Stream* stream_of(void* handle) {
  State& it = state();
  return (uintptr_t)handle <= 2 ? it.streams[0] : (Stream*)handle;
}

Stream* create_stream() {
  Locked lock;
  use_context();
  auto* stream = new Stream;
  stream->id = state().streams.size();
  state().streams.push_back(stream);
  state().live["streams"]++;
  return stream;
}

void destroy_stream(Stream* stream) {  // stays in the list: events may still name it
  Locked lock;
  run_until(stream, stream->seq);
  state().live["streams"]--;
}

// One thread puts work into a stream: of two, none knows in which order theirs runs.
static void check_owner(Stream* stream, const char* name) {
  pthread_t self = pthread_self();
  if (!stream->has_owner) {
    stream->owner = self;
    stream->has_owner = true;
  } else if (!pthread_equal(stream->owner, self)) {
    if (state().serving) hazard(format("%s was put into stream %d by a second thread", name, stream->id));
    stream->owner = self;
  }
  state().launching_thread = self;
  state().has_launching_thread = true;
}

void next_operation(Stream* stream, const char* name) {
  check_owner(stream, name);
  stream->seq++;
  merge(stream->clock, state().completed);
}

void check_escaped(Stream* stream, const char* name) {
  for (auto* capture : state().captures)
    if (pthread_equal(capture->thread, pthread_self()))
      hazard(format("%s went into stream %d while its thread captures another one: no replay will do it", name,
                    stream->id));
}

void queue(Stream* stream, std::function<void()> run) {
  if (run) stream->queue.push_back({stream->seq, stream->clock, std::move(run)});
  set_known(stream->clock, stream->id, stream->seq);
  let_time_pass();
}

static const char* counted_as(Work::Kind kind, bool captured) {
  static const char* names[][2] = {{"kernel", "captured_kernel"},
                                   {"copy", "captured_copy"},
                                   {"memset", "captured_memset"},
                                   {"host_call", "captured_host_call"},
                                   {"collective", "captured_collective"}};
  return names[(int)kind][captured];
}

// What was captured or called, one JSON object a line, for a test that compares.
static void record(const Work& work, bool captured, uint64_t capture_id) {
  FILE* file = state().recording;
  if (!file) return;
  fprintf(file, "{\"kind\":%d,\"name\":\"%s\",\"capture\":%llu,\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"shared\":%zu,",
          (int)work.kind, work.name, captured ? (unsigned long long)capture_id : 0ull, work.grid[0], work.grid[1],
          work.grid[2], work.block[0], work.block[1], work.block[2], work.shared_bytes);
  fprintf(file, "\"params\":[");
  for (size_t i = 0; i < work.params.size(); i++)
    fprintf(file, "%s[%u,%llu,%d]", i ? "," : "", work.params[i].size, (unsigned long long)work.params[i].value,
            work.params[i].size == 8 && memory_of((void*)work.params[i].value) == Memory::device);
  fprintf(file, "]}\n");
}

int enqueue(void* handle, Work&& work) {
  Locked lock;
  State& it = state();
  Stream* stream = stream_of(handle);
  if (stream->capture) {
    if (stream->capture->invalid) return capture_invalidated;
    it.counts[counted_as(work.kind, true)]++;
    record(work, true, stream->capture->id);
    auto pointers = pointers_of(work);
    stream->capture->add(stream, std::move(work), pointers);
    return ok;
  }
  check_escaped(stream, work.name);
  it.counts[counted_as(work.kind, false)]++;
  next_operation(stream, work.name);
  record(work, false, 0);
  if (it.checking) check_races(stream, work);
  queue(stream, std::move(work.run));
  return ok;
}

static Clock now_of(Stream* stream) {
  Clock clock = stream->clock;
  set_known(clock, stream->id, stream->seq);
  return clock;
}

static void check_host_wait(const char* call) {
  State& it = state();
  if (it.serving && it.has_launching_thread && pthread_equal(it.launching_thread, pthread_self()))
    hazard(format("%s makes the thread that launches wait for the GPU in serving", call));
}

int synchronize_stream(void* handle, const char* call) {
  Locked lock;
  if (int error = check_capture(call)) return error;
  state().counts["stream_synchronize"]++;
  check_host_wait(call);
  completed(now_of(stream_of(handle)));
  return state().device_error;
}

int synchronize_device(const char* call) {
  Locked lock;
  if (int error = check_capture(call)) return error;
  state().counts["device_synchronize"]++;
  check_host_wait(call);
  for (auto* stream : state().streams) completed(now_of(stream));
  return state().device_error;
}

int query_stream(void* handle) {
  Locked lock;
  if (int error = check_capture("cudaStreamQuery")) return error;
  Stream* stream = stream_of(handle);
  let_time_pass();
  if (!stream->queue.empty()) return not_ready;
  completed(now_of(stream));
  return ok;
}

// ---- events

constexpr unsigned blocking_sync = 1;

Event* create_event(unsigned flags) {
  Locked lock;
  state().live["events"]++;
  auto* event = new Event;
  event->flags = flags;
  return event;
}

void destroy_event(Event* event) {
  Locked lock;
  state().live["events"]--;
  delete event;
}

int record_event(Event* event, void* handle) {
  Locked lock;
  Stream* stream = stream_of(handle);
  state().counts["event_record"]++;
  event->recorded = true;
  event->queries = 0;
  event->capture = nullptr;
  if (stream->capture) {
    event->capture = stream->capture;
    event->capture_id = stream->capture->id;
    event->frontier = stream->frontier;
    return ok;
  }
  merge(stream->clock, state().completed);
  event->clock = now_of(stream);
  return ok;
}

int wait_event(void* handle, Event* event) {
  Locked lock;
  Stream* stream = stream_of(handle);
  state().counts["wait_event"]++;
  if (!event->recorded) hazard(format("stream %d waits for an event that was never recorded", stream->id));
  if (event->capture) {
    if (!is_capturing(event->capture, event->capture_id)) return ok;
    join_capture(stream, event);
    return ok;
  }
  if (stream->capture) {
    hazard(format("stream %d, which is captured, waits for an event from outside the capture", stream->id));
    stream->capture->invalid = true;
    return capture_isolation;
  }
  merge(stream->clock, event->clock);
  return ok;
}

int synchronize_event(Event* event) {
  Locked lock;
  if (int error = check_capture("cudaEventSynchronize")) return error;
  state().counts[event->flags & blocking_sync ? "event_wait_blocking" : "event_wait_spinning"]++;
  if (!event->recorded) hazard("the host waits for an event that was never recorded");
  check_host_wait("cudaEventSynchronize");
  completed(event->clock);
  return state().device_error;
}

int query_event(Event* event) {
  Locked lock;
  if (int error = check_capture("cudaEventQuery")) return error;
  state().counts["event_query"]++;
  let_time_pass();
  bool open = false;
  for (auto* stream : state().streams)
    open |= !stream->queue.empty() && stream->queue.front().seq <= known(event->clock, stream->id);
  if (open && ++event->queries < 1000) return not_ready;  // then it is a loop that waits
  completed(event->clock);
  return state().device_error;
}

}  // namespace rig
