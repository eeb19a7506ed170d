// Memory that outlives its process, and addresses that it comes to: CUDA's virtual memory, over memfds. See device.h.
//
// It refuses what CUDA refuses, and more where CUDA's documentation leaves a choice: sizes and addresses that are no
// multiple of the granularity, addresses that are not reserved or already mapped, a part of a mapping, handles and
// contexts that are gone.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "state.h"

namespace rig {

constexpr int no_memory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

Shared::~Shared() { close(descriptor); }

static bool is_multiple(size_t number) { return number && number % granularity == 0; }

static std::shared_ptr<Shared> find(uint64_t handle) {
  auto found = state().handles.find(handle);
  return found == state().handles.end() ? nullptr : found->second;
}

static uint64_t new_handle(int descriptor, int device, size_t bytes) {
  state().handles[state().next_handle] = std::shared_ptr<Shared>(new Shared{descriptor, device, bytes});
  return state().next_handle++;
}

// ---- memory

int create_memory(size_t bytes, int device, uint64_t* handle) {
  Locked lock;
  State& it = state();
  if (int error = initialize()) return error;
  if (device < 0 || device >= num_devices() || !is_multiple(bytes)) return invalid_value;
  if (fails_on_purpose() || used_bytes(device) + bytes > it.total_bytes) return out_of_memory;
  if (it.serving) hazard(format("cuMemCreate of %zu bytes in serving", bytes));
  int descriptor = memfd_create(memory_name(device).c_str(), MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, bytes)) return out_of_memory;
  it.devices[device].others += bytes;
  it.counts["shared_allocation"]++;
  return *handle = new_handle(descriptor, device, bytes), ok;
}

int export_memory(uint64_t handle, int* descriptor) {
  Locked lock;
  auto shared = find(handle);
  if (!shared) return invalid_value;
  *descriptor = dup(shared->descriptor);  // which the caller's children inherit
  return *descriptor < 0 ? out_of_memory : ok;
}

int import_memory(int descriptor, uint64_t* handle) {
  Locked lock;
  if (int error = initialize()) return error;
  char link[512];
  ssize_t length = readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), link, sizeof link);
  struct stat file;
  if (length < 0 || fstat(descriptor, &file)) return invalid_value;
  for (int device = 0; device < num_devices(); device++)
    if (std::string(link, length) == "/memfd:" + memory_name(device) + " (deleted)")
      return *handle = new_handle(fcntl(descriptor, F_DUPFD_CLOEXEC, 0), device, file.st_size), ok;
  return invalid_value;
}

int release_memory(uint64_t handle) {
  Locked lock;
  return state().handles.erase(handle) ? ok : invalid_value;
}

// ---- addresses

int reserve_addresses(size_t bytes, size_t alignment, uintptr_t* address) {
  Locked lock;
  if (int error = initialize()) return error;
  if (!is_multiple(bytes)) return invalid_value;
  if (!alignment) alignment = granularity;
  // More than is asked for, so that the start can be aligned; what is too much goes back.
  void* taken = mmap(nullptr, bytes + alignment, PROT_NONE, no_memory, -1, 0);
  if (taken == MAP_FAILED) return out_of_memory;
  uintptr_t begin = (uintptr_t)taken, start = (begin + alignment - 1) / alignment * alignment;
  if (start > begin) munmap(taken, start - begin);
  if (start < begin + alignment) munmap((void*)(start + bytes), begin + alignment - start);
  state().reserved[start] = bytes;
  return *address = start, ok;
}

static bool overlaps_a_mapping(uintptr_t begin, uintptr_t end) {
  for (const auto& [start, shared] : state().mapped)
    if (start < end && begin < start + state().allocations[start].bytes) return true;
  return false;
}

int free_addresses(uintptr_t address, size_t bytes) {
  Locked lock;
  auto found = state().reserved.find(address);
  if (found == state().reserved.end() || found->second != bytes) return invalid_value;
  if (overlaps_a_mapping(address, address + bytes)) return invalid_value;
  state().reserved.erase(found);
  munmap((void*)address, bytes);
  return ok;
}

int map_memory(uintptr_t address, size_t bytes, uint64_t handle) {
  Locked lock;
  State& it = state();
  if (!has_context(current_device())) return invalid_context;
  auto shared = find(handle);
  if (!shared || !is_multiple(bytes) || !is_multiple(address) || bytes > shared->bytes) return invalid_value;
  auto after = it.reserved.upper_bound(address);
  if (after == it.reserved.begin()) return invalid_value;
  --after;
  if (address + bytes > after->first + after->second) return invalid_value;
  if (overlaps_a_mapping(address, address + bytes)) return invalid_value;
  if (mmap((void*)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, shared->descriptor, 0) == MAP_FAILED)
    return out_of_memory;
  it.mapped[address] = shared;
  it.allocations[address] = {bytes, Memory::device, shared->device, false, false};
  return ok;
}

// The mapping that begins at an address and has so many bytes; none otherwise.
static Allocation* mapping(uintptr_t address, size_t bytes) {
  if (!state().mapped.count(address)) return nullptr;
  Allocation& found = state().allocations[address];
  return found.bytes == bytes ? &found : nullptr;
}

int allow_access(uintptr_t address, size_t bytes, bool reads, bool writes) {
  Locked lock;
  Allocation* it = mapping(address, bytes);
  if (!it) return invalid_value;
  if (!writes && it->writes) check_unused(address, address + bytes, "cuMemSetAccess");
  mprotect((void*)address, bytes, (reads ? PROT_READ : 0) | (writes ? PROT_WRITE : 0));
  it->reads = reads, it->writes = writes;
  return ok;
}

int unmap_memory(uintptr_t address, size_t bytes) {
  Locked lock;
  if (!has_context(current_device())) return invalid_context;
  if (!mapping(address, bytes)) return invalid_value;
  check_unused(address, address + bytes, "cuMemUnmap");
  mmap((void*)address, bytes, PROT_NONE, no_memory | MAP_FIXED, -1, 0);
  state().mapped.erase(address);
  state().allocations.erase(address);
  state().frees++;
  return ok;
}

bool may_access(uintptr_t begin, uintptr_t end, bool writes) {
  auto& allocations = state().allocations;
  for (uintptr_t at = begin; at < end;) {
    auto after = allocations.upper_bound(at);
    if (after == allocations.begin()) return false;
    --after;
    const Allocation& it = after->second;
    if (at >= after->first + it.bytes || it.kind != Memory::device || !(writes ? it.writes : it.reads)) return false;
    at = after->first + it.bytes;
  }
  return true;
}

}  // namespace rig
