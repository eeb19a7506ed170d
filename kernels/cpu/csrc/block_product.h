// Products of packed rows and packed columns: linear layers and the attention of prompts both use them.
//
// The columns lie in panels of 16, [size / 2][16] pairs of bf16: one pair of all 16 columns fills a vector, and 16 of
// these fill a tile of AMX. The rows lie in blocks, as many rows as there are accumulators for: [size / 2][rows] pairs
// for vectors, [size / 32][1 or 2] tiles of 16 rows and 32 elements for AMX. This is the layout of BLIS (Van Zee & van
// de Geijn 2015) with pairs in the place of numbers. Every sum runs over the elements in the same order, whatever the
// number of rows, so a row's result does not depend on the rows beside it.
//
// A matrix of int8 counts, and is packed, as one of bf16 of half the size: what is a pair of bf16 is four int8 there.
// sums.h has what is different.
#pragma once

#include <array>
#include <utility>

#include "sums.h"
#include "tiles.h"
#include "transpose.h"

namespace baton {

constexpr int kPanel = 16;         // columns in a panel
constexpr int kSizeMultiple = 32;  // sizes are padded with zeros to this: the elements in a row of a tile

// Where the elements of two panels lie that are wanted next. They are fetched into the cache during a product: without
// that, 16 rows spend a third of their time waiting for memory. What lies in the cache already costs nothing.
struct Ahead {
  const bf16 *first, *second;
};

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

inline void pack_panel(const bf16* from, int64_t from_stride, int columns, int64_t size, int64_t padded_size,
                       bf16* to) {
  transpose_pairs(from, from_stride, columns, size, to, kPanel, padded_size);
}

#if defined(BATON_TILES)

constexpr int kBlockRows = 2 * kTileRows;

// How rows are cut into blocks. Packed rows and sums have room for the padding of the last block.
class RowBlocks {
 public:
  explicit RowBlocks(int64_t rows) : rows_(rows) {}
  int64_t count() const { return (rows_ + kBlockRows - 1) / kBlockRows; }
  int64_t first(int64_t block) const { return block * kBlockRows; }
  int rows(int64_t block) const {
    return static_cast<int>(rows_ - first(block) < kBlockRows ? rows_ - first(block) : kBlockRows);
  }
  int padded_rows(int64_t block) const { return static_cast<int>(round_up(rows(block), kTileRows)); }
  static int64_t padded(int64_t rows) { return round_up(rows, kTileRows); }

 private:
  int64_t rows_;
};

inline void pack_block(const bf16* from, int64_t from_stride, int rows, int64_t size, int64_t padded_size, bf16* to) {
  const int tiles = static_cast<int>(round_up(rows, kTileRows)) / kTileRows;
  for (int64_t element = 0; element < padded_size; element += kSizeMultiple)
    for (int row = 0; row < tiles * kTileRows; ++row, to += kSizeMultiple) {
      const int64_t left = row < rows ? size - element : 0;
      const int64_t copied = left < 0 ? 0 : left < kSizeMultiple ? left : kSizeMultiple;
      std::memset(to, 0, kTileBytes);
      std::memcpy(to, from + row * from_stride + element, static_cast<size_t>(copied) * sizeof(bf16));
    }
}

// The rows times the columns over `size` elements (a multiple of 32), into the sums. One TileScope has to live.
template <class Sums, int RowTiles, int Panels>
void tile_product(const bf16* rows, const bf16* panels, int64_t panel_stride, int64_t size, Ahead ahead,
                  const Sums& sums) {
  TILE_ZERO(0);
  TILE_ZERO(1);
  TILE_ZERO(2);
  TILE_ZERO(3);
  if constexpr (!Sums::kInt8) {
    if (sums.add) {
      TILE_LOAD(0, sums.at(0, 0), sums.row_bytes());
      if constexpr (Panels == 2) TILE_LOAD(1, sums.at(0, kPanel), sums.row_bytes());
      if constexpr (RowTiles == 2) TILE_LOAD(2, sums.at(kTileRows, 0), sums.row_bytes());
      if constexpr (RowTiles == 2 && Panels == 2) TILE_LOAD(3, sums.at(kTileRows, kPanel), sums.row_bytes());
    }
  }
#define DOT(total, a, b)           \
  do {                             \
    if constexpr (Sums::kInt8)     \
      TILE_DOT_BYTES(total, a, b); \
    else                           \
      TILE_DOT(total, a, b);       \
  } while (false)
  constexpr int kTileElements = kTileRows * kSizeMultiple;
  for (int64_t step = 0; step < size / kSizeMultiple; ++step, rows += RowTiles * kTileElements) {
    const bf16* columns = panels + step * kTileElements;
    for (int element = 0; element < kTileElements; element += kSizeMultiple) {
      __builtin_prefetch(ahead.first + step * kTileElements + element, 0, 2);  // into L2: L1 holds the present ones
      __builtin_prefetch(ahead.second + step * kTileElements + element, 0, 2);
    }
    TILE_LOAD(4, rows, kTileBytes);
    TILE_LOAD(6, columns, kTileBytes);
    DOT(0, 4, 6);
    if constexpr (Panels == 2) {
      TILE_LOAD(7, columns + panel_stride, kTileBytes);
      DOT(1, 4, 7);
    }
    if constexpr (RowTiles == 2) {
      TILE_LOAD(5, rows + kTileElements, kTileBytes);
      DOT(2, 5, 6);
      if constexpr (Panels == 2) DOT(3, 5, 7);
    }
  }
#undef DOT
  if constexpr (Sums::kInt8) {
    alignas(64) int32_t totals[2 * kTileRows][2 * kPanel];
    TILE_STORE(0, totals[0], sizeof(totals[0]));
    if constexpr (Panels == 2) TILE_STORE(1, totals[0] + kPanel, sizeof(totals[0]));
    if constexpr (RowTiles == 2) TILE_STORE(2, totals[kTileRows], sizeof(totals[0]));
    if constexpr (RowTiles == 2 && Panels == 2) TILE_STORE(3, totals[kTileRows] + kPanel, sizeof(totals[0]));
    for (int row = 0; row < RowTiles * kTileRows; ++row)
      for (int column = 0; column < Panels * kPanel; column += kFloats)
        sums.finish(row, column, load_ints(totals[row] + column));
  } else {
    TILE_STORE(0, sums.at(0, 0), sums.row_bytes());
    if constexpr (Panels == 2) TILE_STORE(1, sums.at(0, kPanel), sums.row_bytes());
    if constexpr (RowTiles == 2) TILE_STORE(2, sums.at(kTileRows, 0), sums.row_bytes());
    if constexpr (RowTiles == 2 && Panels == 2) TILE_STORE(3, sums.at(kTileRows, kPanel), sums.row_bytes());
  }
}

template <class Sums>
void block_product(const bf16* rows, int num_rows, const bf16* panels, int64_t panel_stride, int num_panels,
                   int64_t size, Ahead ahead, const Sums& sums) {
  const auto product = num_rows > kTileRows ? (num_panels == 2 ? tile_product<Sums, 2, 2> : tile_product<Sums, 2, 1>)
                                            : (num_panels == 2 ? tile_product<Sums, 1, 2> : tile_product<Sums, 1, 1>);
  product(rows, panels, panel_stride, size, ahead, sums);
}

#else

#if defined(__AVX512BF16__)
constexpr int kBlockRows = 14, kPanelsAtOnce = 2;  // 28 accumulators and 2 vectors of columns, of 32 registers
#else
constexpr int kBlockRows = 4, kPanelsAtOnce = 1;  // 8 accumulators and 6 vectors of widened pairs, of 16 registers
#endif

// How rows are cut into blocks: evenly, since a block of two rows takes hardly less time than one of six.
class RowBlocks {
 public:
  explicit RowBlocks(int64_t rows) : rows_(rows), count_((rows + kBlockRows - 1) / kBlockRows) {}
  int64_t count() const { return count_; }
  int64_t first(int64_t block) const { return rows_ * block / count_; }
  int rows(int64_t block) const { return static_cast<int>(first(block + 1) - first(block)); }
  int padded_rows(int64_t block) const { return rows(block); }
  static int64_t padded(int64_t rows) { return rows; }

 private:
  int64_t rows_, count_;
};

inline void pack_block(const bf16* from, int64_t from_stride, int rows, int64_t size, int64_t padded_size, bf16* to) {
  transpose_pairs(from, from_stride, rows, size, to, rows, padded_size);
}

template <class Sums, int Rows, int Panels>
void vector_product(const bf16* rows, const bf16* panels, int64_t panel_stride, int64_t size, Ahead ahead,
                    const Sums& sums) {
  constexpr int kParts = kPanel / kFloats, kVectors = Panels * kParts;
  typename Sums::Totals totals[Rows][kVectors];
#pragma GCC unroll 14
  for (int row = 0; row < Rows; ++row)
    for (int vector = 0; vector < kVectors; ++vector) totals[row][vector] = sums.start(row, vector * kFloats);
  for (int64_t pair = 0; pair < size / 2; ++pair, rows += 2 * Rows, panels += 2 * kPanel) {
    __builtin_prefetch(ahead.first + pair * 2 * kPanel);
    __builtin_prefetch(ahead.second + pair * 2 * kPanel);
    decltype(Sums::load_columns(panels)) columns[kVectors];
    for (int vector = 0; vector < kVectors; ++vector)
      columns[vector] = Sums::load_columns(panels + vector / kParts * panel_stride + vector % kParts * 2 * kFloats);
#pragma GCC unroll 14
    for (int row = 0; row < Rows; ++row) {
      const auto left = Sums::broadcast_row(rows + 2 * row);
      for (int vector = 0; vector < kVectors; ++vector)
        totals[row][vector] = dot(totals[row][vector], columns[vector], left);
    }
  }
#pragma GCC unroll 14
  for (int row = 0; row < Rows; ++row)
    for (int vector = 0; vector < kVectors; ++vector) sums.finish(row, vector * kFloats, totals[row][vector]);
}

template <class Sums>
using VectorProduct = void (*)(const bf16*, const bf16*, int64_t, int64_t, Ahead, const Sums&);

template <class Sums, int Panels, int... Rows>
constexpr std::array<VectorProduct<Sums>, sizeof...(Rows)> vector_products(std::integer_sequence<int, Rows...>) {
  return {vector_product<Sums, Rows + 1, Panels>...};
}

// The rows times the columns over `size` elements (a multiple of 32), into the sums.
template <class Sums>
void block_product(const bf16* rows, int num_rows, const bf16* panels, int64_t panel_stride, int num_panels,
                   int64_t size, Ahead ahead, const Sums& sums) {
  constexpr std::make_integer_sequence<int, kBlockRows> kEachRows;
  static constexpr auto kOnePanel = vector_products<Sums, 1>(kEachRows);
  static constexpr auto kAtOnce = vector_products<Sums, kPanelsAtOnce>(kEachRows);
  for (int panel = 0; panel < num_panels;) {
    const bool whole = num_panels - panel >= kPanelsAtOnce;
    const auto product = (whole ? kAtOnce : kOnePanel)[static_cast<size_t>(num_rows - 1)];
    product(rows, panels + panel * panel_stride, panel_stride, size, ahead, sums.from(0, panel * kPanel));
    panel += whole ? kPanelsAtOnce : 1;
  }
}

#endif

// Packs one of the blocks of `rows` rows of `size` elements; they lie block after block in `to`.
inline void pack_row_block(const bf16* from, int64_t from_stride, int64_t rows, int64_t block, int64_t size,
                           int64_t padded_size, bf16* to) {
  const RowBlocks blocks(rows);
  pack_block(from + blocks.first(block) * from_stride, from_stride, blocks.rows(block), size, padded_size,
             to + blocks.first(block) * padded_size);
}

// All of the packed rows times one or two panels. The elements are taken in chunks, so that a chunk of the panels is
// read from memory once and then from the L1 cache for every block of rows. Meanwhile the next chunk, of these panels
// or of those behind them, is on its way; the first two blocks share in asking for it.
template <class Sums>
void rows_product(const bf16* rows, int64_t num_rows, const bf16* panels, int64_t panel_stride, int num_panels,
                  int64_t size, const Sums& sums) {
  const RowBlocks blocks(num_rows);
  Sums chunk = sums;
  for (int64_t start = 0; start < size; start += Sums::kChunk, chunk = chunk.next_chunk()) {
    const bool last = size - start <= Sums::kChunk;
    const int64_t elements = last ? size - start : Sums::kChunk;
    const bf16* now = panels + start * kPanel;
    const bf16* next = last ? panels + num_panels * panel_stride : now + Sums::kChunk * kPanel;
    for (int64_t block = 0; block < blocks.count(); ++block) {
      const bool alone = blocks.count() == 1;
      const Ahead ahead{alone || block == 0 ? next : now, alone || block == 1 ? next + panel_stride : now};
      block_product(rows + blocks.first(block) * size + start * blocks.padded_rows(block), blocks.rows(block), now,
                    panel_stride, num_panels, elements, ahead, chunk.from(blocks.first(block), 0));
    }
  }
}

}  // namespace baton
