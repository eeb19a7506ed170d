// CUDA's runtime library: torch and flash-attn call it.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "device.h"

using namespace rig;

static thread_local cudaError_t last_error = cudaSuccess;

static cudaError_t result(int error) {
  if (error && error != not_ready) last_error = (cudaError_t)error;
  return (cudaError_t)error;
}

// Calls that wait for the device or take memory from it may not be made during a capture.
#define UNLESS_CAPTURING(call) \
  if (int error = check_capture(call)) return result(error)

extern "C" {

// ---- the device

cudaError_t cudaGetDeviceCount(int* count) { return *count = num_devices(), result(initialize()); }
cudaError_t cudaGetDevice(int* device) { return *device = current_device() < 0 ? 0 : current_device(), cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= num_devices()) return result(invalid_device);
  set_current_device(device);
  return result(use_context());
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  return *value = device_attribute(attribute), cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  memset(properties, 0, sizeof *properties);
  strcpy(properties->name, "NVIDIA H200 (pretended)");
  memcpy(properties->uuid.bytes, uuid_of(device).data(), sizeof properties->uuid.bytes);
  properties->totalGlobalMem = total_memory();
  auto attribute = [](cudaDeviceAttr each) { return device_attribute(each); };
  properties->major = attribute(cudaDevAttrComputeCapabilityMajor);
  properties->minor = attribute(cudaDevAttrComputeCapabilityMinor);
  properties->warpSize = attribute(cudaDevAttrWarpSize);
  properties->multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
  properties->l2CacheSize = attribute(cudaDevAttrL2CacheSize);
  properties->memoryBusWidth = attribute(cudaDevAttrGlobalMemoryBusWidth);
  properties->regsPerBlock = attribute(cudaDevAttrMaxRegistersPerBlock);
  properties->regsPerMultiprocessor = attribute(cudaDevAttrMaxRegistersPerMultiprocessor);
  properties->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
  properties->maxThreadsPerMultiProcessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
  properties->maxBlocksPerMultiProcessor = attribute(cudaDevAttrMaxBlocksPerMultiprocessor);
  properties->sharedMemPerBlock = attribute(cudaDevAttrMaxSharedMemoryPerBlock);
  properties->sharedMemPerBlockOptin = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  properties->sharedMemPerMultiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  for (int i = 0; i < 3; i++) {
    properties->maxThreadsDim[i] = i == 2 ? 64 : 1024;
    properties->maxGridSize[i] = i == 0 ? 2147483647 : 65535;
  }
  properties->memPitch = 2147483647;
  properties->totalConstMem = 65536;
  properties->textureAlignment = 512;
  properties->asyncEngineCount = 2;
  properties->managedMemory = properties->concurrentKernels = properties->unifiedAddressing = 1;
  properties->cooperativeLaunch = properties->canMapHostMemory = properties->concurrentManagedAccess = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int) { return snprintf(id, size, "0000:01:00.0"), cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 1, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }

// ---- errors

cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }
const char* cudaGetErrorName(cudaError_t error) {
  static thread_local char name[64];
  return snprintf(name, sizeof name, "cudaError%d", error), name;
}
const char* cudaGetErrorString(cudaError_t error) {
  static thread_local char text[64];
  switch ((int)error) {
    case out_of_memory: return "out of memory";
    case illegal_access: return "an illegal memory access was encountered";
    case capture_unsupported: return "operation not permitted when stream is capturing";
    case capture_invalidated: return "operation failed due to a previous error during capture";
    default: return snprintf(text, sizeof text, "error %d of the pretended GPU", error), text;
  }
}

// ---- memory

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  if (int error = use_context()) return result(error);
  return result(device_memory(free_bytes, total));
}
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  UNLESS_CAPTURING("cudaMalloc");
  return result(allocate(bytes, Memory::device, "cudaMalloc", pointer));
}
cudaError_t cudaFree(void* pointer) {
  if (!pointer) return cudaSuccess;
  UNLESS_CAPTURING("cudaFree");
  return result(free_memory(pointer, Memory::device));
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  UNLESS_CAPTURING("cudaHostAlloc");
  return result(allocate(bytes, Memory::pinned, "cudaHostAlloc", pointer));
}
cudaError_t cudaFreeHost(void* pointer) {
  UNLESS_CAPTURING("cudaFreeHost");
  return result(free_memory(pointer, Memory::pinned));
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  memset(attributes, 0, sizeof *attributes);
  Memory memory = memory_of(pointer, &attributes->device);
  attributes->type = memory == Memory::device   ? cudaMemoryTypeDevice
                     : memory == Memory::pinned ? cudaMemoryTypeHost
                                                : cudaMemoryTypeUnregistered;
  attributes->devicePointer = memory == Memory::none ? nullptr : (void*)pointer;
  attributes->hostPointer = memory == Memory::pinned ? (void*)pointer : nullptr;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return result(bytes ? copy(to, from, bytes, stream, true) : ok);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return result(copy(to, from, bytes, stream, true));
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  UNLESS_CAPTURING("cudaMemcpy");
  return result(copy(to, from, bytes, nullptr, false));
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t stream) {
  for (size_t row = 0; row < height; row++)
    if (int error = copy((char*)to + row * to_pitch, (const char*)from + row * from_pitch, width, stream, true))
      return result(error);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return result(set_memory(to, value, bytes, stream));
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  UNLESS_CAPTURING("cudaMemset");
  return result(set_memory(to, value, bytes, nullptr));
}
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
cudaError_t cudaGetSymbolAddress(void** pointer, const void*) {
  static char symbol[1 << 16];
  return *pointer = symbol, cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  static int it;
  return *pool = (cudaMemPool_t)&it, cudaSuccess;
}

// ---- streams and events

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = (cudaStream_t)create_stream(), cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return destroy_stream((Stream*)stream), cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) { return *priority = 0, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return result(synchronize_stream(stream, "cudaStreamSynchronize"));
}
cudaError_t cudaDeviceSynchronize(void) { return result(synchronize_device("cudaDeviceSynchronize")); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return result(query_stream(stream)); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return result(wait_event(stream, (Event*)event));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return *event = (cudaEvent_t)create_event(flags), cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return destroy_event((Event*)event), cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return result(record_event((Event*)event, stream));
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return result(record_event((Event*)event, stream));
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return result(query_event((Event*)event)); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return result(synchronize_event((Event*)event)); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  return *milliseconds = 0.001f, cudaSuccess;
}
static int call_host(cudaStream_t stream, std::function<void()> function) {
  Work work;
  work.kind = Work::Kind::host_call;
  work.name = "a host function";
  work.run = std::move(function);
  return enqueue(stream, std::move(work));
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  return result(call_host(stream, [=] { function(argument); }));
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* argument, unsigned) {
  UNLESS_CAPTURING("cudaStreamAddCallback");
  return result(call_host(stream, [=] { function(stream, cudaSuccess, argument); }));
}

// ---- captures and graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return result(begin_capture(stream, mode));
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return result(end_capture(stream, (Graph**)graph));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  bool capturing = capture_info(stream, nullptr, nullptr);
  return *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* num_dependencies) {
  uint64_t number;
  Graph* captured;
  bool capturing = capture_info(stream, &number, &captured);
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id) *id = number;
  if (graph) *graph = (cudaGraph_t)captured;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (num_dependencies) *num_dependencies = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  int* mine = capture_mode_of_thread();
  int before = *mine;
  *mine = *mode;
  *mode = (cudaStreamCaptureMode)before;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = (cudaGraphExec_t)graph;
  return result(instantiate_graph((Graph*)graph));
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return result(launch_graph((Graph*)executable, stream));
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  return *count = num_nodes((Graph*)graph), cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return release_graph((Graph*)graph, false), cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return release_graph((Graph*)graph, true), cudaSuccess; }

// ---- kernels

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  void* stream;
};
static thread_local std::vector<Configuration> configurations;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void* stream) {
  return configurations.push_back({grid, block, shared_bytes, stream}), 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  Configuration it = configurations.back();
  configurations.pop_back();
  *grid = it.grid, *block = it.block, *shared_bytes = it.shared_bytes, *(void**)stream = it.stream;
  return cudaSuccess;
}
static cudaError_t launch(const void* function, dim3 grid, dim3 block, size_t shared_bytes, void* stream) {
  Work work;
  work.name = kernel_name(function);
  unsigned blocks[3] = {grid.x, grid.y, grid.z}, threads[3] = {block.x, block.y, block.z};
  if (!valid_launch(work.name, blocks, threads, shared_bytes)) return result(invalid_configuration);
  memcpy(work.grid, blocks, sizeof blocks);
  memcpy(work.block, threads, sizeof threads);
  work.shared_bytes = shared_bytes;
  return result(enqueue(stream, std::move(work)));
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void**, size_t shared_bytes,
                             cudaStream_t stream) {
  return launch(function, grid, block, shared_bytes, stream);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t shared_bytes,
                               cudaStream_t stream) {
  return launch(kernel, grid, block, shared_bytes, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* function, void**) {
  return launch(function, configuration->gridDim, configuration->blockDim, configuration->dynamicSmemBytes,
                configuration->stream);
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  return *kernel = (cudaKernel_t)function, cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = 232448;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  return *blocks = 2, cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  return *blocks = 2, cudaSuccess;
}
void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host_function, char*, const char* name, int, void*, void*, void*,
                            void*, int*) {
  register_kernel(host_function, name);
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }

// ---- the driver's functions, which torch asks for by name

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  static void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL);
  *function = driver ? dlsym(driver, (std::string(name) + "_v2").c_str()) : nullptr;
  if (!*function && driver) *function = dlsym(driver, name);
  if (status) *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(name, function, 13000, flags, status);
}

}  // extern "C"
