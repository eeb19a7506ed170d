// cuBLAS and cuBLASLt: a product is a kernel that is known by its matrices, its sizes and its math mode.
#include <cstdlib>
#include <cstring>

#include "device.h"

using namespace rig;

struct Handle {
  void* stream = nullptr;
  int math_mode = 0, pointer_mode = 0;
};

static int product(Handle* handle, const char* name, std::initializer_list<const void*> matrices,
                   std::initializer_list<int64_t> sizes) {
  Work work;
  work.name = name;
  for (const void* matrix : matrices) work.params.push_back({(uint64_t)matrix, 8});
  for (int64_t size : sizes) work.params.push_back({(uint64_t)size, 4});
  work.params.push_back({(uint64_t)handle->math_mode, 4});
  count("product");
  return enqueue(handle->stream, std::move(work)) ? 13 : 0;
}

#define SIZES int transa, int transb, int m, int n, int k

extern "C" {

int cublasCreate_v2(Handle** handle) { return count("cublas_handle"), *handle = new Handle, 0; }
int cublasDestroy_v2(Handle* handle) { return delete handle, 0; }
int cublasSetStream_v2(Handle* handle, void* stream) { return handle->stream = stream, 0; }
int cublasGetStream_v2(Handle* handle, void** stream) { return *stream = handle->stream, 0; }
int cublasSetWorkspace_v2(Handle*, void*, size_t) { return 0; }
int cublasSetMathMode(Handle* handle, int mode) { return handle->math_mode = mode, 0; }
int cublasGetMathMode(Handle* handle, int* mode) { return *mode = handle->math_mode, 0; }
int cublasSetPointerMode_v2(Handle* handle, int mode) { return handle->pointer_mode = mode, 0; }
int cublasGetPointerMode_v2(Handle* handle, int* mode) { return *mode = handle->pointer_mode, 0; }
int cublasGetVersion_v2(Handle*, int* version) { return *version = 130002, 0; }
int cublasGetProperty(int, int* value) { return *value = 13, 0; }

int cublasGemmEx(Handle* handle, SIZES, const void*, const void* a, int, int lda, const void* b, int, int ldb,
                 const void*, void* c, int, int ldc, int, int) {
  return product(handle, "cublasGemmEx", {a, b, c}, {transa, transb, m, n, k, lda, ldb, ldc});
}
int cublasSgemm_v2(Handle* handle, SIZES, const float*, const float* a, int lda, const float* b, int ldb, const float*,
                   float* c, int ldc) {
  return product(handle, "cublasSgemm", {a, b, c}, {transa, transb, m, n, k, lda, ldb, ldc});
}
int cublasGemmStridedBatchedEx(Handle* handle, SIZES, const void*, const void* a, int, int lda, long long stride_a,
                               const void* b, int, int ldb, long long stride_b, const void*, void* c, int, int ldc,
                               long long stride_c, int batch, int, int) {
  return product(handle, "cublasGemmStridedBatchedEx", {a, b, c},
                 {transa, transb, m, n, k, lda, ldb, ldc, stride_a, stride_b, stride_c, batch});
}
int cublasSgemmStridedBatched(Handle* handle, SIZES, const float*, const float* a, int lda, long long stride_a,
                              const float* b, int ldb, long long stride_b, const float*, float* c, int ldc,
                              long long stride_c, int batch) {
  return product(handle, "cublasSgemmStridedBatched", {a, b, c},
                 {transa, transb, m, n, k, lda, ldb, ldc, stride_a, stride_b, stride_c, batch});
}
int cublasSgemv_v2(Handle* handle, int trans, int m, int n, const float*, const float* a, int lda, const float* x, int,
                   const float*, float* y, int) {
  return product(handle, "cublasSgemv", {a, x, y}, {trans, m, n, lda});
}
int cublasDgemm_v2(Handle* handle, SIZES, const double*, const double* a, int lda, const double* b, int ldb,
                   const double*, double* c, int ldc) {
  return product(handle, "cublasDgemm", {a, b, c}, {transa, transb, m, n, k, lda, ldb, ldc});
}

// cuBLASLt: descriptions are opaque to torch, so these may hold nothing.
int cublasLtCreate(Handle** handle) { return *handle = new Handle, 0; }
size_t cublasLtGetVersion(void) { return 130002; }
int cublasLtMatmulDescCreate(void** it, int, int) { return *it = calloc(1, 64), 0; }
int cublasLtMatmulDescDestroy(void* it) { return free(it), 0; }
int cublasLtMatmulDescSetAttribute(void*, int, const void*, size_t) { return 0; }
int cublasLtMatrixLayoutCreate(void** it, int, uint64_t, uint64_t, int64_t) { return *it = calloc(1, 64), 0; }
int cublasLtMatrixLayoutDestroy(void* it) { return free(it), 0; }
int cublasLtMatrixLayoutSetAttribute(void*, int, const void*, size_t) { return 0; }
int cublasLtMatmulPreferenceCreate(void** it) { return *it = calloc(1, 64), 0; }
int cublasLtMatmulPreferenceDestroy(void* it) { return free(it), 0; }
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return 0; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* result, int* found) {
  memset(result, 0, 64);
  return *found = 1, 0;
}
int cublasLtMatmul(void*, void*, const void*, const void* a, void*, const void* b, void*, const void*, const void* c,
                   void*, void* d, void*, const void*, void*, size_t, void* stream) {
  Handle handle;
  handle.stream = stream;
  return product(&handle, "cublasLtMatmul", {a, b, c, d}, {});
}

}  // extern "C"
