// The arguments of one batch's attention over a paged KV cache, for decode rows and for prompts.
//
// A query's result is the same to the last bit whether it is the only one of its row or one of many: so what was
// decoded can be computed again as part of a prompt, and a prompt can be cut anywhere. For that both kinds of rows take
// the same steps in the same order. Positions are attended to in chunks that begin at multiples of kChunk, and each
// chunk gives a partial result from nothing. In a score the products of K and a query are summed from the first
// dimension to the last, in a value from the chunk's first position to its last. Chunks are merged in their order.
#pragma once

#include <cstring>

#include "simd.h"

namespace baton {

constexpr int64_t kMaxHeadDim = 128;

// Positions that are attended to at once. It is fixed, so that a row's rounding does not depend on its batch.
constexpr int64_t kChunk = 256;

// Positions go in vectors and tiles; those that fill the last one up have no weight.
constexpr int64_t kPadding = 16;

// query, out [tokens, heads, head_dim] with rows of query_stride and heads * head_dim elements; caches [blocks,
// kv_heads, block_size, head_dim].
struct Attention {
  const bf16 *query, *key_cache, *value_cache;
  const int32_t *block_tables, *context_lens, *query_starts;
  bf16* out;
  int64_t query_stride, table_stride, heads, kv_heads, block_size, head_dim;
  float scale;

  int64_t group() const { return heads / kv_heads; }
  int64_t query_len(int64_t row) const { return query_starts[row + 1] - query_starts[row]; }

  const bf16* query_at(int64_t token, int64_t kv_head) const {
    return query + token * query_stride + kv_head * group() * head_dim;
  }
  bf16* out_at(int64_t token, int64_t kv_head) const {
    return out + (token * heads + kv_head * group()) * head_dim;
  }

  // Where in the caches the vectors of `count` positions from `first` on lie, in elements. The last one is repeated
  // until their number is a multiple of kPadding.
  void locate(int64_t row, int64_t kv_head, int64_t first, int64_t count, int64_t* offsets) const {
    const int32_t* table = block_tables + row * table_stride + first / block_size;
    int64_t in_block = first % block_size, done = 0;
    for (; done < count; ++table, in_block = 0) {
      const int64_t cache_row = (*table * kv_heads + kv_head) * block_size;
      for (; in_block < block_size && done < count; ++in_block, ++done)
        offsets[done] = (cache_row + in_block) * head_dim;
    }
    for (; done % kPadding != 0; ++done) offsets[done] = offsets[count - 1];
  }

  // K of kPadding positions, the first of which is a multiple of it in the row: where it lies together, or together in
  // `copy`. Of fewer than kPadding, what is not there is not read, as it would have to come from memory.
  const bf16* keys_together(const int64_t* offsets, int64_t count, bf16* copy) const {
    if (block_size % kPadding == 0 && count >= kPadding) return key_cache + *offsets;
    for (int64_t i = 0; i < kPadding; ++i)
      std::memcpy(copy + i * head_dim, key_cache + offsets[i], static_cast<size_t>(head_dim) * sizeof(bf16));
    return copy;
  }
};

// For some query heads over one chunk of positions, or several: the largest score, the sum of the weights relative to
// it, and the weighted sum of the values.
struct Partial {
  float *maxima, *sums, *values;  // [heads], [heads], [heads, head_dim]
};

// Turns the products of K and a query, at positions of which the first `visible` count, into weights relative to the
// largest score, rounded to bf16 for the product with V. `padded` is a multiple of kPadding; the weights from `visible`
// on are 0. Returns the sum of the weights.
float weigh(float* products, int64_t visible, int64_t padded, float scale, float* maximum, bf16* weights);

// Merges the partial result of a chunk, of one query head, into that of all chunks before it: the online softmax
// (Milakov & Gimelshein 2018, arXiv:1805.02867).
void merge(const Partial& before, const Partial& chunk, int64_t head_dim);

// The weighted mean of the values, of one query head.
void finish(const Partial& whole, int64_t head_dim, bf16* out);

// Attends the single query of a row to the positions [first, first + count) of one chunk. If the next KV head follows,
// its K is fetched into the cache.
void attend_chunk(const Attention& attention, int64_t row, int64_t kv_head, int64_t first, int64_t count,
                  bool next_head_follows, const Partial& partial);

// Attends the queries [first_query, first_query + num_queries) of a row for one KV head, and writes the output.
void attend_queries(const Attention& attention, int64_t row, int64_t kv_head, int64_t first_query, int64_t num_queries);

}  // namespace baton
