// A linear layer over weights that were packed once, when they were loaded: how its rows and panels are shared out.
//
// For few rows reading the weights from memory takes all the time: two panels stream into the cache at once, and
// every row of the batch uses them while they are there. For many rows it is a blocked matrix product.
#pragma once

#include <algorithm>

#include "activation.h"
#include "block_product.h"
#include "parallel.h"

namespace baton {

constexpr int64_t kSegmentRows = 448;  // rows that share a pass over the weights; their sums are 56 KiB

// How the rows of a batch are cut: evenly, into as few segments as there have to be.
struct Segments {
  int64_t rows, count, size;
  explicit Segments(int64_t num_rows)
      : rows(num_rows),
        count((num_rows + kSegmentRows - 1) / kSegmentRows),
        size(count == 0 ? 0 : RowBlocks::padded((num_rows + count - 1) / count)) {}
  int64_t first(int64_t segment) const { return segment * size; }
  int64_t rows_of(int64_t segment) const { return std::clamp<int64_t>(rows - first(segment), 0, size); }
};

// x, bias and out are bf16. With silu_and_mul the weights' panels alternate between those of a gate and an up
// projection of out_size columns each, and out = silu(gate) * up.
struct Layer {
  const bf16* x;
  int64_t x_stride;
  const bf16* bias;  // or null
  bf16* out;
  int64_t out_stride, rows, in_size, out_size;
  bool silu_and_mul;
};

// Stores sums[rows][32] of the panels from `panel` on in their columns of `out`.
template <class Weights>
void write_columns(const Layer& layer, const Weights& weights, const float* sums, int64_t first_row, int64_t rows,
                   int64_t panel, int num_panels) {
  for (int64_t row = 0; row < rows; ++row, sums += 2 * kPanel) {
    bf16* out = layer.out + (first_row + row) * layer.out_stride;
    for (int64_t element = 0; element < num_panels * kPanel; element += kFloats) {
      const int64_t column = panel * kPanel + element;
      if (column >= layer.out_size) break;  // padding
      Floats total = weights.scaled(load(sums + element), column);
      if (layer.bias != nullptr) total += load_bf16(layer.bias + column, layer.out_size - column);
      store_bf16(out + column, total, layer.out_size - column);
    }
  }
}

// silu(gate) * up; gate, up and silu are rounded as if they had been stored.
template <class Weights>
void write_activations(const Layer& layer, const Weights& weights, const float* sums, int64_t first_row, int64_t rows,
                       int64_t panel) {
  for (int64_t row = 0; row < rows; ++row, sums += 2 * kPanel) {
    for (int64_t element = 0; element < kPanel; element += kFloats) {
      const int64_t column = panel / 2 * kPanel + element;
      if (column >= layer.out_size) break;  // padding
      const auto rounded = [&](int64_t start) {
        return round_to_bf16(weights.scaled(load(sums + start + element), (panel * kPanel + start) + element));
      };
      store_bf16(layer.out + (first_row + row) * layer.out_stride + column, silu_and_mul(rounded(0), rounded(kPanel)),
                 layer.out_size - column);
    }
  }
}

// All rows, packed; they stay where they are until the thread's next call.
template <class Weights>
typename Weights::Rows pack_segments(const Layer& layer, const Weights& weights, const Segments& segments,
                                     int threads) {
  const typename Weights::Rows packed = weights.reserve(segments.count * segments.size);
  const int64_t blocks = (segments.size + kBlockRows - 1) / kBlockRows;  // of a whole segment
  const double cost_ns = Weights::kPackingNs * static_cast<double>(kBlockRows * layer.in_size);
  parallel_for_small(segments.count * blocks, cost_ns, threads, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t first = segments.first(item / blocks), rows = segments.rows_of(item / blocks);
      if (item % blocks < RowBlocks(rows).count())
        weights.pack(layer.x + first * layer.x_stride, layer.x_stride, rows, item % blocks,
                     weights.from_row(packed, first));
    }
  });
  return packed;
}

// Computes the panels [begin, end) for the packed rows of a segment.
template <class Weights>
void multiply(const Layer& layer, const Weights& weights, const typename Weights::Rows& packed, int64_t first_row,
              int64_t rows, int64_t begin, int64_t end) {
  thread_local Scratch<float> scratch;
  float* sums = scratch.get(RowBlocks::padded(rows) * 2 * kPanel);
  [[maybe_unused]] const TileScope tiles;
  for (int64_t panel = begin; panel < end; panel += 2) {
    const int num_panels = end - panel < 2 ? 1 : 2;
    weights.product(packed, rows, panel, num_panels, sums);
    if (layer.silu_and_mul)
      write_activations(layer, weights, sums, first_row, rows, panel);
    else
      write_columns(layer, weights, sums, first_row, rows, panel, num_panels);
  }
}

// The layer with weights of some kind, which are a class that has
//   Rows               packed rows, of any number
//   kPackingNs         about what packing an element costs
//   reserve            memory for packed rows, the calling thread's until its next call
//   from_row           packed rows from the first row of a segment on
//   pack               one of the blocks of a segment's rows
//   product            a segment's rows times one or two panels, into sums[rows][32]
//   scaled             sums of the columns from one on, times their scales
template <class Weights>
void run_layer(const Layer& layer, const Weights& weights, int threads) {
  const Segments segments(layer.rows);
  const typename Weights::Rows packed = pack_segments(layer, weights, segments, threads);
  const int64_t num_panels = round_up(layer.out_size, kPanel) / kPanel * (layer.silu_and_mul ? 2 : 1);
  const int64_t together = num_panels < 4 * threads && !layer.silu_and_mul ? 1 : 2;  // a thread's least
  const int64_t parts = (num_panels + together - 1) / together;
  parallel_for(segments.count * parts, threads, [&](int64_t begin, int64_t end) {
    while (begin < end) {  // a range may go over the end of a segment
      const int64_t segment = begin / parts, segment_end = std::min(end, (segment + 1) * parts);
      const int64_t last_panel = std::min((segment_end - segment * parts) * together, num_panels);
      multiply(layer, weights, weights.from_row(packed, segments.first(segment)), segments.first(segment),
               segments.rows_of(segment), begin % parts * together, last_panel);
      begin = segment_end;
    }
  });
}

}  // namespace baton
