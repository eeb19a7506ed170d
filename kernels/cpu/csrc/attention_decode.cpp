// Attention of a single query: a chunk of K, then of V, straight from where they lie in the cache.
//
// It takes as long as reading K and V if the query heads of a KV head are taken together (up to four at a time), and if
// the memory is never idle: V is fetched while K is used, and the next KV head's K while V is. K is put into panels on
// the way, so that scores are summed as those of a prompt are.

#include "attention.h"
#include "block_product.h"
#include "parallel.h"

#if !defined(BATON_TILES)

#include <algorithm>

namespace baton {

namespace {

constexpr int64_t kHeadsAtOnce = 4;
constexpr int64_t kLine = 32;  // elements in a line of the caches
constexpr int kAtOnce = 32;     // positions. More of them would drive each other out of the L1 cache.
constexpr int kVectors = kAtOnce / kFloats;
#if defined(__AVX512BF16__)
constexpr int kSpans = 2;  // pairs of vectors of a head that are summed at once, 4 accumulators for each head
#else
constexpr int kSpans = 1;
#endif

template <int Locality>  // 3 is the L1 cache, 2 the L2 cache
void prefetch(const bf16* vector, int64_t size) {
  for (int64_t i = 0; i < size; i += kLine) __builtin_prefetch(vector + i, 0, Locality);
}

// Some positions of a chunk: kPadding of them at each of `keys`, the first at `first` of all `count`.
struct Positions {
  const bf16* const* keys;
  const int64_t* offsets;
  int64_t first, count;
};

// Products of query heads and K at kAtOnce positions, summed in the order of `vector_product`.
//
// What is wanted next is asked for on the way, so that it comes evenly: all of it at once would fill the memory's
// queue, and leave it idle afterwards. These are the V of the same positions, and the K of the kAtOnce positions behind
// them.
template <int HeadDim, int Heads>
void multiply_keys(const Attention& attention, const bf16* query, const Positions& at, float* products) {
  constexpr int kEight = 8;
  constexpr int kFetched = std::min(kFloats * kEight, HeadDim);  // elements of a vector of K or V that are asked for
  Floats totals[Heads][kVectors];
  for (int head = 0; head < Heads; ++head)
    for (int vector = 0; vector < kVectors; ++vector) totals[head][vector] = zeros();
  int64_t next = 0;
  for (int element = 0; element < HeadDim; element += kEight) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      for (int fetched = 0; fetched < kFloats * kEight; fetched += kFetched, next += kFetched) {
        const int64_t position = at.first + next / HeadDim, from = next % HeadDim;
        prefetch<3>(attention.key_cache + at.offsets[std::min(position + kAtOnce, at.count - 1)] + from, kFetched);
        prefetch<2>(attention.value_cache + at.offsets[std::min(position, at.count - 1)] + from, kFetched);
      }
      constexpr int kPerPointer = kPadding / kFloats;
      PairBits keys[4];
      transpose_four<HeadDim>(at.keys[vector / kPerPointer] + vector % kPerPointer * kFloats * HeadDim + element, keys);
#pragma GCC unroll 4
      for (int pair = 0; pair < 4; ++pair)
        for (int head = 0; head < Heads; ++head)
          totals[head][vector] = dot(totals[head][vector], widen_pairs(keys[pair]),
                                     broadcast_pair(query + head * HeadDim + element + 2 * pair));
    }
  }
  for (int head = 0; head < Heads; ++head)
    for (int vector = 0; vector < kVectors; ++vector)
      store(products + head * kChunk + at.first + vector * kFloats, totals[head][vector]);
}

template <int Heads>
void add_values(const bf16* weights, const bf16* value_cache, const bf16* next_keys, const int64_t* offsets,
                int64_t count, int64_t head_dim, float* values) {
  constexpr int kSpan = 2 * kFloats;
  for (int64_t start = 0; start < head_dim; start += kSpans * kSpan) {
    Floats even[Heads][kSpans], odd[Heads][kSpans];
    for (int head = 0; head < Heads; ++head)
      for (int span = 0; span < kSpans; ++span) even[head][span] = odd[head][span] = zeros();
    for (int64_t position = 0; position < count; position += 2) {
      const bf16* first = value_cache + offsets[position] + start;
      const bf16* second = value_cache + offsets[position + 1] + start;
      if (next_keys != nullptr) {
        prefetch<2>(next_keys + offsets[position] + start, kSpans * kSpan);
        prefetch<2>(next_keys + offsets[position + 1] + start, kSpans * kSpan);
      }
      for (int span = 0; span < kSpans; ++span) {
        const Interleaved pairs = interleave(first + span * kSpan, second + span * kSpan);
        for (int head = 0; head < Heads; ++head) {
          const Pairs weight = broadcast_pair(weights + head * kChunk + position);
          even[head][span] = dot(even[head][span], pairs.even, weight);
          odd[head][span] = dot(odd[head][span], pairs.odd, weight);
        }
      }
    }
    for (int head = 0; head < Heads; ++head)
      for (int span = 0; span < kSpans; ++span)
        store_interleaved(values + head * head_dim + start + span * kSpan, even[head][span], odd[head][span]);
  }
}

using MultiplyKeys = decltype(&multiply_keys<64, 1>);
constexpr MultiplyKeys kMultiplyKeys64[] = {multiply_keys<64, 1>, multiply_keys<64, 2>, multiply_keys<64, 3>,
                                            multiply_keys<64, 4>};
constexpr MultiplyKeys kMultiplyKeys128[] = {multiply_keys<128, 1>, multiply_keys<128, 2>, multiply_keys<128, 3>,
                                             multiply_keys<128, 4>};
constexpr decltype(&add_values<1>) kAddValues[] = {add_values<1>, add_values<2>, add_values<3>, add_values<4>};

}  // namespace

void attend_chunk(const Attention& attention, int64_t row, int64_t kv_head, int64_t first, int64_t count,
                  bool next_head_follows, const Partial& partial) {
  thread_local Scratch<float> products_memory;
  thread_local Scratch<bf16> weights_memory;
  const int64_t head_dim = attention.head_dim, group = attention.group();
  int64_t offsets[kChunk];
  attention.locate(row, kv_head, first, count, offsets);
  const bf16* query = attention.query_at(attention.query_starts[row], kv_head);
  float* products = products_memory.get(group * kChunk);
  bf16* weights = weights_memory.get(group * kChunk);

  // No product asks for the K of the first positions. It comes from the L2 cache while the memory's queue is not full.
  for (int64_t i = 0; i < std::min<int64_t>(count, kAtOnce); ++i)
    prefetch<3>(attention.key_cache + offsets[i], head_dim);
  alignas(64) bf16 copies[kAtOnce * kMaxHeadDim];
  for (int64_t position = 0; position < count; position += kAtOnce) {
    const bf16* keys[kAtOnce / kPadding];
    for (int64_t i = 0; i < kAtOnce; i += kPadding)
      keys[i / kPadding] = position + i < count
                               ? attention.keys_together(offsets + position + i, count - position - i,
                                                         copies + i * head_dim)
                               : keys[0];  // these products count for nothing
    for (int64_t head = 0; head < group; head += kHeadsAtOnce) {
      const MultiplyKeys* multiply = head_dim == 64 ? kMultiplyKeys64 : kMultiplyKeys128;
      multiply[std::min(kHeadsAtOnce, group - head) - 1](attention, query + head * head_dim,
                                                         {keys, offsets, position, count}, products + head * kChunk);
    }
  }
  for (int64_t head = 0; head < group; ++head)
    partial.sums[head] = weigh(products + head * kChunk, count, round_up(count, kPadding), attention.scale,
                               partial.maxima + head, weights + head * kChunk);
  // The next head's vectors lie a whole block of this one's further on.
  const bf16* next_keys = next_head_follows ? attention.key_cache + attention.block_size * head_dim : nullptr;
  for (int64_t head = 0; head < group; head += kHeadsAtOnce)
    kAddValues[std::min(kHeadsAtOnce, group - head) - 1](weights + head * kChunk, attention.value_cache, next_keys,
                                                         offsets, count, head_dim, partial.values + head * head_dim);
}

}  // namespace baton

#endif
