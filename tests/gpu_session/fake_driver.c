/* Enough of libcuda.so.1 for tools/vmm_probe.py: an allocation is a memfd, so it lives while a descriptor of it does.
   FAKE_DRIVER=loses: an imported allocation is empty. FAKE_DRIVER=refuses: nothing can be exported. FAKE_DRIVER=dies or
   hangs: the process that imports does. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long u64;
static u64 taken;
static int is(const char *what) { const char *set = getenv("FAKE_DRIVER"); return set && !strcmp(set, what); }

int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)1; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuDeviceGetAttribute(int *value, int number, int device) { *value = number == 102 || number == 103; return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *total = 1 << 30; *free = *total - taken; return 0; }
int cuMemGetAllocationGranularity(size_t *bytes, void *properties, int kind) { *bytes = 2 << 20; return 0; }
int cuGetErrorName(int code, const char **name) { *name = code == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : "?"; return 0; }
int cuMemCreate(u64 *handle, size_t bytes, void *properties, u64 flags) {
    int fd = memfd_create("fake", 0);
    if (ftruncate(fd, bytes)) return 2;
    taken += bytes;
    *handle = fd;
    return 0;
}
int cuMemExportToShareableHandle(int *fd, u64 handle, int kind, u64 flags) {
    if (kind != 1 || is("refuses")) return 801;
    *fd = dup(handle);
    return 0;
}
int cuMemImportFromShareableHandle(u64 *handle, void *fd, int kind) {
    if (is("dies")) abort();
    if (is("hangs")) pause();
    *handle = is("loses") ? memfd_create("empty", 0) : dup((int)(u64)fd);
    off_t bytes = lseek((int)(u64)fd, 0, SEEK_END);
    taken += bytes;
    return kind == 1 && !ftruncate(*handle, bytes) ? 0 : 1;
}
int cuMemAddressReserve(u64 *address, size_t bytes, size_t alignment, u64 wish, u64 flags) {
    *address = (u64)mmap(0, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return 0;
}
int cuMemMap(u64 address, size_t bytes, size_t offset, u64 handle, u64 flags) {
    return mmap((void *)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, handle, offset) == MAP_FAILED;
}
int cuMemSetAccess(u64 address, size_t bytes, int *access, size_t count) {
    return access[2] != 3 || mprotect((void *)address, bytes, PROT_READ | PROT_WRITE);
}
int cuMemUnmap(u64 address, size_t bytes) { return munmap((void *)address, bytes); }
int cuMemRelease(u64 handle) { return close(handle); }
int cuMemcpyHtoD_v2(u64 to, const void *from, size_t bytes) { memcpy((void *)to, from, bytes); return 0; }
int cuMemcpyDtoH_v2(void *to, u64 from, size_t bytes) { memcpy(to, (void *)from, bytes); return 0; }
