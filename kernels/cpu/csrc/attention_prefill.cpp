// Attention of many queries of one row: FlashAttention's loop (Dao et al. 2022, arXiv:2205.14135) over chunks of K and
// V that are packed for the same product that linear layers use. The query heads of a KV head are rows of one product.

#include <algorithm>

#include "attention.h"
#include "block_product.h"
#include "parallel.h"

namespace baton {

namespace {

// A thread's memory for one block of queries.
struct Space {
  Scratch<bf16> queries, packed_queries, keys, values, weights, packed_weights;
  Scratch<float> scores, sums, maxima, totals;
};

struct Block {
  int64_t rows;            // num_queries * group
  int64_t padded_rows;     // of packed rows and sums
  int64_t first_position;  // of the first query
};

// K of a chunk as panels of 16 positions, V as panels of 16 dimensions; positions beyond `count` are 0.
void pack_keys_and_values(const Attention& attention, const int64_t* offsets, int64_t count, int64_t padded, bf16* keys,
                          bf16* values) {
  const int64_t head_dim = attention.head_dim;
  for (int64_t first = 0; first < padded; first += kPanel) {
    bf16 rows[kPanel * kMaxHeadDim];
    const int64_t present = std::clamp<int64_t>(count - first, 0, kPanel);
    for (int64_t i = 0; i < present; ++i)
      std::memcpy(rows + i * head_dim, attention.key_cache + offsets[first + i],
                  static_cast<size_t>(head_dim) * sizeof(bf16));
    pack_panel(rows, head_dim, static_cast<int>(present), head_dim, head_dim, keys + first * head_dim);
  }
  for (int64_t position = 0; position < padded; position += 2) {
    static constexpr bf16 kZeros[kMaxHeadDim] = {};
    const bf16* first = position < count ? attention.value_cache + offsets[position] : kZeros;
    const bf16* second = position + 1 < count ? attention.value_cache + offsets[position + 1] : kZeros;
    for (int64_t panel = 0; panel < head_dim / kPanel; ++panel)
      interleave_panel(first + panel * kPanel, second + panel * kPanel, values + (panel * padded + position) * kPanel);
  }
}

// Turns one row of scores into weights; only the first `visible` count. Returns the factor for older sums.
float weigh(float* scores, int64_t visible, int64_t padded, float scale, float* maximum, float* total, bf16* weights) {
  std::fill(scores + visible, scores + padded, -kInfinity);
  Floats largest = set(-kInfinity);
  for (int64_t i = 0; i < padded; i += kFloats) largest = max(largest, load(scores + i));
  const float older = *maximum;
  *maximum = std::max(older, scale * max_of(largest));
  Floats added = zeros();
  for (int64_t i = 0; i < padded; i += kFloats) {
    const Floats weight = round_to_bf16(exp(load(scores + i) * set(scale) - set(*maximum)));
    store_bf16(weights + i, weight);
    added += weight;
  }
  float shrink[kFloats];
  store(shrink, exp(set(older - *maximum)));
  *total = *total * shrink[0] + sum(added);
  return shrink[0];
}

// Adds the positions [first, first + count) to the block's sums.
void add_chunk(const Attention& attention, const Block& block, int64_t first, int64_t count, const int64_t* offsets,
               Space& space) {
  const int64_t head_dim = attention.head_dim, padded = round_up(count, kSizeMultiple);
  bf16 *keys = space.keys.get(kChunk * head_dim), *values = space.values.get(kChunk * head_dim);
  bf16* weights = space.weights.get(block.rows * kChunk);
  bf16* packed = space.packed_weights.get(block.padded_rows * kChunk);
  float *scores = space.scores.get(block.padded_rows * kChunk), *sums = space.sums.get(block.padded_rows * head_dim);
  pack_keys_and_values(attention, offsets, count, padded, keys, values);

  [[maybe_unused]] const TileScope tiles;
  const bf16* queries = space.packed_queries.get(block.padded_rows * head_dim);
  for (int64_t position = 0; position < padded; position += 2 * kPanel)
    rows_product(queries, block.rows, keys + position * head_dim, kPanel * head_dim, 2, head_dim,
                 Bf16Sums{scores + position, kChunk, false});
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t position = block.first_position + row / attention.group();
    const int64_t visible = std::clamp<int64_t>(position + 1 - first, 0, count);
    bf16* row_weights = weights + row * kChunk;
    if (visible == 0) {
      std::fill(row_weights, row_weights + padded, bf16{0});
      continue;
    }
    const float shrink = weigh(scores + row * kChunk, visible, padded, attention.scale, space.maxima.get(0) + row,
                               space.totals.get(0) + row, row_weights);
    if (shrink != 1.0f)
      for (int64_t i = 0; i < head_dim; i += kFloats)
        store(sums + row * head_dim + i, load(sums + row * head_dim + i) * set(shrink));
  }
  for (int64_t i = 0; i < RowBlocks(block.rows).count(); ++i)
    pack_row_block(weights, kChunk, block.rows, i, padded, padded, packed);
  for (int64_t i = 0; i < head_dim; i += 2 * kPanel)
    rows_product(packed, block.rows, values + i * padded, kPanel * padded, 2, padded,
                 Bf16Sums{sums + i, head_dim, true});
}

}  // namespace

void attend_queries(const Attention& attention, int64_t row, int64_t kv_head, int64_t first_query,
                    int64_t num_queries) {
  thread_local Space space;
  const int64_t head_dim = attention.head_dim, group = attention.group();
  const int64_t first_token = attention.query_starts[row] + first_query;
  Block block{num_queries * group, RowBlocks::padded(num_queries * group),
              attention.context_lens[row] - attention.query_len(row) + first_query};

  bf16* queries = space.queries.get(block.rows * head_dim);
  for (int64_t query = 0; query < num_queries; ++query)
    std::memcpy(queries + query * group * head_dim, attention.query_at(first_token + query, kv_head),
                static_cast<size_t>(group * head_dim) * sizeof(bf16));
  bf16* packed = space.packed_queries.get(block.padded_rows * head_dim);
  for (int64_t i = 0; i < RowBlocks(block.rows).count(); ++i)
    pack_row_block(queries, head_dim, block.rows, i, head_dim, head_dim, packed);
  float* sums = space.sums.get(block.padded_rows * head_dim);
  std::fill(sums, sums + block.padded_rows * head_dim, 0.0f);
  std::fill_n(space.maxima.get(block.rows), block.rows, -kInfinity);
  float* totals = space.totals.get(block.rows);
  std::fill_n(totals, block.rows, 0.0f);

  const int64_t end = block.first_position + num_queries;
  for (int64_t first = 0; first < end; first += kChunk) {
    int64_t offsets[kChunk];
    const int64_t count = std::min(kChunk, end - first);
    attention.locate(row, kv_head, first, count, offsets);
    add_chunk(attention, block, first, count, offsets, space);
  }
  for (int64_t i = 0; i < block.rows; ++i) {
    bf16* to = attention.out_at(first_token + i / group, kv_head) + i % group * head_dim;
    for (int64_t element = 0; element < head_dim; element += kFloats)
      store_bf16(to + element, load(sums + i * head_dim + element) / set(totals[i]));
  }
}

}  // namespace baton
