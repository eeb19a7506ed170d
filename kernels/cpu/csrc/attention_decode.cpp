// Attention of a single query: a chunk of K, then of V, straight from where they lie in the cache.
//
// It takes as long as reading K and V if the query heads of a KV head are taken together (up to four at a time), and if
// the memory is never idle: V is fetched while K is used, and the next KV head's K while V is.

#include <algorithm>

#include "attention.h"

namespace baton {

namespace {

constexpr int64_t kHeadsAtOnce = 4;
constexpr int64_t kPadding = 16;  // positions go in vectors; those that fill the last one up have no weight
constexpr int64_t kLine = 32;     // elements in a line of the caches
constexpr int64_t kAhead = 32;    // positions that K is fetched into the L1 cache ahead of its use
#if defined(__AVX512BF16__)
constexpr int kSpans = 2;  // pairs of vectors of a head that are summed at once, 4 accumulators for each head
#else
constexpr int kSpans = 1;
#endif

template <int Locality>  // 3 is the L1 cache, 2 the L2 cache
void prefetch(const bf16* vector, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLine) __builtin_prefetch(vector + i, 0, Locality);
}

// Scores of query heads at the positions up to `count`, and at some after them. The heads share in asking for what is
// wanted next, so that it comes evenly: all of it at once would fill the queue of misses, and leave it idle afterwards.
template <int HeadDim, int Heads>
void score(const Attention& attention, const bf16* query, const int64_t* offsets, int64_t count, float* scores) {
  constexpr int kVectors = HeadDim / (2 * kFloats);
  for (int64_t first = 0; first < count; first += kFloats) {
    for (int64_t head = 0; head < Heads; ++head) {
      Pairs queries[kVectors];
      for (int vector = 0; vector < kVectors; ++vector)
        queries[vector] = load_pairs(query + head * HeadDim + vector * 2 * kFloats);
      Floats totals[kFloats];
#pragma GCC unroll 16
      for (int lane = 0; lane < kFloats; ++lane) {
        const bf16* key = attention.key_cache + offsets[first + lane];
        const int64_t share = HeadDim / Heads / kLine * kLine, start = head * share;
        const int64_t end = head + 1 < Heads ? start + share : HeadDim;
        prefetch<3>(attention.key_cache + offsets[std::min(first + lane + kAhead, count - 1)], start, end);
        prefetch<2>(attention.value_cache + offsets[first + lane], start, end);
        totals[lane] = zeros();
        for (int vector = 0; vector < kVectors; ++vector)
          totals[lane] = dot(totals[lane], load_pairs(key + vector * 2 * kFloats), queries[vector]);
      }
      store(scores + head * kChunk + first, set(attention.scale) * sums_of(totals));
    }
  }
}

// Turns scores into weights relative to the largest, rounded to bf16 for the product with V; returns their sum.
float weigh(float* scores, int64_t count, float* maximum, bf16* weights) {
  const int64_t padded = (count + kPadding - 1) / kPadding * kPadding;
  for (int64_t i = count; i < padded; ++i) scores[i] = -kInfinity;
  Floats largest = set(-kInfinity);
  for (int64_t i = 0; i < padded; i += kFloats) largest = max(largest, load(scores + i));
  *maximum = max_of(largest);
  Floats total = zeros();
  for (int64_t i = 0; i < padded; i += kFloats) {
    const Floats weight = round_to_bf16(exp(load(scores + i) - set(*maximum)));
    store_bf16(weights + i, weight);
    total += weight;
  }
  return sum(total);
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
        prefetch<2>(next_keys + offsets[position], start, start + kSpans * kSpan);
        prefetch<2>(next_keys + offsets[position + 1], start, start + kSpans * kSpan);
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

template <int Heads>
void attend_heads(const Attention& attention, const bf16* query, const bf16* next_keys, const int64_t* offsets,
                  int64_t count, float* maxima, float* sums, float* values) {
  float scores[Heads * kChunk];
  bf16 weights[Heads * kChunk];
  (attention.head_dim == 64 ? score<64, Heads> : score<128, Heads>)(attention, query, offsets, count, scores);
  for (int head = 0; head < Heads; ++head)
    sums[head] = weigh(scores + head * kChunk, count, maxima + head, weights + head * kChunk);
  add_values<Heads>(weights, attention.value_cache, next_keys, offsets, count, attention.head_dim, values);
}

}  // namespace

void attend_chunk(const Attention& attention, int64_t row, int64_t kv_head, int64_t first, int64_t count,
                  bool next_head_follows, const Partial& partial) {
  constexpr decltype(&attend_heads<1>) kAttend[] = {attend_heads<1>, attend_heads<2>, attend_heads<3>, attend_heads<4>};
  int64_t offsets[kChunk];
  attention.locate(row, kv_head, first, count, offsets);
  for (int64_t i = count; i % kPadding != 0; ++i) offsets[i] = offsets[count - 1];
  // The next head's vectors lie a whole block of this one's further on.
  const bf16* next_keys =
      next_head_follows ? attention.key_cache + attention.block_size * attention.head_dim : nullptr;
  const bf16* query = attention.query_at(attention.query_starts[row], kv_head);
  for (int64_t head = 0; head < attention.group(); head += kHeadsAtOnce) {
    const int64_t heads = attention.group() - head < kHeadsAtOnce ? attention.group() - head : kHeadsAtOnce;
    kAttend[heads - 1](attention, query + head * attention.head_dim, next_keys, offsets, count, partial.maxima + head,
                       partial.sums + head, partial.values + head * attention.head_dim);
  }
}

}  // namespace baton
