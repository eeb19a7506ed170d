// Linear layers in bf16 over weights that were packed once, when they were loaded.
//
// For few rows the weights' way from memory is all the time it takes: two panels stream into the cache at once, and
// every row of the batch uses them while they are there. For many rows it is a blocked matrix product.

#include <algorithm>

#include "activation.h"
#include "block_product.h"
#include "parallel.h"

namespace {

using namespace baton;

constexpr int64_t kSegmentRows = 448;  // rows that share a pass over the weights; their sums are 56 KiB

struct Linear {
  const bf16* panels;
  const bf16* bias;  // or null
  bf16* out;
  int64_t out_stride, in_size, out_size;  // in_size is padded
  bool silu_and_mul;                      // panels alternate between gate and up
};

// sums[rows][32] of the panels from `panel` on, into their columns of `out`.
void write_columns(const Linear& layer, const float* sums, int64_t first_row, int64_t rows, int64_t panel,
                   int num_panels) {
  for (int64_t row = 0; row < rows; ++row, sums += 2 * kPanel) {
    bf16* out = layer.out + (first_row + row) * layer.out_stride;
    for (int64_t element = 0; element < num_panels * kPanel; element += kFloats) {
      const int64_t column = panel * kPanel + element;
      if (column >= layer.out_size) break;  // padding
      Floats total = load(sums + element);
      if (layer.bias != nullptr) total += load_bf16(layer.bias + column, layer.out_size - column);
      store_bf16(out + column, total, layer.out_size - column);
    }
  }
}

// silu(gate) * up; the three of them are rounded as if they had been stored.
void write_activations(const Linear& layer, const float* sums, int64_t first_row, int64_t rows, int64_t panel) {
  for (int64_t row = 0; row < rows; ++row, sums += 2 * kPanel) {
    for (int64_t element = 0; element < kPanel; element += kFloats) {
      const int64_t column = panel / 2 * kPanel + element;
      if (column >= layer.out_size) break;  // padding
      const Floats gate = round_to_bf16(load(sums + element)), up = round_to_bf16(load(sums + kPanel + element));
      store_bf16(layer.out + (first_row + row) * layer.out_stride + column, silu_and_mul(gate, up),
                 layer.out_size - column);
    }
  }
}

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

// All rows, packed; they stay where they are until the thread's next call.
const bf16* pack_segments(const bf16* x, int64_t x_stride, const Segments& segments, int64_t size, int64_t padded_size,
                          int threads) {
  thread_local Scratch<bf16> scratch;
  bf16* packed = scratch.get(segments.count * segments.size * padded_size);
  const int64_t blocks = (segments.size + kBlockRows - 1) / kBlockRows;  // of a whole segment
  const double cost_ns = 0.1 * static_cast<double>(kBlockRows * padded_size);
  parallel_for_small(segments.count * blocks, cost_ns, threads, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t first = segments.first(item / blocks), rows = segments.rows_of(item / blocks);
      if (item % blocks < RowBlocks(rows).count())
        pack_row_block(x + first * x_stride, x_stride, rows, item % blocks, size, padded_size,
                       packed + first * padded_size);
    }
  });
  return packed;
}

// The panels [begin, end) for the packed rows of a segment.
void multiply(const Linear& layer, const bf16* packed_rows, int64_t first_row, int64_t rows, int64_t begin,
              int64_t end) {
  thread_local Scratch<float> scratch;
  float* sums = scratch.get(RowBlocks::padded(rows) * 2 * kPanel);
  [[maybe_unused]] const TileScope tiles;
  const int64_t panel_stride = layer.in_size * kPanel;
  for (int64_t panel = begin; panel < end; panel += 2) {
    const int num_panels = end - panel < 2 ? 1 : 2;
    rows_product(packed_rows, rows, layer.panels + panel * panel_stride, panel_stride, num_panels, layer.in_size, sums,
                 2 * kPanel, false);
    if (layer.silu_and_mul)
      write_activations(layer, sums, first_row, rows, panel);
    else
      write_columns(layer, sums, first_row, rows, panel, num_panels);
  }
}

}  // namespace

extern "C" {

// Elements of a packed weight of [out_size, in_size].
int64_t baton_packed_size(int64_t in_size, int64_t out_size) {
  return round_up(in_size, kSizeMultiple) * round_up(out_size, kPanel);
}

// weight [out_size, in_size], contiguous, to every `panel_step`-th panel of `packed` from `first_panel` on.
void baton_pack_weight(const bf16* weight, int64_t in_size, int64_t out_size, int64_t first_panel, int64_t panel_step,
                       bf16* packed, int threads) {
  const int64_t padded_size = round_up(in_size, kSizeMultiple);
  parallel_for((out_size + kPanel - 1) / kPanel, threads, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int columns = static_cast<int>(std::min<int64_t>(kPanel, out_size - panel * kPanel));
      pack_panel(weight + panel * kPanel * in_size, in_size, columns, in_size, padded_size,
                 packed + (first_panel + panel * panel_step) * kPanel * padded_size);
    }
  });
}

// out [rows, out_size] = x [rows, in_size] times the packed weight, plus bias. With silu_and_mul the panels alternate
// between those of a gate and an up projection of out_size columns each, and out = silu(gate) * up.
void baton_linear(const bf16* x, int64_t x_stride, const bf16* panels, const bf16* bias, bf16* out, int64_t out_stride,
                  int64_t rows, int64_t in_size, int64_t out_size, int silu_and_mul, int threads) {
  const int64_t padded_size = round_up(in_size, kSizeMultiple);
  const Linear layer{panels, bias, out, out_stride, padded_size, out_size, silu_and_mul != 0};
  const Segments segments(rows);
  const bf16* packed_rows = pack_segments(x, x_stride, segments, in_size, padded_size, threads);
  const int64_t num_panels = round_up(out_size, kPanel) / kPanel * (layer.silu_and_mul ? 2 : 1);
  const int64_t together = num_panels < 4 * threads && !layer.silu_and_mul ? 1 : 2;  // a thread's least
  const int64_t parts = (num_panels + together - 1) / together;
  parallel_for(segments.count * parts, threads, [&](int64_t begin, int64_t end) {
    while (begin < end) {  // a range may go over the end of a segment
      const int64_t segment = begin / parts, segment_end = std::min(end, (segment + 1) * parts);
      const int64_t last_panel = std::min((segment_end - segment * parts) * together, num_panels);
      multiply(layer, packed_rows + segments.first(segment) * padded_size, segments.first(segment),
               segments.rows_of(segment), begin % parts * together, last_panel);
      begin = segment_end;
    }
  });
}

}  // extern "C"
