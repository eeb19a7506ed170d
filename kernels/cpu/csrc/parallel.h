// Work for the threads of a process, and memory that each of them keeps for it.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace baton {

// body(begin, end) for ranges that make up `count` items. A thread takes another range when it is done with one, so
// that one whose core is wanted by another process (the scheduler, a frontend) does not hold up the others. The ranges
// get smaller towards the end, down to one item.
template <class Body>
void parallel_for(int64_t count, int threads, const Body& body) {
  if (threads == 1 || count <= 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads)
  for (int64_t begin = next.load(std::memory_order_relaxed); begin < count;) {
    const int64_t share = (count - begin) / (4 * threads), end = begin + (share > 1 ? share : 1);
    if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;  // `begin` is the new one
    body(begin, end);
    begin = next.load(std::memory_order_relaxed);
  }
}

// The same for items that take about `cost_ns` each: with as few threads as all of them are worth.
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
