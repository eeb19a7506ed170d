// Memory and copies: see device.h. Device memory is the host's, taken from the system when it is first written.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "state.h"

namespace rig {

constexpr size_t mib = 1 << 20, context_bytes = 600 * mib, granularity = 2 * mib;
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
  random.seed(setting("RIG_SEED", 1));
  const char* rank = getenv("RANK");
  collectives = log_in("RIG_COLLECTIVES", std::string("/rank") + (rank ? rank : "0"));
  hazard_log = log_in("RIG_HAZARDS", "/" + std::to_string(getpid()));
}

void* allocate(size_t bytes, Memory kind, const char* call) {
  Locked lock;
  State& it = state();
  if (kind == Memory::device) bytes = (bytes + granularity - 1) / granularity * granularity;
  if (it.allocations_until_failure >= 0 && it.allocations_until_failure-- == 0) {
    it.counts["allocation_failed_on_purpose"]++;
    return nullptr;
  }
  if (kind == Memory::device && it.used_bytes + bytes + context_bytes > it.total_bytes) return nullptr;
  if (it.serving && kind == Memory::device) hazard(format("%s of %zu bytes in serving", call, bytes));
  void* memory = mmap(nullptr, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  it.allocations[(uintptr_t)memory] = {bytes, kind};
  it.counts[kind == Memory::device ? "device_allocation" : "pinned_allocation"]++;
  it.live[kind == Memory::device ? "device_bytes" : "pinned_bytes"] += bytes;
  if (kind == Memory::device) it.used_bytes += bytes;
  return memory;
}

int free_memory(void* pointer, Memory kind) {
  Locked lock;
  State& it = state();
  auto found = it.allocations.find((uintptr_t)pointer);
  if (found == it.allocations.end() || found->second.kind != kind) {
    hazard("memory is given back that was never taken");
    return invalid_value;
  }
  synchronize_device("cudaFree");
  size_t bytes = found->second.bytes;
  it.live[kind == Memory::device ? "device_bytes" : "pinned_bytes"] -= bytes;
  if (kind == Memory::device) it.used_bytes -= bytes;
  it.allocations.erase(found);
  it.frees++;
  munmap(pointer, bytes ? bytes : 1);
  return ok;
}

Memory memory_of(const void* pointer) {
  Locked lock;
  auto& allocations = state().allocations;
  auto after = allocations.upper_bound((uintptr_t)pointer);
  if (after == allocations.begin()) return Memory::none;
  --after;
  return (uintptr_t)pointer < after->first + after->second.bytes ? after->second.kind : Memory::none;
}

void device_memory(size_t* free_bytes, size_t* total_bytes) {
  Locked lock;
  *total_bytes = state().total_bytes;
  *free_bytes = state().total_bytes - state().used_bytes - context_bytes;
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
  for (const auto& range : work.ranges) work.params.push_back({range.begin, 8});
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

}  // namespace rig
