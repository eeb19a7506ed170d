// What the kernels need of the operating system, and what the memory can do.

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "parallel.h"
#include "simd.h"

using namespace baton;

extern "C" {

// Asks Linux for the tile registers, which a process has to ask for. Returns 0, or -1 if there are none.
int baton_request_tiles() {
#if defined(__AMX_BF16__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return static_cast<int>(syscall(SYS_arch_prctl, kRequestPermission, kTileData));
#else
  return 0;
#endif
}

// Asks for huge pages under the memory, before it is touched: with small ones a stream of weights misses the TLB.
void baton_advise_huge_pages(void* memory, int64_t bytes) {
  constexpr uintptr_t kHugePage = 2 << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(bytes)) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

// Binds each of the calling thread's workers, and itself, to one of `cpus`. Returns how many were bound.
int baton_pin_threads(const int32_t* cpus, int threads) {
  int pinned = 0;
#pragma omp parallel num_threads(threads) reduction(+ : pinned)
  {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[omp_get_thread_num()], &set);
    pinned += sched_setaffinity(0, sizeof(set), &set) == 0;
  }
  return pinned;
}

// Reads `bytes` of memory once with all threads; the result only keeps the compiler from leaving reads out.
float baton_read_memory(const float* memory, int64_t bytes, int threads) {
  constexpr int64_t kPiece = 1 << 18;
  const int64_t count = bytes / static_cast<int64_t>(sizeof(float)) / kPiece;
  std::atomic<int> total{0};
  parallel_for(count, threads, [&](int64_t begin, int64_t end) {
    Floats sums[4] = {zeros(), zeros(), zeros(), zeros()};
    for (const float* from = memory + begin * kPiece; from < memory + end * kPiece; from += 4 * kFloats)
      for (int part = 0; part < 4; ++part) sums[part] += load(from + part * kFloats);
    total += static_cast<int>(sum(sums[0] + sums[1] + sums[2] + sums[3]));
  });
  return static_cast<float>(total);
}

}  // extern "C"
