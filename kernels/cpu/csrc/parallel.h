// Work for the threads of a process, and memory that each of them keeps for it.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace baton {

constexpr int kMaxThreads = 512;

// A thread's items [begin, end). It takes ranges from their front, and others steal from their back (Blumofe &
// Leiserson 1999); both ends are in one word, so that each is one exchange. There are less than 2^32 items.
class alignas(64) Share {
 public:
  void set(int64_t begin, int64_t end) { range_.store(pack(begin, end), std::memory_order_relaxed); }
  int64_t left() const {
    const uint64_t range = range_.load(std::memory_order_relaxed);
    return end_of(range) - begin_of(range);
  }
  // The next items of this share: smaller ranges towards its end, down to one item. False if there are none left.
  bool take(int64_t* begin, int64_t* end) {
    for (uint64_t range = range_.load(std::memory_order_relaxed); begin_of(range) < end_of(range);) {
      *begin = begin_of(range);
      *end = *begin + (end_of(range) - *begin + 3) / 4;
      if (range_.compare_exchange_weak(range, pack(*end, end_of(range)), std::memory_order_relaxed)) return true;
    }
    return false;
  }
  // Moves the later half of this share's items to `other`, which has none.
  void steal(Share& other) {
    for (uint64_t range = range_.load(std::memory_order_relaxed); begin_of(range) < end_of(range);) {
      const int64_t middle = (begin_of(range) + end_of(range)) / 2, end = end_of(range);
      if (range_.compare_exchange_weak(range, pack(begin_of(range), middle), std::memory_order_relaxed))
        return other.set(middle, end);
    }
  }

 private:
  static uint64_t pack(int64_t begin, int64_t end) {
    return static_cast<uint64_t>(begin) << 32 | static_cast<uint64_t>(end);
  }
  static int64_t begin_of(uint64_t range) { return static_cast<int64_t>(range >> 32); }
  static int64_t end_of(uint64_t range) { return static_cast<int64_t>(range & 0xffffffff); }
  std::atomic<uint64_t> range_;
};

// Calls body(begin, end) for ranges that make up `count` items. Each thread has a share that lies together, so that it
// uses what it prefetches. A thread that is done takes items from the thread with most left, so that one whose core is
// used by another process (the scheduler, a frontend) does not hold up the others.
template <class Body>
void parallel_for(int64_t count, int threads, const Body& body) {
  if (threads == 1 || count <= 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  threads = std::min(threads, kMaxThreads);
  Share shares[kMaxThreads];
  for (int thread = 0; thread < threads; ++thread)
    shares[thread].set(count * thread / threads, count * (thread + 1) / threads);
#pragma omp parallel num_threads(threads)
  {
    Share& own = shares[omp_get_thread_num()];
    for (;;) {
      int64_t begin, end;
      while (own.take(&begin, &end)) body(begin, end);
      Share* most = std::max_element(shares, shares + threads,
                                     [](const Share& a, const Share& b) { return a.left() < b.left(); });
      if (most->left() <= 0) break;
      most->steal(own);
    }
  }
}

// The same for items that take about `cost_ns` each, with no more threads than the work is worth.
template <class Body>
void parallel_for_small(int64_t count, double cost_ns, int threads, const Body& body) {
  constexpr double kWorthwhileNs = 5'000;  // of work for a thread; a parallel region costs 1 to 5 us
  const int64_t worthwhile = static_cast<int64_t>(static_cast<double>(count) * cost_ns / kWorthwhileNs);
  parallel_for(count, worthwhile < 2 ? 1 : worthwhile < threads ? static_cast<int>(worthwhile) : threads, body);
}

// Memory that is kept from call to call, since fresh memory costs more to map than to fill. Its content is undefined.
template <class T>
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }
  T* get(int64_t size) {
    if (size > size_) {
      std::free(data_);
      size_ = (size + size / 4 + 63) / 64 * 64;
      data_ = static_cast<T*>(std::aligned_alloc(64, static_cast<size_t>(size_) * sizeof(T)));
      if (data_ == nullptr) throw std::bad_alloc();
    }
    return data_;
  }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace baton
