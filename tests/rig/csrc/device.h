// A pretended GPU: memory on the host, streams that keep their order, kernels that compute nothing.
//
// The stand-ins for CUDA's libraries (cudart.cpp, cuda.cpp, cublas.cpp, nccl.cpp) translate each call into one of this
// file's, and this file knows what a program may rely on: what happens before what (vector clocks, one entry for each
// stream), what a capture may do, whose memory is whose. What breaks a rule is a hazard, a sentence for a person.
//
// Copies are carried out, kernels are not. In which order of all that the rules allow, the schedule says: `eager` (as
// soon as they are called), `lazy` (only when the host waits for them) or `random`. A program that is right computes the
// same in all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace rig {

enum class Memory { none, pinned, device };
enum class Schedule { eager, lazy, random };

struct Param {  // of a kernel, by value; a value of more than eight bytes is its first eight
  uint64_t value;
  uint32_t size;
};

struct Range {  // of memory that a copy or a collective reads or writes
  uintptr_t begin, end;
  bool writes;
};

// What is put into a stream.
struct Work {
  enum class Kind { kernel, copy, memset, host_call, collective } kind = Kind::kernel;
  const char* name = "";
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
  size_t shared_bytes = 0;
  std::vector<Param> params;
  std::vector<Range> ranges;
  std::function<void()> run;  // what the schedule carries out; none for a kernel
};

struct Stream;
struct Event;
struct Graph;

// Errors of the runtime, by CUDA's numbers.
constexpr int ok = 0, invalid_value = 1, out_of_memory = 2, not_initialized = 3, invalid_configuration = 9,
              no_device = 100, invalid_device = 101, invalid_context = 201, not_ready = 600, capture_unsupported = 900,
              capture_invalidated = 901, capture_unjoined = 904, capture_isolation = 905, illegal_access = 700;

int num_devices();
int initialize();  // opens the device files; `not_initialized` in a child of a process that had opened them
std::string uuid_of(int device);  // 16 bytes

// A context is made by the runtime's first call that needs one, or retained by the driver's. Each thread has a current
// one, or none.
int use_context();  // as the runtime does: the thread's, or that of device 0
int current_device();  // of the thread's context; -1 if it has none
void set_current_device(int device);
int retain_context(int device);
int release_context(int device);
bool has_context(int device);

Stream* stream_of(void* handle);  // the stream behind a cudaStream_t; the default stream behind 0, 1 and 2
Stream* create_stream();
void destroy_stream(Stream* stream);
int enqueue(void* stream, Work&& work);
int copy(void* to, const void* from, size_t bytes, void* stream, bool may_return_early);
int synchronize_stream(void* stream, const char* call);
int synchronize_device(const char* call);
int query_stream(void* stream);

Event* create_event(unsigned flags);
void destroy_event(Event* event);
int record_event(Event* event, void* stream);
int wait_event(void* stream, Event* event);
int synchronize_event(Event* event);
int query_event(Event* event);

int begin_capture(void* stream, int mode);
int end_capture(void* stream, Graph** graph);
bool capture_info(void* stream, uint64_t* id, Graph** graph);
int* capture_mode_of_thread();
int check_capture(const char* call);  // `capture_unsupported` where the call may not be made during a capture
int instantiate_graph(Graph* graph);
int launch_graph(Graph* graph, void* stream);
size_t num_nodes(Graph* graph);
void release_graph(Graph* graph, bool executable);

int allocate(size_t bytes, Memory kind, const char* call, void** pointer);
int free_memory(void* pointer, Memory kind);
Memory memory_of(const void* pointer, int* device = nullptr);
size_t total_memory();  // of each device, in bytes
int device_memory(size_t* free_bytes, size_t* total_bytes);  // of the current device, after what all processes have
int set_memory(void* to, int value, size_t bytes, void* stream);

// Memory and addresses made apart from each other. An allocation lives while a handle, a mapping or a file descriptor
// of it is left, in whatever process.
constexpr size_t granularity = 2 << 20;
int create_memory(size_t bytes, int device, uint64_t* handle);
int export_memory(uint64_t handle, int* descriptor);
int import_memory(int descriptor, uint64_t* handle);
int release_memory(uint64_t handle);
int reserve_addresses(size_t bytes, size_t alignment, uintptr_t* address);
int free_addresses(uintptr_t address, size_t bytes);
int map_memory(uintptr_t address, size_t bytes, uint64_t handle);
int unmap_memory(uintptr_t address, size_t bytes);
int allow_access(uintptr_t address, size_t bytes, bool reads, bool writes);
bool may_access(uintptr_t begin, uintptr_t end, bool writes);  // whether all of it is memory of a device, and allowed

// Names of kernels by the address of their host function, as the runtime registers them.
void register_kernel(const void* host_function, const char* name);
const char* kernel_name(const void* host_function);

void module_loaded(const char* kernel);
bool valid_launch(const char* name, const unsigned (&grid)[3], const unsigned (&block)[3], size_t shared_bytes);
void collective_called(const std::string& line);  // into this rank's log, and again at each replay of its graph
void communicators(int change);

void count(const char* name, uint64_t by = 1);
void hazard(const std::string& sentence);
void unmodelled(const char* function);  // a stub was called that the rig knows nothing about
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
int device_attribute(int attribute);

}  // namespace rig
