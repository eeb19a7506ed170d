// What is known of kernels: their names, the launches that a GPU of sm_90 takes, and its figures.
#include <cuda_runtime_api.h>

#include "state.h"

namespace rig {

constexpr size_t max_shared_bytes = 232448;

void register_kernel(const void* host_function, const char* name) {
  Locked lock;
  state().kernels[host_function] = name;
}

const char* kernel_name(const void* host_function) {
  Locked lock;
  auto found = state().kernels.find(host_function);
  return found == state().kernels.end() ? "a kernel" : found->second.c_str();
}

void module_loaded(const char* kernel) {
  Locked lock;
  state().counts["module_loaded"]++;
  if (state().serving) hazard(format("kernel %s is compiled or loaded in serving", kernel));
}

bool valid_launch(const char* name, const unsigned (&grid)[3], const unsigned (&block)[3], size_t shared_bytes) {
  uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
  bool grid_fits = grid[0] && grid[1] && grid[2] && grid[0] <= 2147483647u && grid[1] <= 65535 && grid[2] <= 65535;
  if (grid_fits && threads && threads <= 1024 && shared_bytes <= max_shared_bytes) return true;
  Locked lock;
  hazard(format("launch of %s with grid %u, %u, %u, block %u, %u, %u and %zu bytes of shared memory", name, grid[0],
                grid[1], grid[2], block[0], block[1], block[2], shared_bytes));
  return false;
}

int device_attribute(int attribute) {  // an H200's
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 49152;
    case cudaDevAttrTotalConstantMemory: return 65536;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrClockRate: return 1980000;
    case cudaDevAttrMultiProcessorCount: return 132;
    case cudaDevAttrMemoryClockRate: return 3201000;
    case cudaDevAttrGlobalMemoryBusWidth: return 6144;
    case cudaDevAttrL2CacheSize: return 62914560;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
    case cudaDevAttrAsyncEngineCount: return 2;
    case cudaDevAttrComputeCapabilityMajor: return 9;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 233472;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return max_shared_bytes;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrMaxPersistingL2CacheSize: return 134217728;
    case cudaDevAttrConcurrentKernels: case cudaDevAttrUnifiedAddressing: case cudaDevAttrManagedMemory:
    case cudaDevAttrCooperativeLaunch: case cudaDevAttrConcurrentManagedAccess: case cudaDevAttrCanMapHostMemory:
    case 102 /* virtual memory management */: case 103 /* that is handed on by descriptors */: case 132 /* cluster launch */: return 1;
    default: return 0;
  }
}

}  // namespace rig
