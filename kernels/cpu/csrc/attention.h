// The arguments of one batch's attention over a paged KV cache, for decode rows and for prompts.
#pragma once

#include "simd.h"

namespace baton {

constexpr int64_t kMaxHeadDim = 128;

// Positions that are attended to at once. It is fixed, so that a row's rounding does not depend on its batch.
constexpr int64_t kChunk = 256;

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

  // Where in the caches the vectors of `count` positions from `first` on lie, in elements.
  void locate(int64_t row, int64_t kv_head, int64_t first, int64_t count, int64_t* offsets) const {
    const int32_t* table = block_tables + row * table_stride + first / block_size;
    int64_t in_block = first % block_size;
    for (int64_t done = 0; done < count; ++table, in_block = 0) {
      const int64_t cache_row = (*table * kv_heads + kv_head) * block_size;
      for (; in_block < block_size && done < count; ++in_block, ++done)
        offsets[done] = (cache_row + in_block) * head_dim;
    }
  }
};

// For one KV head's query heads over one chunk of positions: the largest score, the sum of the weights relative to it,
// and the weighted sum of the values. Merging them is the online softmax (Milakov & Gimelshein 2018, arXiv:1805.02867).
struct Partial {
  float *maxima, *sums, *values;  // [group], [group], [group, head_dim]
};

// Attends the single query of a row to the positions [first, first + count) of one chunk. If the next KV head follows,
// its K is fetched into the cache.
void attend_chunk(const Attention& attention, int64_t row, int64_t kv_head, int64_t first, int64_t count,
                  bool next_head_follows, const Partial& partial);

// Attends the queries [first_query, first_query + num_queries) of a row for one KV head, and writes the output.
void attend_queries(const Attention& attention, int64_t row, int64_t kv_head, int64_t first_query, int64_t num_queries);

}  // namespace baton
