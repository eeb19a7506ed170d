// What the pretended GPU remembers. Everything here is guarded by `State::mutex`.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <unordered_map>

#include "device.h"

namespace rig {

using Seq = uint64_t;            // number of an operation in its stream, from 1
using Clock = std::vector<Seq>;  // by stream: up to which of its operations all come before

struct Queued {
  Seq seq;
  Clock clock;
  std::function<void()> run;
};

struct Access {
  Range range;
  Seq seq;
  const char* name;
};

struct Touch {
  Seq seq;
  const char* name;
};

struct Node {
  Work work;
  std::vector<int> after;
};

struct Graph {
  uint64_t id;
  std::vector<Node> nodes;
  std::vector<uintptr_t> pointers;  // into device memory, that its kernels were captured with, sorted
  std::vector<std::string> collectives;
  uint64_t checked_at_free = 0;
  bool has_template = true, has_executable = false;

  bool touches(uintptr_t begin, uintptr_t end) const;
};

struct Capture {
  uint64_t id;
  int mode;
  pthread_t thread;
  Stream* origin;
  Graph* graph;
  bool invalid = false;

  void add(Stream* stream, Work&& work, const std::vector<uintptr_t>& pointers);
};

struct GraphUse {
  const Graph* graph;
  Seq seq;
};

struct Stream {
  int id = 0;
  Seq seq = 0;
  Clock clock;               // what comes before the next operation
  std::deque<Queued> queue;  // not yet carried out
  bool has_owner = false;
  pthread_t owner{};
  Capture* capture = nullptr;
  std::vector<int> frontier;  // nodes that the next captured one comes after
  std::vector<Access> accesses;
  std::map<uintptr_t, Touch> touched;
  std::vector<GraphUse> graphs;
};

struct Event {
  unsigned flags = 0;
  bool recorded = false;
  int queries = 0;
  Clock clock;
  Capture* capture = nullptr;
  uint64_t capture_id = 0;
  std::vector<int> frontier;
};

struct Allocation {
  size_t bytes;
  Memory kind;
  int device = 0;
  bool reads = true, writes = true;  // what a copy may do there
};

// Memory that processes share: a memfd.
struct Shared {
  int descriptor, device;
  size_t bytes;

  ~Shared();
};

struct Device {
  size_t used_bytes = 0;  // by allocations of this process alone
  int retained = 0;       // the driver's users of the context
  bool by_runtime = false;
  int books = -1;  // a memfd as long as what this process has there
  size_t in_books = 0, others = 0;  // and what all else had there when it was last added up
};

struct State {
  State();
  std::recursive_mutex mutex;
  int depth = 0;  // of calls that hold it
  // Hazards of the outermost of them. A thread_local that is destroyed would take the linker's lock under this one, and
  // a library that another thread loads takes them the other way round.
  std::vector<std::string> found;

  std::vector<Stream*> streams;
  std::vector<Capture*> captures;
  uint64_t next_capture = 1;
  Clock completed;
  Schedule schedule = Schedule::eager;
  std::minstd_rand random;
  bool checking = true;   // races
  bool serving = false;   // nothing may be allocated, compiled or waited for
  int device_error = ok;  // that every call reports from now on, as after an illegal access
  bool has_launching_thread = false;
  pthread_t launching_thread{};

  std::map<uintptr_t, Allocation> allocations;
  uint64_t frees = 0;
  int64_t allocations_until_failure = -1;
  size_t total_bytes = 0;  // of each device
  std::string gpu;         // processes that have the same name for it share it
  std::vector<Device> devices;
  pid_t initialized_by = 0;
  std::map<uint64_t, std::shared_ptr<Shared>> handles;
  uint64_t next_handle = 1;
  std::map<uintptr_t, size_t> reserved;                  // bytes, by the first address
  std::map<uintptr_t, std::shared_ptr<Shared>> mapped;  // also in `allocations`
  std::unordered_map<const void*, std::string> kernels;

  std::map<std::string, uint64_t> counts;
  std::map<std::string, int64_t> live;
  std::vector<std::string> hazards;
  std::set<std::string> unmodelled;
  std::atomic<void (*)(const char*)> on_hazard{nullptr};
  FILE* hazard_log = nullptr;
  FILE* recording = nullptr;
  FILE* collectives = nullptr;
};

State& state();

struct Locked {
  Locked();
  ~Locked();
};

// The steps of `enqueue`, for what is no single piece of work.
void check_escaped(Stream* stream, const char* name);
void next_operation(Stream* stream, const char* name);
void check_graph_races(Stream* stream, const Graph* graph);
void queue(Stream* stream, std::function<void()> run);

// The memory goes away: nothing that was put into a stream may still use it.
void check_unused(uintptr_t begin, uintptr_t end, const char* call);

bool fails_on_purpose();  // an allocation, because a test wants it
std::string memory_name(int device);  // of the memfds that are memory of a device
size_t used_bytes(int device);        // by all processes, which takes a millisecond to add up
bool has_room(int device, size_t bytes);  // it is added up again only where there seems to be none
void write_books(int device);

bool is_capturing(const Capture* capture, uint64_t id);
void join_capture(Stream* stream, const Event* event);

}  // namespace rig
