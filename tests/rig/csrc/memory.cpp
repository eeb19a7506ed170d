// Memory and copies: see device.h. Device memory is the host's, taken from the system when it is first written.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "state.h"

namespace rig {

constexpr size_t mib = 1 << 20;
constexpr size_t largest_carried = 4 * mib;  // of copies within the device; weights and caches mean nothing here
constexpr unsigned char poison = 0x77;       // what a pinned target holds until its copy is done

static uint64_t setting(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text ? strtoull(text, nullptr, 10) : otherwise;
}

// A log of whole lines in the folder that a variable names; none without it.
static FILE* log_in(const char* variable, const std::string& name) {
  const char* folder = getenv(variable);
  FILE* file = folder ? fopen((folder + name).c_str(), "a") : nullptr;
  if (file) setvbuf(file, nullptr, _IOLBF, 0);
  return file;
}

State::State() {
  streams.push_back(new Stream);
  total_bytes = setting("RIG_MEMORY_MIB", 143771) * mib;
  const char* name = getenv("RIG_MEMORY");
  gpu = name ? name : "rig_" + std::to_string(getpid());  // of this process and its forks alone
  devices.resize(setting("RIG_DEVICES", 1));
  random.seed(setting("RIG_SEED", 1));
  const char* rank = getenv("RANK");
  collectives = log_in("RIG_COLLECTIVES", std::string("/rank") + (rank ? rank : "0"));
  hazard_log = log_in("RIG_HAZARDS", "/" + std::to_string(getpid()));
}

bool fails_on_purpose() {
  State& it = state();
  if (it.allocations_until_failure < 0 || it.allocations_until_failure-- > 0) return false;
  it.counts["allocation_failed_on_purpose"]++;
  return true;
}

static void use_bytes(const Allocation& allocation, int64_t sign) {
  State& it = state();
  it.live[allocation.kind == Memory::device ? "device_bytes" : "pinned_bytes"] += sign * (int64_t)allocation.bytes;
  if (allocation.kind != Memory::device) return;
  it.devices[allocation.device].used_bytes += sign * allocation.bytes;
  write_books(allocation.device);
}

int allocate(size_t bytes, Memory kind, const char* call, void** pointer) {
  Locked lock;
  State& it = state();
  *pointer = nullptr;
  if (int error = use_context()) return error;
  int device = current_device();
  if (kind == Memory::device) bytes = (bytes + granularity - 1) / granularity * granularity;
  if (fails_on_purpose()) return out_of_memory;
  if (kind == Memory::device && !has_room(device, bytes)) return out_of_memory;
  if (it.serving && kind == Memory::device) hazard(format("%s of %zu bytes in serving", call, bytes));
  void* memory = mmap(nullptr, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return out_of_memory;
  use_bytes(it.allocations[(uintptr_t)memory] = {bytes, kind, device}, +1);
  it.counts[kind == Memory::device ? "device_allocation" : "pinned_allocation"]++;
  return *pointer = memory, ok;
}

int free_memory(void* pointer, Memory kind) {
  Locked lock;
  State& it = state();
  auto found = it.allocations.find((uintptr_t)pointer);
  if (found == it.allocations.end() || found->second.kind != kind || it.mapped.count((uintptr_t)pointer)) {
    hazard("memory is given back that was never taken");
    return invalid_value;
  }
  synchronize_device("cudaFree");
  size_t bytes = found->second.bytes;
  use_bytes(found->second, -1);
  it.allocations.erase(found);
  it.frees++;
  munmap(pointer, bytes ? bytes : 1);
  return ok;
}

Memory memory_of(const void* pointer, int* device) {
  Locked lock;
  auto& allocations = state().allocations;
  auto after = allocations.upper_bound((uintptr_t)pointer);
  if (after == allocations.begin()) return Memory::none;
  --after;
  if ((uintptr_t)pointer >= after->first + after->second.bytes) return Memory::none;
  if (device) *device = after->second.device;
  return after->second.kind;
}

// From pinned memory: read when the copy runs, by which time the program may have written something else there.
static std::function<void()> from_pinned(void* to, const void* from, size_t bytes) {
  std::string called_with((const char*)from, bytes);
  return [=] {
    if (memory_of(from) != Memory::pinned)
      return hazard(format("pinned memory was given back before its copy of %zu bytes was done", bytes));
    if (memcmp(called_with.data(), from, bytes) != 0)
      hazard(format("a pinned buffer of %zu bytes was written before the copy from it was done", bytes));
    memcpy(to, from, bytes);
  };
}

// To pinned memory: what reads before the copy has run reads poison.
static std::function<void()> to_pinned(void* to, const void* from, size_t bytes) {
  memset(to, poison, bytes);
  return [=] {
    if (memory_of(to) != Memory::pinned)
      return hazard(format("pinned memory was given back before the copy of %zu bytes to it was done", bytes));
    for (size_t i = 0; i < bytes; i++)
      if (((unsigned char*)to)[i] != poison) {
        hazard(format("a pinned buffer of %zu bytes was written before the copy to it was done", bytes));
        break;
      }
    memcpy(to, from, bytes);
  };
}

int copy(void* to, const void* from, size_t bytes, void* stream, bool may_return_early) {
  Locked lock;
  State& it = state();
  Memory target = memory_of(to), source = memory_of(from);
  bool within = target == Memory::device && source == Memory::device;
  bool pinned = target == Memory::pinned || source == Memory::pinned;
  Work work;
  work.kind = Work::Kind::copy;
  work.name = within ? "a copy on the device" : target == Memory::device ? "a copy to the device" : "a copy to the host";
  if (target == Memory::device || within) work.ranges.push_back({(uintptr_t)to, (uintptr_t)to + bytes, true});
  if (source == Memory::device) work.ranges.push_back({(uintptr_t)from, (uintptr_t)from + bytes, false});
  for (const auto& range : work.ranges) {
    if (!may_access(range.begin, range.end, range.writes)) return invalid_value;
    work.params.push_back({range.begin, 8});
  }
  if (within) {
    if (bytes <= largest_carried) work.run = [=] { memmove(to, from, bytes); };
    return enqueue(stream, std::move(work));
  }
  uintptr_t host = (uintptr_t)(target == Memory::device ? from : to);
  if (stream_of(stream)->capture) work.ranges.push_back({host, host + bytes, false});
  it.counts[std::string(target == Memory::device ? "copy_to_device" : "copy_to_host") + (pinned ? "" : "_pageable")]++;
  if (it.serving && !pinned) hazard(format("a pageable copy of %zu bytes in serving", bytes));
  if (may_return_early && pinned) {
    if (target == Memory::device) work.run = from_pinned(to, from, bytes);
    if (target == Memory::pinned) work.run = to_pinned(to, from, bytes);
    return enqueue(stream, std::move(work));
  }
  if (int error = enqueue(stream, std::move(work))) return error;
  if (int error = synchronize_stream(stream, "a copy that waits")) return error;
  memmove(to, from, bytes);
  return ok;
}

int set_memory(void* to, int value, size_t bytes, void* stream) {
  Locked lock;
  Work work;
  work.kind = Work::Kind::memset;
  work.name = "a memset";
  work.ranges = {{(uintptr_t)to, (uintptr_t)to + bytes, true}};
  if (!may_access(work.ranges[0].begin, work.ranges[0].end, true)) return invalid_value;
  if (bytes <= largest_carried) work.run = [=] { memset(to, value, bytes); };
  else if (!value) work.run = [=] { madvise(to, bytes, MADV_REMOVE); };  // of a memfd; others keep what they have
  return enqueue(stream, std::move(work));
}

}  // namespace rig
