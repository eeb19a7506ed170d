// CUDA's driver library: Triton calls it. A cubin says how many parameters its kernel has and how large they are, so a
// launch is known by their values.
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

#include "device.h"

#undef cuMemGetAddressRange
#undef cuStreamWriteValue32
#undef cuGetProcAddress

using namespace rig;

struct Kernel {
  std::string name;
  std::vector<uint32_t> param_sizes;
};

struct Module {
  std::map<std::string, Kernel> kernels;
};

// The parameters of a kernel, out of its section .nv.info: entries of 4 bytes of head (format, attribute, length) and
// their content; a parameter's has its number in bytes 4 and 5 and its size in the upper 14 bits of bytes 8 to 11.
static std::vector<uint32_t> param_sizes(const unsigned char* info, size_t bytes) {
  constexpr unsigned char sized = 0x04, param_info = 0x17;
  std::map<uint16_t, uint32_t> sizes;
  for (size_t at = 0; at + 4 <= bytes;) {
    uint16_t length = info[at + 2] | info[at + 3] << 8;
    if (info[at] == sized && info[at + 1] == param_info && length >= 12) {
      uint16_t ordinal;
      uint32_t word;
      memcpy(&ordinal, info + at + 8, 2);
      memcpy(&word, info + at + 12, 4);
      sizes[ordinal] = word >> 18;
    }
    at += 4 + (info[at] == sized ? length : 0);
  }
  std::vector<uint32_t> result;
  for (const auto& [ordinal, size] : sizes) result.push_back(size);
  return result;
}

static Module* parse(const unsigned char* image) {
  auto* module = new Module;
  auto* header = (const Elf64_Ehdr*)image;
  if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return module;
  auto* sections = (const Elf64_Shdr*)(image + header->e_shoff);
  const char* names = (const char*)image + sections[header->e_shstrndx].sh_offset;
  const std::string prefix = ".nv.info.";
  for (int i = 0; i < header->e_shnum; i++) {
    std::string name = names + sections[i].sh_name;
    if (name.compare(0, prefix.size(), prefix) != 0) continue;
    std::string kernel = name.substr(prefix.size());
    module->kernels[kernel] = {kernel, param_sizes(image + sections[i].sh_offset, sections[i].sh_size)};
  }
  return module;
}

static CUresult launch(Kernel* kernel, const unsigned (&grid)[3], const unsigned (&block)[3], size_t shared_bytes,
                       CUstream stream, void** params) {
  if (!valid_launch(kernel->name.c_str(), grid, block, shared_bytes)) return CUDA_ERROR_INVALID_VALUE;
  Work work;
  work.name = kernel->name.c_str();
  memcpy(work.grid, grid, sizeof grid);
  memcpy(work.block, block, sizeof block);
  work.shared_bytes = shared_bytes;
  work.params.reserve(kernel->param_sizes.size());
  for (size_t i = 0; i < kernel->param_sizes.size(); i++) {
    Param param{0, kernel->param_sizes[i]};
    memcpy(&param.value, params[i], std::min<size_t>(8, param.size));
    work.params.push_back(param);
  }
  count("triton_launch");
  return (CUresult)enqueue(stream, std::move(work));
}

constexpr int driver_version = 13000;
static char contexts[64];  // addresses that stand for the devices' contexts

static CUcontext context_of(int device) { return has_context(device) ? (CUcontext)(contexts + device) : nullptr; }

// NVIDIA's bindings ask for every function of the driver before they call the first one. For each that is not here they
// get one that says so when it is called.
static std::vector<std::string> unknown_names;

template <size_t number>
static CUresult unknown() {
  unmodelled(unknown_names[number].c_str());
  return CUDA_ERROR_NOT_FOUND;
}

template <size_t... numbers>
static void* unknown_at(size_t number, std::index_sequence<numbers...>) {
  static void* const functions[] = {(void*)unknown<numbers>...};
  return number < sizeof...(numbers) ? functions[number] : nullptr;
}

static void* unknown_function(const char* name) {
  auto found = std::find(unknown_names.begin(), unknown_names.end(), name);
  size_t number = found - unknown_names.begin();
  if (found == unknown_names.end()) unknown_names.push_back(name);
  return unknown_at(number, std::make_index_sequence<1024>());
}

extern "C" {

// ---- devices and contexts

CUresult cuInit(unsigned) { return (CUresult)initialize(); }
CUresult cuDriverGetVersion(int* version) { return *version = driver_version, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= num_devices()) return CUDA_ERROR_INVALID_DEVICE;
  return *device = ordinal, CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) { return *count = num_devices(), CUDA_SUCCESS; }
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return memcpy(uuid->bytes, uuid_of(device).data(), sizeof uuid->bytes), CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice) { return snprintf(name, size, "NVIDIA H200"), CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  return *value = device_attribute(attribute), CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) { return *context = context_of(current_device()), CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) {
  int device = context ? (char*)context - contexts : -1;
  if (context && !has_context(device)) return CUDA_ERROR_INVALID_CONTEXT;
  return set_current_device(device), CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  return has_context(*device = current_device()) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuCtxGetLimit(size_t* value, CUlimit) { return *value = 1 << 20, CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
CUresult cuCtxSynchronize(void) {
  if (!has_context(current_device())) return CUDA_ERROR_INVALID_CONTEXT;
  return (CUresult)synchronize_device("cuCtxSynchronize");
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (int error = retain_context(device)) return (CUresult)error;
  return *context = context_of(device), CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return (CUresult)release_context(device); }
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  return *flags = 0, *active = has_context(device), CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream, CUcontext* context) { return cuCtxGetCurrent(context); }

// ---- kernels

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (int error = check_capture("cuModuleLoadData")) return (CUresult)error;
  Module* parsed = parse((const unsigned char*)image);
  for (const auto& [name, kernel] : parsed->kernels) module_loaded(name.c_str());
  return *module = (CUmodule)parsed, CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }  // a kernel's name lives on in what was recorded of it
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  auto& kernels = ((Module*)module)->kernels;
  auto found = kernels.find(name);
  if (found == kernels.end()) return CUDA_ERROR_NOT_FOUND;
  return *function = (CUfunction)&found->second, CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS               ? 64
           : attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
                                                                  : 0;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute attribute, int value) {
  bool fits = attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value <= 232448;
  return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuLaunchKernelEx(const CUlaunchConfig* it, CUfunction function, void** params, void**) {
  return launch((Kernel*)function, {it->gridDimX, it->gridDimY, it->gridDimZ},
                {it->blockDimX, it->blockDimY, it->blockDimZ}, it->sharedMemBytes, it->hStream, params);
}
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** params,
                        void**) {
  return launch((Kernel*)function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, params);
}
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  return *clusters = 66, CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) {
  return *blocks = 2, CUDA_SUCCESS;
}

// ---- memory

CUresult cuMemGetInfo(size_t* free_bytes, size_t* total) { return (CUresult)device_memory(free_bytes, total); }
CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t bytes) {
  return (CUresult)set_memory((void*)to, value, bytes, nullptr);
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  if (!may_access(to, to + bytes, true)) return CUDA_ERROR_INVALID_VALUE;
  return (CUresult)copy((void*)to, from, bytes, nullptr, false);
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  if (!may_access(from, from + bytes, false)) return CUDA_ERROR_INVALID_VALUE;
  return (CUresult)copy(to, (const void*)from, bytes, nullptr, false);
}
CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER || attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
    *(CUdeviceptr*)data = pointer;
  else
    *(unsigned*)data = CU_MEMORYTYPE_DEVICE;
  return CUDA_SUCCESS;
}

// ---- virtual memory

static bool is_sharable(const CUmemAllocationProp* it) {
  return it->type == CU_MEM_ALLOCATION_TYPE_PINNED && it->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         it->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* it,
                                       CUmemAllocationGranularity_flags) {
  return is_sharable(it) ? (*bytes = granularity, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* it,
                     unsigned long long flags) {
  if (flags || !is_sharable(it)) return CUDA_ERROR_INVALID_VALUE;
  return (CUresult)create_memory(bytes, it->location.id, (uint64_t*)handle);
}
CUresult cuMemExportToShareableHandle(void* descriptor, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  if (flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  return (CUresult)export_memory(handle, (int*)descriptor);
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* descriptor,
                                        CUmemAllocationHandleType type) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  return (CUresult)import_memory((int)(intptr_t)descriptor, (uint64_t*)handle);
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) { return (CUresult)release_memory(handle); }
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  return flags ? CUDA_ERROR_INVALID_VALUE : (CUresult)reserve_addresses(bytes, alignment, (uintptr_t*)address);
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) { return (CUresult)free_addresses(address, bytes); }
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return offset || flags ? CUDA_ERROR_INVALID_VALUE : (CUresult)map_memory(address, bytes, handle);
}
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) { return (CUresult)unmap_memory(address, bytes); }
CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  const CUmemLocation& where = access->location;
  if (count != 1 || where.type != CU_MEM_LOCATION_TYPE_DEVICE || where.id < 0 || where.id >= num_devices())
    return CUDA_ERROR_INVALID_VALUE;
  return (CUresult)allow_access(address, bytes, access->flags & 1, access->flags & 2);
}

// ---- errors, and functions by their names

CUresult cuGetErrorString(CUresult error, const char** text) {
  static thread_local char buffer[64];
  snprintf(buffer, sizeof buffer, "error %d of the pretended driver", error);
  return *text = buffer, CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** text) { return cuGetErrorString(error, text); }

CUresult cuGetProcAddress_v2(const char* name, void** function, int version, cuuint64_t,
                             CUdriverProcAddressQueryResult* status) {
  static void* self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  *function = nullptr;
  if (version <= driver_version) {
    *function = dlsym(self, (std::string(name) + "_v2").c_str());
    if (!*function) *function = dlsym(self, name);
    if (!*function) *function = unknown_function(name);
  }
  if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"
