// The few calls that torch makes of cuDNN and cuSOLVER when it starts.
#include <cstddef>

extern "C" {

size_t cudnnGetVersion(void) { return 91300; }
size_t cudnnGetCudartVersion(void) { return 13000; }
const char* cudnnGetErrorString(int) { return "an error of the pretended cuDNN"; }
int cudnnCreate(void** handle) {
  static int it;
  return *handle = &it, 0;
}
int cusolverDnCreate(void** handle) { return cudnnCreate(handle); }

}  // extern "C"
