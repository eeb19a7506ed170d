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
#include <array>
#include <utility>

namespace baton {

namespace {

constexpr int64_t kHeadsAtOnce = 4;
constexpr int64_t kLine = 32;   // elements in a line of the caches
constexpr int64_t kAhead = 32;  // positions that K is fetched into the L1 cache ahead of its use
#if defined(__AVX512BF16__)
constexpr int kSpans = 2;        // pairs of vectors of a head that are summed at once, 4 accumulators for each head
constexpr int kPanelsInRow = 4;  // panels of K that are multiplied at once, for each head an accumulator
#else
constexpr int kSpans = 1;
constexpr int kPanelsInRow = 1;  // two accumulators
#endif

void prefetch(const bf16* vector, int64_t begin, int64_t end) {  // into the L2 cache
  for (int64_t i = begin; i < end; i += kLine) __builtin_prefetch(vector + i, 0, 2);
}

// K of `num_panels` times 16 positions as panels of 16. What is wanted next is asked for on the way, so that it comes
// evenly: all of it at once would fill the queue of misses, and leave it idle afterwards.
void pack_keys(const Attention& attention, const int64_t* offsets, int64_t first, int64_t count, int num_panels,
               bf16* panels) {
  for (int panel = 0; panel < num_panels; ++panel, first += kPanel, panels += kPanel * attention.head_dim)
    transpose_rows(attention.key_cache, offsets + first, attention.head_dim, panels, [&](int64_t element) {
#pragma GCC unroll 16
      for (int lane = 0; lane < kPanel; ++lane) {
        __builtin_prefetch(attention.key_cache + offsets[std::min(first + lane + kAhead, count - 1)] + element, 0, 3);
        __builtin_prefetch(attention.value_cache + offsets[first + lane] + element, 0, 2);
      }
    });
}

// Products of query heads and packed K, summed in the order of `vector_product`.
template <int Heads, int Panels>
void multiply_keys(const bf16* query, const bf16* panels, int64_t head_dim, float* products) {
  constexpr int kParts = kPanel / kFloats, kVectors = Panels * kParts;
  Floats totals[Heads][kVectors];
  for (int head = 0; head < Heads; ++head)
    for (int vector = 0; vector < kVectors; ++vector) totals[head][vector] = zeros();
  for (int64_t element = 0; element < head_dim; element += 2, panels += 2 * kPanel) {
    Pairs columns[kVectors];
    for (int vector = 0; vector < kVectors; ++vector)
      columns[vector] = load_pairs(panels + vector / kParts * kPanel * head_dim + vector % kParts * 2 * kFloats);
    for (int head = 0; head < Heads; ++head) {
      const Pairs pair = broadcast_pair(query + head * head_dim + element);
      for (int vector = 0; vector < kVectors; ++vector)
        totals[head][vector] = dot(totals[head][vector], columns[vector], pair);
    }
  }
  for (int head = 0; head < Heads; ++head)
    for (int vector = 0; vector < kVectors; ++vector)
      store(products + head * kChunk + vector * kFloats, totals[head][vector]);
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
        prefetch(next_keys + offsets[position], start, start + kSpans * kSpan);
        prefetch(next_keys + offsets[position + 1], start, start + kSpans * kSpan);
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

using MultiplyKeys = void (*)(const bf16*, const bf16*, int64_t, float*);

template <int Heads, int... Panels>
constexpr std::array<MultiplyKeys, kPanelsInRow> multiply_keys_of(std::integer_sequence<int, Panels...>) {
  return {multiply_keys<Heads, Panels + 1>...};
}
constexpr std::make_integer_sequence<int, kPanelsInRow> kEachNumber;
constexpr std::array<MultiplyKeys, kPanelsInRow> kMultiplyKeys[] = {
    multiply_keys_of<1>(kEachNumber), multiply_keys_of<2>(kEachNumber), multiply_keys_of<3>(kEachNumber),
    multiply_keys_of<4>(kEachNumber)};
constexpr decltype(&add_values<1>) kAddValues[] = {add_values<1>, add_values<2>, add_values<3>, add_values<4>};

}  // namespace

void attend_chunk(const Attention& attention, int64_t row, int64_t kv_head, int64_t first, int64_t count,
                  bool next_head_follows, const Partial& partial) {
  thread_local Scratch<float> products_memory;
  thread_local Scratch<bf16> weights_memory;
  const int64_t head_dim = attention.head_dim, group = attention.group();
  const int64_t padded = (count + kPadding - 1) / kPadding * kPadding;
  int64_t offsets[kChunk];
  attention.locate(row, kv_head, first, count, offsets);
  std::fill(offsets + count, offsets + padded, offsets[count - 1]);
  const bf16* query = attention.query_at(attention.query_starts[row], kv_head);
  float* products = products_memory.get(group * kChunk);
  bf16* weights = weights_memory.get(group * kChunk);

  alignas(64) bf16 panels[kPanelsInRow * kPanel * kMaxHeadDim];
  for (int64_t position = 0; position < padded; position += kPanelsInRow * kPanel) {
    const int num_panels = static_cast<int>(std::min<int64_t>(kPanelsInRow, (padded - position) / kPanel));
    pack_keys(attention, offsets, position, count, num_panels, panels);
    for (int64_t head = 0; head < group; head += kHeadsAtOnce)
      kMultiplyKeys[std::min(kHeadsAtOnce, group - head) - 1][num_panels - 1](
          query + head * head_dim, panels, head_dim, products + head * kChunk + position);
  }
  for (int64_t head = 0; head < group; ++head)
    partial.sums[head] = weigh(products + head * kChunk, count, padded, attention.scale, partial.maxima + head,
                               weights + head * kChunk);
  // The next head's vectors lie a whole block of this one's further on.
  const bf16* next_keys = next_head_follows ? attention.key_cache + attention.block_size * head_dim : nullptr;
  for (int64_t head = 0; head < group; head += kHeadsAtOnce)
    kAddValues[std::min(kHeadsAtOnce, group - head) - 1](weights + head * kChunk, attention.value_cache, next_keys,
                                                         offsets, count, head_dim, partial.values + head * head_dim);
}

}  // namespace baton

#endif
