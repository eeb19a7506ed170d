// Attention of many queries of one row: FlashAttention's loop (Dao et al. 2022, arXiv:2205.14135) over chunks of K and
// V that are packed for the same product that linear layers use. The query heads of a KV head are rows of one product.
// A single query goes the same way where products are those of tiles, which have an order of their own.

#include <algorithm>

#include "attention.h"
#include "block_product.h"
#include "parallel.h"

namespace baton {

namespace {

// A thread's memory for one block of queries.
struct Space {
  Scratch<bf16> queries, packed_queries, keys, values, weights, packed_weights;
  Scratch<float> products, whole, chunk;
};

struct Block {
  int64_t rows;            // num_queries * group
  int64_t padded_rows;     // of packed rows and sums
  int64_t first_position;  // of the first query
};

// A partial result of a block's rows.
Partial partial_in(Scratch<float>& memory, const Block& block, int64_t head_dim) {
  float* start = memory.get(block.padded_rows * (head_dim + 2));
  return {start, start + block.padded_rows, start + 2 * block.padded_rows};
}

Partial row_of(const Partial& partial, int64_t row, int64_t head_dim) {
  return {partial.maxima + row, partial.sums + row, partial.values + row * head_dim};
}

// Packs the queries of a row, [num_queries * group, head_dim] from `first_token` on.
const bf16* pack_queries(const Attention& attention, const Block& block, int64_t first_token, int64_t kv_head,
                         Space& space) {
  const int64_t head_dim = attention.head_dim, group = attention.group();
  bf16* queries = space.queries.get(block.rows * head_dim);
  for (int64_t row = 0; row < block.rows; row += group)
    std::memcpy(queries + row * head_dim, attention.query_at(first_token + row / group, kv_head),
                static_cast<size_t>(group * head_dim) * sizeof(bf16));
  bf16* packed = space.packed_queries.get(block.padded_rows * head_dim);
  for (int64_t i = 0; i < RowBlocks(block.rows).count(); ++i)
    pack_row_block(queries, head_dim, block.rows, i, head_dim, head_dim, packed);
  return packed;
}

// K of a chunk as panels of 16 positions, V as panels of 16 dimensions, which is 0 beyond `count`.
void pack_keys_and_values(const Attention& attention, const int64_t* offsets, int64_t count, int64_t padded, bf16* keys,
                          bf16* values) {
  static constexpr bf16 kZeros[kMaxHeadDim] = {};
  const int64_t head_dim = attention.head_dim;
  bf16 copy[kPanel * kMaxHeadDim];
  for (int64_t first = 0; first < padded; first += kPanel) {
    const int64_t present = std::min(first, (count - 1) / kPanel * kPanel);  // beyond it any K does
    const bf16* from = attention.keys_together(offsets + present, count - present, copy);
    (head_dim == 64 ? transpose_rows<64> : transpose_rows<128>)(from, keys + first * head_dim);
  }
  for (int64_t position = 0; position < padded; position += 2) {
    const bf16* first = position < count ? attention.value_cache + offsets[position] : kZeros;
    const bf16* second = position + 1 < count ? attention.value_cache + offsets[position + 1] : kZeros;
    for (int64_t panel = 0; panel < head_dim / kPanel; ++panel)
      interleave_panel(first + panel * kPanel, second + panel * kPanel, values + (panel * padded + position) * kPanel);
  }
}

// The block's partial result of the `count` positions of a chunk, from `first` on. A row that sees none of them has
// none: what is in its place means nothing.
void attend_block(const Attention& attention, const Block& block, const bf16* queries, int64_t kv_head, int64_t row,
                  int64_t first, int64_t count, Space& space, const Partial& partial) {
  const int64_t head_dim = attention.head_dim, padded = round_up(count, kSizeMultiple);
  int64_t offsets[kChunk];
  attention.locate(row, kv_head, first, count, offsets);
  bf16 *keys = space.keys.get(kChunk * head_dim), *values = space.values.get(kChunk * head_dim);
  bf16* weights = space.weights.get(block.rows * kChunk);
  bf16* packed = space.packed_weights.get(block.padded_rows * kChunk);
  float* products = space.products.get(block.padded_rows * kChunk);
  pack_keys_and_values(attention, offsets, count, padded, keys, values);

  [[maybe_unused]] const TileScope tiles;
  for (int64_t position = 0; position < padded; position += 2 * kPanel)
    rows_product(queries, block.rows, keys + position * head_dim, kPanel * head_dim, 2, head_dim,
                 Bf16Sums{products + position, kChunk, false});
  for (int64_t i = 0; i < block.rows; ++i) {
    const int64_t position = block.first_position + i / attention.group();
    const int64_t visible = std::clamp<int64_t>(position + 1 - first, 0, count);
    if (visible == 0)
      std::fill_n(weights + i * kChunk, padded, bf16{0});
    else
      partial.sums[i] = weigh(products + i * kChunk, visible, padded, attention.scale, partial.maxima + i,
                              weights + i * kChunk);
  }
  for (int64_t i = 0; i < RowBlocks(block.rows).count(); ++i)
    pack_row_block(weights, kChunk, block.rows, i, padded, padded, packed);
  for (int64_t i = 0; i < head_dim; i += 2 * kPanel)
    rows_product(packed, block.rows, values + i * padded, kPanel * padded, 2, padded,
                 Bf16Sums{partial.values + i, head_dim, false});
}

}  // namespace

void attend_queries(const Attention& attention, int64_t row, int64_t kv_head, int64_t first_query,
                    int64_t num_queries) {
  thread_local Space space;
  const int64_t head_dim = attention.head_dim, group = attention.group();
  const int64_t first_token = attention.query_starts[row] + first_query;
  const Block block{num_queries * group, RowBlocks::padded(num_queries * group),
                    attention.context_lens[row] - attention.query_len(row) + first_query};
  const bf16* queries = pack_queries(attention, block, first_token, kv_head, space);
  const Partial whole = partial_in(space.whole, block, head_dim), chunk = partial_in(space.chunk, block, head_dim);

  const int64_t end = block.first_position + num_queries;
  for (int64_t first = 0; first < end; first += kChunk) {
    attend_block(attention, block, queries, kv_head, row, first, std::min(kChunk, end - first), space,
                 first == 0 ? whole : chunk);
    if (first == 0) continue;
    const int64_t first_that_sees = std::max<int64_t>(0, first - block.first_position) * group;
    for (int64_t i = first_that_sees; i < block.rows; ++i)
      merge(row_of(whole, i, head_dim), row_of(chunk, i, head_dim), head_dim);
  }
  for (int64_t i = 0; i < block.rows; ++i)
    finish(row_of(whole, i, head_dim), head_dim,
           attention.out_at(first_token + i / group, kv_head) + i % group * head_dim);
}

#if defined(BATON_TILES)

void attend_chunk(const Attention& attention, int64_t row, int64_t kv_head, int64_t first, int64_t count, bool,
                  const Partial& partial) {
  thread_local Space space;
  const int64_t head_dim = attention.head_dim, group = attention.group();
  const Block block{group, RowBlocks::padded(group), attention.context_lens[row] - 1};
  const bf16* queries = pack_queries(attention, block, attention.query_starts[row], kv_head, space);
  const Partial padded = partial_in(space.chunk, block, head_dim);  // products of tiles write the padding, too
  attend_block(attention, block, queries, kv_head, row, first, count, space, padded);
  std::copy_n(padded.maxima, group, partial.maxima);
  std::copy_n(padded.sums, group, partial.sums);
  std::copy_n(padded.values, group * head_dim, partial.values);
}

#endif

}  // namespace baton
